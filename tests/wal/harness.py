"""A log on a disk of the test's choosing: what every test of it needs."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import pytest

from broadsheet.base.time import SECOND, Duration, Instant, WallTime
from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.ports import Disk
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import LoopTimers
from broadsheet.runtime.turn import Turn
from broadsheet.wal import Log, Record, WALConfig
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import DiskState

DIRECTORY = "wal"
SMALL = WALConfig(
    segment_bytes=64 << 10,
    segments_initial=3,
    segments_max=6,
    initial_fill_bytes=64 << 10,
    record_bytes_max=16 << 10,
    batch_bytes_max=32 << 10,
    vouch_delay=Duration(3600 * SECOND),
    retry_delay=Duration(1_000_000),
)
"""It never rests long enough to vouch for its last batch; see `vouching`."""


def vouching(config: WALConfig, *, delay: Duration = Duration(0)) -> WALConfig:
    """The same log, which vouches for its last batch when it has rested for `delay`."""
    return msgspec.structs.replace(config, vouch_delay=delay)


A, B, C = (LogStreamId(n) for n in (1, 2, 3))


class TestTime:
    """A clock that stands, on a kernel that boots when told to."""

    __test__ = False

    def __init__(self, boot_id: str = "kernel-1") -> None:
        self._boot_id = boot_id

    def now(self) -> Instant:
        return Instant(0)

    def wall(self) -> WallTime:
        return WallTime(0)

    def boot_id(self) -> str:
        return self._boot_id


class Told(NamedTuple):
    """What a start tells of a stream, with its records read back."""

    records: list[Record]
    first_offset: int
    next_offset: int
    generation: int
    crc: int
    tail_cut: bool
    is_quarantined: bool
    suspects: list[Record]


class Bench:
    """One start of a log, and what became of it."""

    def __init__(self, log: Log, crashes: list[BaseException]) -> None:
        self.log, self.crashes = log, crashes
        self.acknowledged: list[tuple[int, int]] = []
        """(stream, offset after it) of every append that was answered, in order."""

    def send(self, stream: LogStreamId, payload: bytes, *, generation: int = 0) -> Offset:
        """Append, and note when it is acknowledged."""
        offset: Offset = self.log.append(
            stream,
            [payload],
            generation=Generation(generation),
            done=lambda: self.acknowledged.append((stream, offset + 1)),
        )
        return offset

    def send_many(self, stream: LogStreamId, *payloads: bytes, generation: int = 0) -> Offset:
        """Append them as one run."""
        offset: Offset = self.log.append_many(
            stream,
            payloads,
            generation=Generation(generation),
            done=lambda: self.acknowledged.append((stream, offset + len(payloads))),
        )
        return offset

    async def found(self, stream: LogStreamId) -> Told:
        """What the start found of `stream`."""
        found = self.log.recovered(stream)
        records = [record async for record in self.log.records(stream) if record.offset < found.end_offset]
        return Told(
            records,
            found.first_offset,
            found.next_offset,
            found.generation,
            found.crc,
            found.tail_cut,
            found.is_quarantined,
            found.suspects,
        )

    async def commit(self, stream: LogStreamId, *payloads: bytes, generation: int = 0) -> Offset:
        """Append and wait until it is durable; the last offset."""
        assert payloads
        for payload in payloads:
            offset = self.send(stream, payload, generation=generation)
        await self.settled()
        return offset

    async def settled(self) -> None:
        """Wait until nothing is on its way."""
        for _ in range(10_000):
            await asyncio.sleep(0)
            log = self.log
            is_busy = log._is_asked or (log._reclaimer._is_filling and not log._reclaimer.is_refused)
            if log.is_dead or (log._idle.is_set() and not is_busy):
                return
        raise AssertionError("the log does not come to rest")

    async def vouched(self) -> None:
        """Wait until the log has vouched for its last batch."""
        end = asyncio.get_running_loop().time() + 10
        while self.log._witness.is_wanted or self.log._witness._timer is not None:
            assert asyncio.get_running_loop().time() < end, "the log does not vouch for its last batch"
            await asyncio.sleep(0)
        await self.settled()


async def open_log(
    disk: Disk, *, config: WALConfig = SMALL, seed: int = 1, boot_id: str = "kernel-1"
) -> Bench:
    """Start a log; another seed for each start, as production has."""
    crashes: list[BaseException] = []
    scope = Scope("test", crash=crashes.append)
    log = await Log.open(
        disk,
        DIRECTORY,
        config=config,
        time=TestTime(boot_id),
        random=random.Random(seed),
        turn=Turn(LoopTimers(asyncio.get_running_loop())),
        scope=scope,
        crash=crashes.append,
    )
    return Bench(log, crashes)


@asynccontextmanager
async def opened(
    disk: Disk, *, config: WALConfig = SMALL, seed: int = 1, boot_id: str = "kernel-1"
) -> AsyncIterator[Bench]:
    """A log that is closed in the end."""
    bench = await open_log(disk, config=config, seed=seed, boot_id=boot_id)
    try:
        yield bench
    finally:
        await bench.log.close()


async def abandon(bench: Bench) -> None:
    """What kill -9 leaves: no farewell, and the page cache as it is."""
    bench.log.is_dead = True
    bench.log._idle.set()
    await bench.log.close()


def payloads(records: Sequence[Record]) -> list[bytes]:
    return [record.payload for record in records]


def after_power_cut(disk: SimDisk) -> SimDisk:
    """The same disk with only what was synced."""
    return SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))


async def read_all(disk: Disk, *, seed: int = 99, config: WALConfig = SMALL) -> dict[int, list[bytes]]:
    """Start, and tell what each stream holds."""
    async with opened(disk, seed=seed, config=config) as bench:
        return {s: payloads((await bench.found(s)).records) for s in bench.log.streams()}


def files_open(monkeypatch: pytest.MonkeyPatch) -> dict[SimFile, None]:
    """The simulated files that are open from now on, kept up to date."""
    is_open: dict[SimFile, None] = {}
    begin, close = SimFile.__init__, SimFile.close

    def counted(self: SimFile, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        is_open[self] = None

    def closed(self: SimFile) -> None:
        close(self)
        is_open.pop(self, None)

    monkeypatch.setattr(SimFile, "__init__", counted)
    monkeypatch.setattr(SimFile, "close", closed)
    return is_open
