"""Loop: the event loop of tier 2, which is asyncio on virtual time. Real coroutines run on it unchanged.

Each call belongs to the life that scheduled it. Calls of one life keep asyncio's order. Calls of different
lives are ordered only by the network's delays, because lives share no memory. There are no free threads:
`run_in_executor` runs inline, later. Tasks and futures hash by a number of their loop; by default Python 3.11
hashes them by address, which changes the order of sets, and so of `asyncio.wait`, from run to run. The
garbage collector runs only between runs.
    task: as asyncio's; at the end of its life its coroutine is closed without acting, and never resumed.
Source: simulation.2.
"""

import asyncio
import os
import random
import socket
import sys
import threading
import time
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from typing import Any, Final, NoReturn, TypeVar

from simulator.moments import Gone
from simulator.threads import Threads
from simulator.world import Call, Life, World

T = TypeVar("T")
SECOND: Final = 1_000_000_000


class SimFuture(asyncio.Future[T]):
    """A future that hashes by number."""

    def __init__(self, *, loop: "SimLoop") -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        """The number."""
        return self._number

    def __eq__(self, other: object) -> bool:
        """Identity."""
        return self is other


class SimTask(asyncio.Task[T]):
    """A task that hashes by number."""

    def __init__(
        self, work: Coroutine[Any, Any, T], *, loop: "SimLoop", name: str | None, context: Context | None
    ) -> None:
        self._number = loop.next_number()
        super().__init__(work, loop=loop, name=name or f"task-{self._number}", context=context)

    def __hash__(self) -> int:
        """The number."""
        return self._number

    def __eq__(self, other: object) -> bool:
        """Identity."""
        return self is other


class SimLoop(asyncio.AbstractEventLoop):
    """asyncio's loop, as far as our code uses it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._number = 0
        self._tasks: dict[Life, dict[SimTask[Any], None]] = {}
        self.threads = Threads()

    def next_number(self) -> int:
        """A number for a task or future."""
        self._number += 1
        return self._number

    # -- time and calls

    def time(self) -> float:
        """Seconds of the current life's monotonic clock."""
        life = self.world.current
        return (self.world.now if life is None or life.clock is None else life.clock.now()) / SECOND

    def call_soon(  # type: ignore[override]  # `Call` is our `Handle`.
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - any callback.
        context: Context | None = None,
    ) -> Call:
        """Call after all that is ready now."""
        call = Call(self.world.current, callback, args, context=context or copy_context())
        self.world.push_ready(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # There is one thread.

    def call_at(  # type: ignore[override]  # `Call` is our `TimerHandle`.
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - any callback.
        context: Context | None = None,
    ) -> Call:
        """Call when the current life's clock shows `when` seconds."""
        life = self.world.current
        instant = -int(-when * SECOND // 1)  # Rounded up: never early.
        at = instant if life is None or life.clock is None else life.clock.world_time(instant)
        call = Call(life, self._fire, (callback, args), context=context or copy_context())
        self.world.push(at, call)
        return call

    def call_later(  # type: ignore[override]  # As above.
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - any callback.
        context: Context | None = None,
    ) -> Call:
        """Call after `delay` seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _fire(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.world.trace.counts.timers += 1
        callback(*args)

    # -- futures and tasks

    def create_future(self) -> SimFuture[Any]:
        """A future of this loop."""
        return SimFuture(loop=self)

    def create_task(  # type: ignore[override]  # Coroutines only: nothing of ours makes tasks of generators.
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> SimTask[T]:
        """Start a task of the current life."""
        life = self.world.current
        if life is None:
            return SimTask(coro, loop=self, name=name, context=context)
        if life.is_dead:
            coro.close()
            raise Gone(repr(life))
        task = SimTask(coro, loop=self, name=name, context=context)
        tasks = self._tasks.get(life)
        if tasks is None:
            tasks = self._tasks[life] = {}
            life.on_end.append(lambda: self._close(life))
        tasks[task] = None
        task.add_done_callback(lambda _: tasks.pop(task, None))
        return task

    def run_in_executor(  # type: ignore[override]  # A future either way.
        self,
        executor: object,
        func: Callable[..., T],
        *args: Any,  # noqa: ANN401 - any function.
    ) -> "asyncio.Future[T]":
        """Do blocking work inline, a little later, as if in a thread."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits.
                if not future.done():
                    future.set_exception(error)
                return
            if not future.done():
                future.set_result(result)

        self.call_later(20e-6, work)
        return future

    def _close(self, life: Life) -> None:
        """Close what ran in a life that has ended: its `finally` blocks run, and reach nothing."""
        tasks = self._tasks.pop(life, {})
        before, self.world.current = self.world.current, life
        for task in list(tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - meant.
            with suppress(BaseException):  # The one that is running now unwinds by itself.
                task.get_coro().close()
        self.world.current = before

    # -- what asyncio asks of a loop

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """While anything of it can ask."""
        return True

    def is_closed(self) -> bool:
        """Never."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody awaited: ours are reported by `Scope`; the rest fails the run."""
        error = context.get("exception")
        life = self.world.current
        if isinstance(error, AssertionError) and life is not None and not life.is_dead:
            self.world.fail(error)

    def get_task_factory(self) -> None:
        """None."""
        return

    def _timer_handle_cancelled(self, handle: object) -> None:
        """Cancelled calls stay in the heap."""

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Be the running loop, in a process without clocks, entropy, threads and sockets of its own."""
        hooks = sys.get_asyncgen_hooks()
        events._set_running_loop(self)  # noqa: SLF001 - as every loop does.
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finalize)
        try:
            with _no_real_world(self):
                yield
        finally:
            self.threads.close()
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(None)  # noqa: SLF001

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        life = self.world.current
        if life is not None and not life.is_dead:
            self.create_task(generator.aclose())


def make_loop(world: World) -> SimLoop:
    """A loop over `world`."""
    return SimLoop(world)  # type: ignore[abstract]  # What our code never asks of a loop is left out.


def run_alone(work: Callable[[SimLoop, Life], Coroutine[Any, Any, T]], world: World, life: Life) -> T:
    """Run one coroutine to its end, in `life`: for tests of single ports.

    Raises:
        AssertionError: it did not end in an hour of virtual time.
    """
    loop = make_loop(world)
    with loop.running():
        tasks: list[SimTask[T]] = []
        world.soon(life, lambda: tasks.append(loop.create_task(work(loop, life))))
        world.run(3_600 * SECOND, lambda: bool(tasks) and tasks[0].done())
        if world.failure is not None:
            raise world.failure
        assert tasks, "it never began"
        assert tasks[0].done(), "it waits for something that never comes"
        return tasks[0].result()


@contextmanager
def _no_real_world(loop: SimLoop) -> Generator[None, None, None]:
    """Clocks that are asked behind the ports' back show virtual time; the rest refuses by name.

    Threads that were there before, such as those of a library, are no part of the simulation, and go on.
    """
    simulating = loop.threads.idents
    simulating[threading.get_ident()] = None

    def refused(name: str) -> Callable[..., NoReturn]:
        def refuse(*_: object, **__: object) -> NoReturn:
            raise AssertionError(f"{name} in a simulation: use the port")

        return refuse

    def here_only(stand_in: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def chosen(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the real one takes.
            return (stand_in if threading.get_ident() in simulating else real)(*arguments, **named)

        return chosen

    replaced: list[tuple[Any, str, Any]] = [
        (time, "time", lambda: 1_750_000_000 + loop.world.now / SECOND),
        (time, "time_ns", lambda: 1_750_000_000 * SECOND + loop.world.now),
        (time, "monotonic", loop.time),
        (time, "monotonic_ns", lambda: int(loop.time() * SECOND)),
        (time, "perf_counter", loop.time),
        (time, "perf_counter_ns", lambda: int(loop.time() * SECOND)),
        (time, "sleep", refused("time.sleep")),
        (os, "urandom", refused("os.urandom")),
        (random, "random", refused("random.random")),
        (random, "randrange", refused("random.randrange")),
        (threading.Thread, "start", refused("a thread")),
        (socket.socket, "connect", refused("a socket")),
        (socket.socket, "bind", refused("a socket")),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for (owner, name, stand_in), (_, _, real) in zip(replaced, before, strict=True):
            setattr(owner, name, here_only(stand_in, real))
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)
