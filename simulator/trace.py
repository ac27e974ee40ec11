"""The trace of a run: a digest over every event and effect, counts of what happened, and lines of text.

Two runs of one plan have equal digests, whatever the hash seed (the meta-test). Struct fields are encoded
with sorted sets and maps; a value that has no encoding contributes its type's name, so an opaque value must
not decide anything.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec

from broadsheet.base.machine import Effect, Event, Tick
from broadsheet.base.time import Instant
from broadsheet.observe.story import Story

DIGEST_BYTES: Final = 8


class Watcher(Protocol):
    """Who is told of the moments that are passed."""

    is_armed: bool
    """Asked before `reach`, which costs more."""

    def reach(self, moment: str) -> None:
        """Whoever's call runs now passes `moment`."""
        ...


def _opaque(value: object) -> str:
    return type(value).__qualname__


class Counts(msgspec.Struct):
    """What happened in a run.

    Ticks without effects are not counted: nothing shows that they changed anything.
    """

    messages: int = 0
    """Datagrams or stream chunks delivered."""
    timers: int = 0
    """Ticks that had effects; in tier 2, timers that fired."""
    disk: int = 0
    """Disk completions."""
    steps: int = 0
    """Machine steps, idle ticks included."""
    faults: int = 0
    """Faults that took effect."""
    faults_met: int = 0
    """Crashes, partitions and disk faults that took effect while a client's operation was unanswered."""

    @property
    def events(self) -> int:
        """The events of which the speed target speaks."""
        return self.messages + self.timers + self.disk


class Trace:
    """One run's digest, counts and, where wanted, text."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self.counts = Counts()
        self.now: Callable[[], int] = lambda: 0
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self._update = self._hash.update
        self._encode = msgspec.msgpack.Encoder(enc_hook=_opaque, order="deterministic").encode
        self._show = show
        self.moments: Watcher | None = None
        self.hear: Callable[[Event, Sequence[Effect]], None] | None = None
        """Where the workload judges each step."""
        self.transitions: dict[tuple[str, str, object], int] = {}
        """How often each kind of machine stepped an event, with the state after it, where it shows one."""

    def note(self, *values: object) -> None:
        """Put something that happened in the world into the digest."""
        self._update(self._encode((self.now(), values)))
        if self._show is not None:
            self._show(f"{self.now() / 1e9:12.6f} {' '.join(map(_text, values))}")

    def note_bytes(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Put bytes that moved into the digest, without encoding them."""
        self._update(b"%d %s" % (self.now(), name.encode()))
        self._update(data)
        if self._show is not None:
            self._show(f"{self.now() / 1e9:12.6f} {name} {len(data)} bytes")

    def step(
        self, name: str, at: Instant, event: Event, effects: Sequence[Effect], state: object = None
    ) -> None:
        """Put one machine step into the digest; its moment is passed then."""
        counts = self.counts
        counts.steps += 1
        if effects:
            counts.timers += type(event) is Tick
            named = [(type(effect).__name__, effect) for effect in effects]
        else:
            named = []
        kind = type(event).__name__
        self._update(self._encode((name, at, kind, event, named)))
        key = (name, kind, state)
        self.transitions[key] = self.transitions.get(key, 0) + 1
        if self._show is not None:
            self._show(f"{self.now() / 1e9:12.6f} {name}: {event!r} -> {list(effects)!r}")
        if self.hear is not None:
            self.hear(event, effects)
        if self.moments is not None and self.moments.is_armed:
            self.moments.reach(f"step.{kind}")

    def digest(self) -> str:
        """The digest so far, in hexadecimal."""
        return self._hash.hexdigest()


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


class TracedStory(Story):
    """A story whose steps also go into the trace."""

    def __init__(self, name: str, trace: Trace) -> None:
        super().__init__(name)
        self._trace = trace

    def tell(self, at: Instant, event: Event, effects: Sequence[Effect]) -> None:
        """Remember the step, and put it into the digest."""
        super().tell(at, event, effects)
        self._trace.step(self.name, at, event, effects, self.state)


class StoriesTraced:
    """While entered, every `Story` of the process tells its steps to `trace` too.

    Tier 2 runs the real roles, which make their own stories. A hook in `Story` itself would cost each step in
    production; replacing the method for the time of a simulation costs nothing there.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._tell: Any = None

    def __enter__(self) -> None:
        """Begin."""
        tell, trace = Story.tell, self._trace
        self._tell = tell

        def traced(self: Story, at: Instant, event: Event, effects: Sequence[Effect]) -> None:
            tell(self, at, event, effects)
            trace.step(self.name, at, event, effects, self.state)

        Story.tell = traced  # type: ignore[method-assign]  # For the time of one simulated run only.

    def __exit__(self, *_: object) -> None:
        """End."""
        Story.tell = self._tell  # type: ignore[method-assign]  # What it was before.
