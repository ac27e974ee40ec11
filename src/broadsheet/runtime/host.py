"""Host: it gives one machine its events, performs its effects in order, and sets its one timer (code.1).

`deliver` is never re-entrant: events that are caused by effects wait in a queue, and are stepped after the
present one. The host knows no domain: it has only a table from effect type to performer. Performers do the
batching (`runtime.turn`). `now` is read once for each delivery.

If `step` raises a `ProtocolError`, the event was illegal, and nothing changed. The host finishes the other
events, sets the timer, and raises the error to the caller of `deliver`, which drops the stream of the event.
An illegal event that our own effects caused is a bug of ours. So is any other exception of `step`,
`deadline`, `check` or a performer: then the host closes, and `crash` ends the node. Source: ADR 0010.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from broadsheet.base.machine import Effect, Event, Machine, Tick
from broadsheet.base.time import Duration, Instant
from broadsheet.errors import ProtocolError
from broadsheet.observe.story import Story
from broadsheet.ports import Time, Timer, Timers
from broadsheet.runtime.checking import checker

E = TypeVar("E", bound=Event)
F = TypeVar("F", bound=Effect)

Performers = Mapping[type[Effect], Callable[[Any], None]]
"""A performer for each type of effect. It never raises: failures of the world come back as events."""

INBOX_MAX: Final = 1_000_000
"""Events that one delivery may cause; with more, the host assumes an endless loop."""

TICKS_MAX: Final = 1_000
"""Ticks in a row that may leave the deadline unchanged: a machine may work in slices, but not for ever."""


class Host(Generic[E, F]):
    """One machine on one loop."""

    def __init__(
        self,
        machine: Machine[E | Tick, F],
        performers: Performers,
        *,
        time: Time,
        timers: Timers,
        crash: Callable[[BaseException, Story], None],
        story: Story,
    ) -> None:
        """Drive `machine`.

        Args:
            performers: one for every effect that the machine may return.
            crash: ends the node after a bug of ours; it may return only if it has stopped the loop.
        """
        self.machine = machine
        self.story = story
        self._performers = performers
        self._time, self._timers, self._crash = time, timers, crash
        self._check = checker(machine.check)
        self._inbox: deque[E | Tick] = deque()
        self._is_delivering = False
        self._is_closed = False
        self._timer: Timer | None = None
        self._armed_at: Instant | None = None
        self._ticked_at: Instant | None = None
        self._ticks = 0
        if hasattr(machine, "state"):
            story.watch(partial(attrgetter("state"), machine))

    def deliver(self, event: E) -> None:
        """Step the machine with `event`, now or, from within a step, right after it.

        Raises:
            ProtocolError: the event is illegal. The machine is as it was.
        """
        if self._is_closed:
            return  # A performer answered after shutdown.
        if self._is_delivering:
            self._inbox.append(event)
            return
        self._run((event,))

    def start(self) -> None:
        """Arm the timer for the machine's first deadline."""
        if not self._is_closed:
            self._run(())

    def close(self) -> None:
        """Deliver nothing more. The machine stays readable; idempotent."""
        self._is_closed = True
        self._inbox.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self, events: Iterable[E | Tick]) -> None:
        now = self._time.now()
        illegal: ProtocolError | None = None
        self._is_delivering = True
        try:
            for event in events:
                illegal = self._step(event, now)
                if illegal is not None or self._is_closed:
                    break
            if self._inbox:
                self._drain(now)
            if not self._is_closed:
                self._arm(now)
        except Exception as error:  # noqa: BLE001 - our bug, and the machine may be half changed.
            self.close()
            self._crash(error, self.story)
            return
        finally:
            self._is_delivering = False
        if illegal is not None:
            raise illegal

    def _drain(self, now: Instant) -> None:
        """Step the machine with the events that its effects caused."""
        for _ in range(INBOX_MAX):
            if not self._inbox:
                return
            event = self._inbox.popleft()
            if (illegal := self._step(event, now)) is not None:
                raise AssertionError(
                    f"{self.story.name}: our own effects caused an illegal event"
                ) from illegal
        raise AssertionError(f"{self.story.name}: effects cause events without end")

    def _step(self, event: E | Tick, now: Instant) -> ProtocolError | None:
        try:
            effects = self.machine.step(event, now)
        except ProtocolError as illegal:
            self.story.refuse(now, event, illegal)
            return illegal
        self.story.tell(now, event, effects)
        if self._check is not None:
            self._check()
        performers = self._performers
        for effect in effects:
            performers[type(effect)](effect)
        return None

    def _arm(self, now: Instant) -> None:
        """Set the host's one timer to the machine's deadline, unless it fires earlier anyway."""
        deadline = self.machine.deadline()
        if deadline is None or (self._armed_at is not None and self._armed_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = deadline
        self._timer = self._timers.call_after(Duration(max(0, deadline - now)), self._fire)

    def _fire(self) -> None:
        self._timer = self._armed_at = None
        if not self._is_closed:
            self._run(self._due())

    def _due(self) -> Iterable[E | Tick]:
        """A tick, if the machine's deadline came and has not moved. A generator, so that `_run` guards it."""
        deadline = self.machine.deadline()
        if deadline is None or deadline > self._time.now():
            return
        self._ticks = self._ticks + 1 if deadline == self._ticked_at else 0
        self._ticked_at = deadline
        assert self._ticks < TICKS_MAX, (
            f"{self.story.name}: {TICKS_MAX} ticks left the deadline at {deadline}"
        )
        yield Tick()
