"""A small machine for tests of the host: it answers what it has made durable.

Requests are numbered from 0. Holding is cumulative: `Held(n)` is the disk's word that everything through
`n` is there. OPEN --Fenced--> FENCED, for good. A request that waits longer than `PATIENCE` is answered
"unknown".
"""

from enum import Enum
from typing import Final, assert_never

from broadsheet.base.machine import Effect, Event, Tick
from broadsheet.base.time import MILLISECOND, Duration, Instant, after
from broadsheet.errors import RemoteProtocolError

PATIENCE: Final = Duration(50 * MILLISECOND)


class State(Enum):
    """Whether this echo still takes requests."""

    OPEN = "open"
    FENCED = "fenced"


class Asked(Event, frozen=True):
    """Somebody asked; requests come in order."""

    number: int
    content: bytes


class Held(Event, frozen=True):
    """Everything through `number` is durable."""

    number: int


class Fenced(Event, frozen=True):
    """Another has taken over."""


class Persist(Effect, frozen=True):
    """Make it durable."""

    number: int
    content: bytes


class Answer(Effect, frozen=True):
    """Answer one request."""

    number: int
    content: bytes


class Forget(Effect, frozen=True):
    """Answer "unknown" to everything from `first` on."""

    first: int


Input = Asked | Held | Fenced | Tick
Output = Persist | Answer | Forget


class Echo:
    """Answers each request once it is durable, in order."""

    def __init__(self) -> None:
        self.state = State.OPEN
        self.held = -1
        self.waiting: dict[int, tuple[bytes, Instant]] = {}
        self.next = 0

    def step(self, event: Input, now: Instant) -> list[Output]:
        """Apply one event.

        Raises:
            RemoteProtocolError: a request out of order, or a sync of what was never written. Nothing changed.
        """
        match event:
            case Asked():
                return self._on_asked(event, now)
            case Held():
                return self._on_held(event)
            case Fenced():
                return self._become_fenced()
            case Tick():
                return self._on_tick(now)
            case _:
                assert_never(event)

    def deadline(self) -> Instant | None:
        """When the oldest request has waited long enough."""
        return next((after(since, PATIENCE) for _, since in self.waiting.values()), None)

    def check(self) -> None:
        """Assert the invariants."""
        assert list(self.waiting) == sorted(self.waiting), "answers leave in order"
        assert all(self.held < number < self.next for number in self.waiting), "only the undecided wait"
        assert self.state is State.OPEN or not self.waiting, "a fenced echo owes nothing"

    def _on_asked(self, event: Asked, now: Instant) -> list[Output]:
        if event.number != self.next:
            raise RemoteProtocolError(f"request {event.number} instead of {self.next}")
        if self.state is State.FENCED:
            return [Forget(first=event.number)]
        self.next += 1
        self.waiting[event.number] = (event.content, now)
        return [Persist(number=event.number, content=event.content)]

    def _on_held(self, event: Held) -> list[Output]:
        if event.number >= self.next:
            raise RemoteProtocolError(f"{event.number} is held, but only {self.next} were asked")
        self.held = max(self.held, event.number)  # Repeats may be stale.
        done = [number for number in self.waiting if number <= self.held]
        return [Answer(number=number, content=self.waiting.pop(number)[0]) for number in done]

    def _become_fenced(self) -> list[Output]:
        assert self.state is State.OPEN, "a fence falls once"
        self.state = State.FENCED
        return self._forget()

    def _on_tick(self, now: Instant) -> list[Output]:
        deadline = self.deadline()
        return [] if deadline is None or deadline > now else self._forget()

    def _forget(self) -> list[Output]:
        first = next(iter(self.waiting), self.next)
        self.waiting.clear()
        self.held = self.next - 1
        return [Forget(first=first)]
