"""Workers: threads that do blocking work for a loop, with one queue and a fixed number of threads.

A cancelled caller still waits until its work has ended. The work borrows the caller's buffers and
descriptors, and the caller may use them again as soon as it goes on. The callers bound the work that waits in
the queue (one batch per log, one request per stream); this module does not.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Lent(asyncio.Future[T]):
    """A future that cannot be cancelled: it is done when the work has ended.

    A task that is cancelled while it waits for this future goes on waiting, and is cancelled when the work
    has ended. `asyncio.shield` would do the same, but costs one more future and one more turn of the loop.
    """

    def cancel(self, msg: object = None) -> bool:
        """Refuse to be cancelled."""
        return False


class Workers:
    """`count` daemon threads that do blocking work, started with the first."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._is_closed = False

    async def do(self, work: Callable[[], T]) -> T:
        """Call `work` on one of the worker threads, and return its result or raise its exception."""
        assert not self._is_closed, f"workers {self.name} are closed"
        if len(self._threads) < self.count:
            self._start_one()
        loop = asyncio.get_running_loop()
        done: Lent[T] = Lent(loop=loop)
        self._queue.put((work, loop, done))
        try:
            return await done
        except asyncio.CancelledError:
            if done.done():
                done.exception()  # Retrieved, so that the loop does not report it: the caller is gone.
            raise

    def close(self) -> None:
        """End the threads when all queued work is done. Idempotent; does not wait for them."""
        if not self._is_closed:
            self._is_closed = True
            for _ in self._threads:
                self._queue.put(None)

    def _start_one(self) -> None:
        thread = Thread(target=self._run, name=f"{self.name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            work, loop, done = job
            try:
                result, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - handed to the caller whole.
                result, error = None, raised
            with suppress(
                RuntimeError
            ):  # Its loop is closed: nobody waits. Another loop may still send work.
                loop.call_soon_threadsafe(_settle, done, result, error)
            del job, work, done, result, error  # Keep no buffer alive while idle.


def _settle(done: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    elif isinstance(error, StopIteration):
        done.set_exception(RuntimeError(f"work raised {error!r}"))  # A future refuses to carry this one.
    else:
        done.set_exception(error)
