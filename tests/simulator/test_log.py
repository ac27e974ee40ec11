"""The simulated log does what the log does: one set of stories, told by both, across kills and power cuts."""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

import pytest

from broadsheet.base.types import Generation, Offset
from broadsheet.errors import LocalProtocolError
from simulator.disk import SimDisk
from simulator.health import Health
from simulator.log import LogStore, SimLog
from simulator.trace import Trace
from simulator.world import Life, World
from tests.wal.harness import A, Bench, abandon, after_power_cut, open_log, payloads


class Subject(Protocol):
    """One log of one stream."""

    async def append(self, record: bytes, generation: int = 0) -> None: ...
    async def truncate(self, offset: int, generation: int) -> None: ...
    async def reset(self, offset: int, generation: int) -> None: ...
    async def trim(self, below: int) -> None: ...
    async def sync(self) -> None: ...
    async def cut(self) -> tuple[int, list[bytes], int, int]:
        """Cut the power and start again: first offset, records, next offset and generation."""
        ...


class Real:
    """The write-ahead log on a simulated disk."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.starts = 1
        self.bench: Bench | None = None

    async def append(self, record: bytes, generation: int = 0) -> None:
        (await self._bench()).send(A, record, generation=generation)

    async def truncate(self, offset: int, generation: int) -> None:
        (await self._bench()).log.truncate(A, Offset(offset), Generation(generation), lambda: None)

    async def reset(self, offset: int, generation: int) -> None:
        (await self._bench()).log.reset(A, Offset(offset), Generation(generation), lambda: None)

    async def trim(self, below: int) -> None:
        (await self._bench()).log.trim(A, Offset(below))

    async def sync(self) -> None:
        await (await self._bench()).settled()

    async def cut(self) -> tuple[int, list[bytes], int, int]:
        await abandon(await self._bench())
        self.disk = after_power_cut(self.disk)
        self.starts += 1
        self.bench = await open_log(self.disk, seed=self.starts)
        found = await self.bench.found(A)
        return found.first_offset, payloads(found.records), found.next_offset, found.generation

    async def _bench(self) -> Bench:
        if self.bench is None:
            self.bench = await open_log(self.disk, seed=self.starts)
        return self.bench


class Simulated:
    """The record log of machines on a heap."""

    def __init__(self) -> None:
        self.world = World(7, Trace())
        self.store = LogStore(self.world, "a", Health(), crash=_nobody, cut_power=lambda: None)
        self.log: SimLog = self.store.open("log", Life("a", 1))

    async def append(self, record: bytes, generation: int = 0) -> None:
        assert self.log.append(record, lambda: None, generation=generation)

    async def truncate(self, offset: int, generation: int) -> None:
        self.log.truncate(offset, lambda: None, generation=generation)

    async def reset(self, offset: int, generation: int) -> None:
        self.log.reset(offset, generation=generation)

    async def trim(self, below: int) -> None:
        self.log.trim(below)

    async def sync(self) -> None:
        self.world.run(until=self.world.now + 10_000_000)

    async def cut(self) -> tuple[int, list[bytes], int, int]:
        self.log.life.is_dead = True
        self.store.crash(power_cut=True)
        log = self.log = self.store.open("log", Life("a", self.log.life.boot + 1))
        return log.first_offset, log.records, log.next_offset, log.generation


def _nobody(life: Life, reason: str) -> None:
    raise AssertionError(f"{life} ended: {reason}")


@pytest.fixture(params=[Real, Simulated])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    made: Callable[[], Subject] = request.param
    log = made()
    yield log
    if isinstance(log, Real) and log.bench is not None:
        await abandon(log.bench)


async def test_what_is_synced_survives_and_what_is_not_does_not(subject: Subject) -> None:
    """Durability is an event: before it, nothing is promised."""
    await subject.append(b"0")
    await subject.append(b"1")
    await subject.sync()
    await subject.append(b"2")

    assert await subject.cut() == (0, [b"0", b"1"], 2, 0)


async def test_a_truncation_voids_and_its_generation_lasts(subject: Subject) -> None:
    """The branch that follows has a name of its own, and no append of the old one is taken."""
    for record in (b"0", b"1", b"2"):
        await subject.append(record, 3)
    await subject.truncate(1, 5)
    await subject.append(b"1", 5)
    await subject.sync()

    assert await subject.cut() == (0, [b"0", b"1"], 2, 5)
    with pytest.raises(LocalProtocolError):
        await subject.append(b"old", 4)
    with pytest.raises(LocalProtocolError):
        await subject.truncate(0, 5)
    with pytest.raises(LocalProtocolError):
        await subject.truncate(3, 6)
    assert await subject.cut() == (0, [b"0", b"1"], 2, 5)


async def test_a_reset_that_was_not_synced_is_lost(subject: Subject) -> None:
    """kv.6: a repair that believes its reset before it is durable would answer for records it has twice."""
    await subject.append(b"0")
    await subject.append(b"1")
    await subject.sync()
    await subject.reset(40, 1)
    await subject.append(b"40", 1)
    assert await subject.cut() == (0, [b"0", b"1"], 2, 0)

    await subject.reset(40, 1)
    await subject.append(b"40", 1)
    await subject.sync()
    assert await subject.cut() == (40, [b"40"], 41, 1)
    with pytest.raises(LocalProtocolError):
        await subject.reset(0, 1)


async def test_a_trim_counts_from_the_next_batch_on(subject: Subject) -> None:
    """Until then a crash brings the records back: nobody may rely on their absence."""
    for record in (b"0", b"1", b"2"):
        await subject.append(record)
    await subject.sync()
    await subject.trim(2)
    assert await subject.cut() == (0, [b"0", b"1", b"2"], 3, 0)

    await subject.trim(2)
    await subject.append(b"3")
    await subject.sync()
    assert await subject.cut() == (2, [b"2", b"3"], 4, 0)
    with pytest.raises(LocalProtocolError):
        await subject.truncate(1, 1)
    await subject.truncate(3, 1)
    await subject.sync()
    assert await subject.cut() == (2, [b"2"], 3, 1)


def test_damage_counts_where_the_record_is_still_needed() -> None:
    """A damaged record that a reset or trim gave up is not corruption; any other one is (W6)."""
    for verb, quarantined in (("none", True), ("trim", False), ("reset", False), ("truncate", False)):
        it = Simulated()
        for n in range(3):
            it.log.append(n, lambda: None)
        if verb == "trim":
            it.log.trim(2)
        elif verb == "reset":
            it.log.reset(9)
        elif verb == "truncate":
            it.log.truncate(1, lambda: None)
        it.world.run(until=it.world.now + 10_000_000)
        it.store._kept["log"].damaged_at = 1
        it.log.life.is_dead = True
        log = it.store.open("log", Life("a", 2))

        assert log.is_quarantined is quarantined, verb
        if quarantined:
            assert log.records == [0]
