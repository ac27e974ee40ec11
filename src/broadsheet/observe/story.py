"""Story: the last steps of a machine, which explain how it came to its present state (code.10).

A ring. A step keeps the event and the effects themselves, which are frozen; where they carry payload,
`lines` tells its length only, because slabs are recycled and a view would show other bytes by then. A machine
whose events hold payload names a bound: a step above it is kept as text, for 256 steps with a document of
8 MiB each would be gigabytes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import astuple

from broadsheet.base.machine import Effect, Event
from broadsheet.base.time import Instant

STORY_STEPS: Final = 256
PAYLOAD_SHOWN_MAX: Final = 64
"""Bytes of a `bytes` value that are shown; longer ones, and all views, are told by their length."""
ITEMS_SHOWN_MAX: Final = 8

_Step = tuple[Instant, object, Sequence[object], object]
"""Time, event, effects, and the state after the step. A plain tuple: a named one costs six times as much."""


class Story:
    """A ring of a machine's last steps."""

    def __init__(
        self, name: str, *, steps_max: int = STORY_STEPS, payload_bytes_max: int | None = None
    ) -> None:
        """Keep the last `steps_max` steps of a machine.

        Args:
            payload_bytes_max: a step that holds more bytes than this is kept as text; None where no event of
                the machine holds payload, so that nobody needs to count it.
        """
        self.name = name
        self._payload_bytes_max = payload_bytes_max
        self._steps: deque[_Step] = deque(maxlen=steps_max)
        self._state: Callable[[], object] | None = None
        self._before: object = None

    def watch(self, state: Callable[[], object]) -> None:
        """Remember with each step what `state` returns after it: a frozen value, such as an enum's member."""
        self._state = state
        self._before = state()

    @property
    def state(self) -> object:
        """The state after the last step; None where none is watched."""
        return self._steps[-1][3] if self._steps else self._before

    def tell(self, at: Instant, event: Event, effects: Sequence[Effect]) -> None:
        """Record one step; if the ring is full, the oldest step is dropped."""
        step: tuple[object, Sequence[object]] = (event, effects)
        if self._payload_bytes_max is not None:
            step = _within(self._payload_bytes_max, event, effects)
        self._steps.append((at, *step, self._state() if self._state is not None else None))

    def refuse(self, at: Instant, event: Event, error: Exception) -> None:
        """Record an illegal event, which changed nothing."""
        self._steps.append((at, *_within(self._payload_bytes_max, event, ()), error))

    def lines(self) -> list[str]:
        """The machine's steps as text, oldest first: instant, event, states where known, effects."""
        is_whole = len(self._steps) < (self._steps.maxlen or 0)
        before = self._before if is_whole else "..."
        lines = []
        for at, event, effects, after in self._steps:
            if isinstance(after, Exception):
                lines.append(f"{at} {_shown(event)} refused: {after!r}")
                continue
            moved = f" [{before} -> {after}]" if self._state is not None else ""
            lines.append(f"{at} {_shown(event)}{moved} -> [{', '.join(map(_shown, effects))}]")
            before = after
        return lines


class _Text(str):
    """The text of an event or effect whose object is not kept."""

    __slots__ = ()


def _within(limit: int | None, event: Event, effects: Sequence[Effect]) -> tuple[object, Sequence[object]]:
    """Event and effects, or their text where they hold more than `limit` bytes."""
    if limit is None or _payload_bytes((event, effects), limit) <= limit:
        return event, effects
    shown = [_Text(_shown(effect)) for effect in effects[:ITEMS_SHOWN_MAX]]
    if len(effects) > len(shown):
        shown.append(_Text(f"and {len(effects) - len(shown)} more"))
    return _Text(_shown(event)), shown


def _payload_bytes(value: object, limit: int) -> int:
    """Bytes of payload and text in `value`; where they exceed `limit`, some number above it."""
    held, left = 0, [value]
    while left and held <= limit:
        part = left.pop()
        held += 1
        kind = type(part)
        if kind is int or kind is bool or part is None:
            continue  # Most fields are one of these, and this is looked at in every step.
        if isinstance(part, bytes | bytearray | str):
            held += len(part)
        elif isinstance(part, msgspec.Struct):
            left += astuple(part)
        elif isinstance(part, list | tuple):
            left += part
        elif isinstance(part, memoryview):
            held += part.nbytes
    return held


def _shown(value: object) -> str:
    if isinstance(value, _Text):
        return value
    if isinstance(value, memoryview):
        return f"<{value.nbytes} bytes>"
    if isinstance(value, bytes | bytearray) and len(value) > PAYLOAD_SHOWN_MAX:
        return f"<{len(value)} bytes>"
    if isinstance(value, msgspec.Struct):
        fields = (f"{field}={_shown(getattr(value, field))}" for field in value.__struct_fields__)
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, list | tuple):
        items = [_shown(item) for item in value[:ITEMS_SHOWN_MAX]]
        more = len(value) - len(items)
        return f"[{', '.join(items)}{f', and {more} more' if more else ''}]"
    return repr(value)
