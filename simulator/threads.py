"""Threads: blocking work that goes on beside the loop, one system call after the other.

A thread runs only while the loop waits for it, and gives the turn back before some of its calls of the disk:
so work in threads interleaves with the loop, and with itself, in an order that the seed alone decides. Times
are nanoseconds of the world.
    thread: IDLE --begin--> RUNNING <--> PARKED; RUNNING --its work ends--> IDLE. When its life ends, `Gone`
    is raised where it is parked, and its `finally` blocks reach nothing.
It does not simulate switches between two calls of the disk, where Python code of a thread runs alone.
Source: simulation.1.
"""

import _thread
from collections.abc import Callable
from typing import Any, Final

from simulator.entropy import Draws
from simulator.moments import Gone

CALLS_MAX: Final = 24
"""Calls of the disk until a thread gives the turn back, at most."""
PARKED_NS: Final = 60_000


class Thread:
    """One thread of a process, which does one piece of work at a time."""

    def __init__(self, threads: "Threads") -> None:
        self._threads = threads
        self._resumed, self._yielded = _thread.allocate_lock(), _thread.allocate_lock()
        self._resumed.acquire()
        self._yielded.acquire()
        self._work: Callable[[], Any] | None = None
        self._draws = Draws("threads")
        self._calls_left = 0
        self._must_end = False
        self.parked_ns: int | None = None
        """How long it waits before it goes on; None: its work has ended."""
        self.result: object = None
        self.error: BaseException | None = None
        _thread.start_new_thread(self._run, ())

    def begin(self, work: Callable[[], Any], draws: Draws) -> None:
        """Take `work`; `step` must follow."""
        self._work, self._draws, self._must_end = work, draws, False
        self.parked_ns, self.result, self.error = 0, None, None
        self._calls_left = 1 + draws.below(CALLS_MAX)

    def step(self) -> None:
        """Let it run until it parks, or its work has ended."""
        before, self._threads.running = self._threads.running, self
        self._resumed.release()
        self._yielded.acquire()
        self._threads.running = before

    def calls(self) -> None:
        """Called in the thread before each call of the disk: it may park.

        Raises:
            Gone: its life has ended meanwhile.
        """
        self._calls_left -= 1
        if self._calls_left > 0 or self._must_end:
            return
        self._calls_left = 1 + self._draws.below(CALLS_MAX)
        self._park(self._draws.below(PARKED_NS))

    def pause(self, length: int) -> bool:
        """Called in the thread: it sleeps. False: it unwinds.

        Raises:
            Gone: its life has ended meanwhile.
        """
        if self._must_end:
            return False
        self._park(length)
        return True

    def _park(self, length: int) -> None:
        self.parked_ns = length
        self._yielded.release()
        self._resumed.acquire()
        if self._must_end:
            raise Gone("the process of this thread has ended")

    def end(self) -> None:
        """Its life has ended: it unwinds, unless it is the one that runs now, which finds out by itself."""
        self._must_end = True
        if self._threads.running is not self and self.parked_ns is not None:
            self.step()

    def leave(self) -> None:
        """End the idle thread itself. When this returns it holds nothing of its world."""
        self._work = self.result = self.error = None
        self._resumed.release()
        self._yielded.acquire()

    def _run(self) -> None:
        self._threads.idents[_thread.get_ident()] = None
        while True:
            self._resumed.acquire()
            if self._work is None:
                self._yielded.release()
                return
            try:
                self.result = self._work()
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits.
                self.error = error
            self._work, self.parked_ns = None, None
            self._yielded.release()


class Threads:
    """The threads of one loop."""

    def __init__(self) -> None:
        self.running: Thread | None = None
        """Whose turn it is; None: the loop's."""
        self.idents: dict[int, None] = {}
        """Of all threads that are part of the simulation."""
        self._idle: list[Thread] = []
        self._busy: dict[Thread, None] = {}

    def take(self) -> Thread:
        """A thread that does nothing."""
        thread = self._idle.pop() if self._idle else Thread(self)
        self._busy[thread] = None
        return thread

    def give(self, thread: Thread) -> None:
        """Its work has ended."""
        if thread in self._busy:
            del self._busy[thread]
            self._idle.append(thread)

    def close(self) -> None:
        """End them all."""
        for thread in list(self._busy):
            thread.end()
            self.give(thread)
        for thread in self._idle:
            thread.leave()
        self._idle.clear()
