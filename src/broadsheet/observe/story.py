"""The story of a machine: its last steps, for whoever asks why it is where it is (STYLE 2.11)."""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from broadsheet.base.machine import Effect, Event
from broadsheet.base.time import Instant

STORY_STEPS: Final = 256


class Step(NamedTuple):
    """One step, as it happened."""

    at: Instant
    event: Event
    effects: Sequence[Effect]


class Story:
    """A ring of the last steps. Events keep keys, counts and offsets, never views of slabs."""

    def __init__(self, name: str, *, steps_max: int = STORY_STEPS) -> None:
        self.name = name
        self._steps: deque[Step] = deque(maxlen=steps_max)

    def tell(self, at: Instant, event: Event, effects: Sequence[Effect]) -> None:
        """Remember one step, and forget the oldest where the ring is full."""
        self._steps.append(Step(at, event, effects))

    def lines(self) -> list[str]:
        """The steps as text, oldest first."""
        return [f"{s.at} {s.event!r} -> {list(s.effects)!r}" for s in self._steps]
