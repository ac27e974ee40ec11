"""Spool files of which only some are open: what rests was synced, and is there again when it is used."""

import asyncio
import errno
import threading
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import pytest

from broadsheet.base.types import Buffer
from broadsheet.journal.opening_turns import OpeningTurns
from broadsheet.journal.spool_disk import GROWS_AFTER, SpoolDisk, SpoolHandle
from simulator.disk import SimDisk


class Narrow(SimDisk):
    """A disk that counts open files, and refuses more of them than it has descriptors."""

    descriptors = 1_000
    open_count = 0

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> Any:
        if self.open_count >= self.descriptors:
            raise OSError(errno.EMFILE, "too many open files", name)
        file = super().open(name, create=create, exclusive=exclusive)
        self.open_count += 1
        close, is_closed = file.close, False

        def closes() -> None:
            nonlocal is_closed
            self.open_count -= not is_closed
            is_closed = True
            close()

        file.close = closes  # type: ignore[method-assign]  # It counts as well.
        return file


class Bench:
    """A pool over a disk with few descriptors."""

    def __init__(self, open_max: int = 3, busy_max: int = 6) -> None:
        self.disk = Narrow()
        self.disk.make_dir("s")
        self.tasks: list[asyncio.Task[None]] = []
        self.crashes: list[BaseException] = []
        self.pool = SpoolDisk(
            self.disk, open_max=open_max, busy_max=busy_max, spawn=self._spawn, crash=self.crashes.append
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def make(self, number: int) -> SpoolHandle:
        """A file with content of its own."""
        handle = self.pool.open(f"s/{number}", create=True)
        handle.write_at(0, (b"%04d" % number,))
        return handle

    async def settle(self) -> None:
        """Return once nothing is synced in the background any more."""
        while self.tasks:
            await asyncio.gather(*self.tasks)
            self.tasks = [task for task in self.tasks if not task.done()]


async def test_idle_files_rest_and_are_there_again_when_they_are_used() -> None:
    """Ten thousand journals cost ten thousand descriptors."""
    bench = Bench()
    handles = []
    for number in range(40):
        handles.append(bench.make(number))
        await bench.settle()
        assert bench.pool.open_count == bench.disk.open_count <= bench.pool.open_max + 1
    for number, handle in enumerate(handles):
        assert handle.read_at(0, 4) == b"%04d" % number
        handle.write_at(4, (b"more",))
        await bench.settle()
        assert handle.size() == 8
    assert bench.disk.open_count <= bench.pool.open_max + 1
    for handle in handles:
        handle.close()
    assert (bench.pool.open_count, bench.disk.open_count) == (0, 0)
    assert not bench.crashes


async def test_a_file_rests_only_once_all_that_was_written_is_synced() -> None:
    """A write error that the kernel meets while nobody has the file open may be told to nobody (W5)."""
    bench = Bench(open_max=1)
    handles = [bench.make(number) for number in range(5)]
    assert bench.disk.open_count == 5, "none is synced yet"
    assert not any(handle.rest() for handle in handles)
    await bench.settle()
    assert bench.disk.open_count == 1
    unsynced = [name for name, inode in bench.disk.state.files.items() if inode.dirty]
    assert len(unsynced) <= 1


async def test_a_file_that_is_opened_looks_at_none_that_cannot_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that closes a fragment with each append has a thousand: each opening walked them 4 times."""
    looks, opened = list[SpoolHandle](), list[str]()
    rest, open_ = SpoolHandle.rest, Narrow.open

    def looked_at(handle: SpoolHandle) -> bool:
        looks.append(handle)
        return rest(handle)

    def counted(disk: Narrow, name: str, **how: bool) -> Any:
        opened.append(name)
        return open_(disk, name, **how)

    bench = Bench(open_max=3, busy_max=1_000)
    for number in range(50):
        bench.make(number)
    monkeypatch.setattr(SpoolHandle, "rest", looked_at)
    monkeypatch.setattr(Narrow, "open", counted)
    new = bench.pool.open("s/new", create=True)
    assert new.size() == 0
    assert opened == ["s/new"], "the only one that is synced did not rest before its first use"
    assert looks == [new]

    await bench.settle()
    looks.clear()
    bench.pool.open("s/newer", create=True)
    assert len(looks) <= 2
    for task in bench.tasks:
        task.cancel()


async def test_a_write_that_comes_during_a_sync_is_not_taken_for_synced() -> None:
    """The sync covers what came before it."""
    bench = Bench()
    handle = bench.make(1)
    syncing = asyncio.ensure_future(handle.flush())
    await asyncio.sleep(0)
    handle.write_at(4, (b"late",))
    await syncing
    assert handle.is_unsynced
    await handle.flush()
    assert not handle.is_unsynced


async def test_a_sync_that_ends_during_a_write_does_not_count_for_it() -> None:
    """The next checkpoint skipped its own sync, and trimmed the log of bytes that a power cut then took.

    An opening writes in a thread, while the loop syncs what may rest.
    """
    bench, loop = Bench(), asyncio.get_running_loop()
    handle = bench.make(1)
    assert handle._file is not None
    write, begun, may_go_on = handle._file.write_at, asyncio.Event(), threading.Event()

    def late(at: int, parts: Sequence[Buffer]) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_go_on.wait(10)
        write(at, parts)

    handle._file.write_at = late  # type: ignore[method-assign]  # It waits in the middle.
    writing = asyncio.ensure_future(asyncio.to_thread(handle.write_at, 4, (b"late",)))
    await begun.wait()
    await handle.flush()
    may_go_on.set()
    await writing
    assert handle.is_unsynced
    await handle.flush()
    assert not bench.disk.state.files["s/1"].dirty


async def test_without_a_descriptor_a_file_is_refused_until_one_is_free() -> None:
    """EMFILE is a refusal that heals: of the pool's own bound, and of the system's."""
    bench = Bench(open_max=2, busy_max=4)
    handles = [bench.make(number) for number in range(4)]
    with pytest.raises(OSError, match="spool files are open") as refused:
        bench.make(4)
    assert refused.value.errno == errno.EMFILE
    await bench.settle()
    handles.append(bench.make(4))

    bench.disk.descriptors = bench.disk.open_count
    resting = next(handle for handle in handles if handle._file is None)
    number = int(resting.name.rpartition("/")[2])
    for handle in handles:
        await handle.flush() if handle is not resting else None
    assert resting.read_at(0, 4) == b"%04d" % number, "another one rests for it"
    bench.disk.descriptors = 0
    other = next(handle for handle in handles if handle._file is None)
    for handle in handles:
        handle.rest()
    with pytest.raises(OSError, match="too many open files"):
        other.read_at(0, 4)
    bench.disk.descriptors = 1_000
    assert other.size() == 4


async def test_a_file_that_is_used_by_a_thread_does_not_rest() -> None:
    """Its descriptor would be another file's by then."""
    bench = Bench(open_max=1)
    handle = bench.make(1)
    await handle.flush()
    with handle as file:
        assert not handle.rest()
        assert file.read_at(0, 4) == b"0001"
    assert handle.rest()


async def test_a_file_that_is_closed_while_a_thread_uses_it_is_closed_afterwards() -> None:
    """The number of its descriptor went to another file: the thread read, or synced, that one."""
    bench = Bench()
    handle = bench.make(7)
    with handle as file:
        handle.close()
        assert bench.disk.open_count == 1
        with pytest.raises(OSError, match="closed"):
            handle.read_at(0, 4)
        assert file.read_at(0, 4) == b"0007"
    assert bench.disk.open_count == bench.pool.open_count == 0
    handle.close()
    assert bench.disk.open_count == 0


async def test_only_an_open_file_gives_its_pages_back() -> None:
    """A hint must not open what rests, and must not reach a descriptor that is another file's by now."""
    bench = Bench()
    asked: list[tuple[int, int]] = []

    async def uncache(begin: int, end: int) -> None:
        asked.append((begin, end))

    handle = bench.pool.open("s/a", create=True)
    assert isinstance(handle, SpoolHandle)
    assert handle._file is not None
    handle._file.uncache = uncache  # type: ignore[method-assign]  # It is asked as well.
    await handle.uncache(0, 10)
    assert asked == [(0, 10)]

    assert handle.rest()
    await handle.uncache(10, 20)
    handle.close()
    await handle.uncache(20, 30)
    assert asked == [(0, 10)]
    assert bench.disk.open_count == 0


async def test_a_turn_goes_to_whom_somebody_waits_for() -> None:
    """A journal that is asked for is opened before the thousands that are not."""
    turns, order, gate = OpeningTurns(1), [], asyncio.Event()

    async def work(key: int) -> None:
        async with turns.turn(key):
            await gate.wait()
            order.append(key)

    tasks = [asyncio.create_task(work(key)) for key in range(6)]
    await asyncio.sleep(0)
    turns.hasten(4)
    turns.hasten(2)
    turns.hasten(99)
    tasks[3].cancel()
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 4, 2, 1, 5]
    async with asyncio.timeout(1), turns.turn(7):
        pass


async def test_a_pool_that_met_the_systems_limit_grows_back() -> None:
    """One moment without descriptors halved it for the rest of the process's life."""
    bench = Bench(open_max=4, busy_max=8)
    for number in range(6):
        bench.make(number)
        await bench.settle()
    bench.pool.relieve()
    assert bench.pool.open_max < 4
    for number in range(6, 6 + 4 * GROWS_AFTER):
        bench.make(number)
        await bench.settle()
    assert bench.pool.open_max == 4


async def test_whoever_waits_for_a_file_gets_it_in_turn_and_before_a_newcomer() -> None:
    """Newcomers took each file that came to rest, and those that waited were refused in the end."""
    bench = Bench(open_max=1, busy_max=2)
    handles = [bench.make(number) for number in range(2)]
    opened: list[int] = []

    def opens(number: int) -> bool:
        try:
            handles.append(bench.make(number))
        except OSError:
            return False
        opened.append(number)
        return True

    for number in (2, 3, 4):
        bench.pool.wait(partial(opens, number))
    assert bench.pool.must_wait(bench.disk.open("s/0"))
    assert not bench.pool.must_wait(handles[0])
    async with asyncio.timeout(5):
        await bench.settle()
    assert opened == [2, 3, 4]
    assert not bench.crashes
