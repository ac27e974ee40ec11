"""The host: gives one machine its events, performs its effects in order, and arms its one timer (STYLE 2).

`deliver` is never re-entrant: effects that produce events at once enqueue them. The host stands below what it
drives; a table from effect type to performer is all that it knows. Batching is the performers'
(`runtime.turn`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from broadsheet.base.machine import Effect, Event, Machine, Tick
from broadsheet.base.time import Duration, Instant
from broadsheet.observe.story import Story
from broadsheet.ports import Time, Timer, Timers

E = TypeVar("E", bound=Event)
F = TypeVar("F", bound=Effect)

Performers = Mapping[type[Effect], Callable[[Any], None]]
"""How each kind of effect is performed. A performer never raises for what the world does: it reports it."""

INBOX_MAX: Final = 1_000_000
"""Events that one delivery may cause before we call it an endless loop."""


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
        check: bool = False,
    ) -> None:
        """Drive `machine`.

        Args:
            performers: one for every effect that the machine may return.
            crash: ends the node on an assertion; it may return only where it stopped the loop.
            check: call `machine.check()` after each step (simulator and tests).
        """
        self.machine = machine
        self.story = story
        self._performers = performers
        self._time, self._timers, self._crash, self._check = time, timers, crash, check
        self._inbox: deque[E | Tick] = deque()
        self._is_delivering = False
        self._is_closed = False
        self._timer: Timer | None = None
        self._armed_at: Instant | None = None

    def deliver(self, event: E) -> None:
        """Step the machine with `event`, now or, from within a step, right after it."""
        if self._is_closed:
            return  # A performer answered after shutdown: nobody is there to hear it.
        if self._is_delivering:
            self._inbox.append(event)
            return
        self._run((event,))

    def deliver_all(self, events: Iterable[E]) -> None:
        """Step the machine with the events of one read, all at one instant."""
        if self._is_closed:
            return
        if self._is_delivering:
            self._inbox.extend(events)
            return
        self._run(events)

    def start(self) -> None:
        """Arm the timer for the machine's first deadline."""
        self._arm(self._time.now())

    def close(self) -> None:
        """Deliver nothing more. The machine stays readable; idempotent."""
        self._is_closed = True
        self._inbox.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self, events: Iterable[E | Tick]) -> None:
        now = self._time.now()
        self._is_delivering = True
        try:
            for event in events:
                self._step(event, now)
            for _ in range(INBOX_MAX):
                if not self._inbox:
                    break
                self._step(self._inbox.popleft(), now)
            else:
                raise AssertionError(f"{self.story.name}: effects cause events without end")
        except AssertionError as error:
            self.close()
            self._crash(error, self.story)
            return
        finally:
            self._is_delivering = False
        self._arm(now)

    def _step(self, event: E | Tick, now: Instant) -> None:
        effects = self.machine.step(event, now)
        self.story.tell(now, event, effects)
        if self._check:
            self.machine.check()
        performers = self._performers
        for effect in effects:
            performers[type(effect)](effect)

    def _arm(self, now: Instant) -> None:
        """Have one timer at or before the deadline. A later deadline waits for the armed one to fire."""
        deadline = None if self._is_closed else self.machine.deadline()
        if deadline is None or (self._armed_at is not None and self._armed_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = deadline
        self._timer = self._timers.call_after(Duration(max(0, deadline - now)), self._fire)

    def _fire(self) -> None:
        self._timer = self._armed_at = None
        if self._is_closed:
            return
        now = self._time.now()
        deadline = self.machine.deadline()
        if deadline is not None and deadline <= now:
            self._run((Tick(),))
        else:
            self._arm(now)
