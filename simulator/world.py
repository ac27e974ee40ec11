"""The world: one clock, one heap, and the lives that act on it. Both tiers run on it.

Times are integer nanoseconds from 0. A *life* is one boot of one node or client: whatever it scheduled dies
with it, so that nothing of a killed process acts again; what the world scheduled (a delivery, a fault) has
no life. A paused life's calls wait, and come at once when it resumes.
    life: RUNNING <--pause/resume--> PAUSED; either --end--> DEAD, for good.
It does not know networks, disks or faults: they schedule here. Ties are broken by order of scheduling.
"""

from collections import deque
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from simulator.moments import Gone, Moments
from simulator.trace import Trace
from simulator.violation import Violation

EVENTS_MAX: Final = 50_000_000
"""Calls in one run before we call it endless."""
STILL_MAX: Final = 500_000
"""Calls at one instant before we call it endless: each has scheduled another, and time stands still."""


class Call:
    """A scheduled call; also the `Timer`, or the loop's handle, that cancels it."""

    __slots__ = ("args", "callback", "context", "life")

    def __init__(
        self,
        life: "Life | None",
        callback: Callable[..., object],
        args: tuple[Any, ...],
        *,
        context: Context | None = None,
    ) -> None:
        self.life, self.args, self.context = life, args, context
        self.callback: Callable[..., object] | None = callback

    def cancel(self) -> None:
        """Make sure that it does not come."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.callback is None


class Clock(Protocol):
    """What a life's loop reads and arms its timers by, in nanoseconds."""

    def now(self) -> int:
        """The machine's monotonic clock."""
        ...

    def world_time(self, instant: int) -> int:
        """When that clock will show `instant`."""
        ...


class Life:
    """One boot of one node or client."""

    __slots__ = ("backlog", "boot", "clock", "is_dead", "is_paused", "is_silent", "node", "on_end")

    def __init__(self, node: str, boot: int, clock: Clock | None = None) -> None:
        self.node, self.boot, self.clock = node, boot, clock
        self.is_dead = self.is_paused = False
        self.is_silent = False
        """It ended by loss of power: its kernel told nobody."""
        self.backlog: list[Call] = []
        self.on_end: list[Callable[[], None]] = []
        """Called when it ends, in order, by the world: what the kernel does for a dead process."""

    def __repr__(self) -> str:
        """Node and boot."""
        return f"{self.node}#{self.boot}"


class World:
    """Time and order."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self.seed, self.trace = seed, trace
        self.now = 0
        self.current: Life | None = None
        """Whose call is running; what it schedules is its own."""
        self.failure: BaseException | None = None
        """Why the run must stop: an assertion of a machine, or a violation."""
        self._heap: list[tuple[int, int, Call]] = []
        self._ready: deque[Call] = deque()
        self._sequence = 0
        trace.now = lambda: self.now
        self.moments = Moments(self)
        """What faults wait for."""
        trace.moments = self.moments

    def soon(self, life: Life | None, callback: Callable[..., object], *args: Any) -> Call:  # noqa: ANN401
        """Call after all that is ready now."""
        call = Call(life, callback, args)
        self._ready.append(call)
        return call

    def at(
        self,
        when: int,
        life: Life | None,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
    ) -> Call:
        """Call at world time `when`, or as soon as that has passed."""
        call = Call(life, callback, args)
        self._sequence += 1
        heappush(self._heap, (max(self.now, when), self._sequence, call))
        return call

    def push(self, when: int, call: Call) -> None:
        """Schedule a call that exists."""
        self._sequence += 1
        heappush(self._heap, (max(when, self.now), self._sequence, call))

    def push_ready(self, call: Call) -> None:
        """Append a call to what is ready."""
        self._ready.append(call)

    def pause(self, life: Life) -> None:
        """Hold its calls."""
        life.is_paused = True

    def resume(self, life: Life) -> None:
        """Let its held calls come, at once and in order."""
        life.is_paused = False
        self._ready.extend(life.backlog)
        life.backlog.clear()

    def end(self, life: Life) -> None:
        """Nothing of `life` acts any more. Idempotent."""
        if life.is_dead:
            return
        life.is_dead = True
        life.backlog.clear()
        for callback in life.on_end:
            callback()

    def act_as(self, life: Life, callback: Callable[..., object], *args: Any) -> None:  # noqa: ANN401
        """Call at once, as a call of `life`."""
        before, self.current = self.current, life
        try:
            callback(*args)
        except Gone:
            pass  # It died in this very call.
        finally:
            self.current = before

    def fail(self, error: BaseException) -> None:
        """Stop the run: `error` is what it found. The first one counts."""
        self.failure = self.failure or error

    def _stands_still(self, call: Call) -> Exception:
        """The verdict on a loop of calls that never lets time pass."""
        what = getattr(call.callback, "__qualname__", repr(call.callback))
        return Violation(
            f"time stands still at {self.now / 1e9:.6f} s after {STILL_MAX} calls: the next is {what} of"
            f" {call.life!r}"
        )

    def run(  # noqa: C901, PLR0912 - the one loop; a call per event would cost a tenth.
        self, until: int, is_done: Callable[[], bool] = lambda: False
    ) -> None:
        """Make time pass until `until`, a failure, or `is_done()` (asked once a virtual millisecond)."""
        heap, ready = self._heap, self._ready
        ask_at, still_since = self.now, 0
        for number in range(EVENTS_MAX):
            if ready:
                call = ready.popleft()
                if number - still_since > STILL_MAX:
                    raise self._stands_still(call)
            elif heap and heap[0][0] <= until:
                when, _, call = heappop(heap)
                if when > self.now:
                    self.now, still_since = when, number
                if when >= ask_at:
                    ask_at = when + 1_000_000
                    if is_done():
                        heappush(heap, (when, 0, call))
                        return
            else:
                self.now = until
                return
            callback = call.callback
            if callback is None:
                continue
            life = call.life
            if life is not None:
                if life.is_dead:
                    continue
                if life.is_paused:
                    life.backlog.append(call)
                    continue
            self.current = life
            try:
                if call.context is None:
                    callback(*call.args)
                else:
                    call.context.run(callback, *call.args)
            except Gone:
                pass  # It died in this very call.
            finally:
                self.current = None
            if self.failure is not None:
                return
        raise AssertionError(
            f"more than {EVENTS_MAX} calls before {until} ns: something schedules without end"
        )
