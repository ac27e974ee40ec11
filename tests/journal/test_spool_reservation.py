"""Spools reserve blocks ahead of their end, and give them back (ADR 0192)."""

from pathlib import Path

import pytest

from broadsheet.base.types import ByteOffset
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.spool_file import RESERVE_BYTES, SpoolFile, create
from broadsheet.runtime.disk import LocalDisk
from simulator.disk import SimDisk, SimFile
from tests.journal.crash_histories import NAME, Shelf, running

PIECE = bytes(range(256)) * 256


def spool_on(disk: SimDisk, *, refused_from: int = 1_000) -> tuple[SpoolFile, list[tuple[int, int]]]:
    """A spool, and what it asks to be reserved; the disk refuses from the `refused_from`-th time on."""
    disk.make_dir("s")
    spool = create(disk, "s", ByteOffset(100))
    asked: list[tuple[int, int]] = []

    def reserve(begin: int, end: int) -> bool:
        asked.append((begin, end))
        return len(asked) < refused_from

    spool.file.reserve = reserve  # type: ignore[method-assign]
    return spool, asked


def test_a_small_spool_reserves_nothing_and_a_large_one_stays_ahead_of_its_end() -> None:
    """Ten thousand small journals must not hold a megabyte each; a busy one asks once in a megabyte."""
    spool, asked = spool_on(SimDisk())
    while spool.length < RESERVE_BYTES:
        spool.append((PIECE,), wall=1)
    assert asked == []

    while spool.length < 8 * RESERVE_BYTES:
        spool.append((PIECE, PIECE), wall=1)
        assert asked[-1][1] >= spool.length
        assert asked[-1][1] - spool.length <= RESERVE_BYTES
    assert 6 <= len(asked) <= 8
    assert [end for _, end in asked[:-1]] == [begin for begin, _ in asked[1:]]


def test_a_file_system_that_refuses_a_reservation_is_not_asked_again() -> None:
    """Where there is no such call, it would be made for each append."""
    spool, asked = spool_on(SimDisk(), refused_from=1)
    while spool.length < 8 * RESERVE_BYTES:
        spool.append((PIECE,), wall=1)

    assert len(asked) == 1
    assert spool.read(spool.begin, len(PIECE)) == PIECE


def test_a_finished_spool_holds_no_more_of_the_disk_than_its_content(tmp_path: Path) -> None:
    """Closed fragments wait for the store, thousands of them if it is down."""
    disk = LocalDisk(tmp_path)
    disk.make_dir("s")
    spool = create(disk, "s", ByteOffset(0))
    while spool.length <= RESERVE_BYTES:
        spool.append((PIECE,), wall=1)
    spool.file.sync()
    held = (tmp_path / spool.name).stat().st_blocks * 512

    spool.finish()
    assert held > spool.length + RESERVE_BYTES // 2
    assert (tmp_path / spool.name).stat().st_blocks * 512 < spool.length + len(PIECE)
    assert spool.read(ByteOffset(0), spool.length) == PIECE * (spool.length // len(PIECE))
    spool.close()
    disk.close()


def test_parts_are_staged_as_if_they_were_one_content() -> None:
    """A run's appends are passed on as they came: sums and bytes are those of the whole (W4)."""
    one, other = spool_on(SimDisk())[0], spool_on(SimDisk())[0]
    parts = [PIECE[:1000], PIECE, b"", PIECE[1000:], PIECE * 3]
    one.append(parts, wall=5)
    other.append((b"".join(parts),), wall=5)

    assert (one.digest(), one.end, one.first_append) == (other.digest(), other.end, 5)
    assert one.read(one.begin, one.length) == b"".join(parts)
    one.append((PIECE,), wall=9)
    assert one.first_append == 5  # The flush interval counts from the first.


async def test_a_journal_gives_back_what_a_closed_fragment_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 65,536 closed fragments that wait for a store would hold a megabyte more (journals.20)."""
    reserved: dict[str, int] = {}
    truncate = SimFile.truncate

    def reserves(file: SimFile, _begin: int, end: int) -> bool:
        reserved[file.name] = end
        return True

    def truncates(file: SimFile, length: int) -> None:
        truncate(file, length)
        reserved[file.name] = length

    monkeypatch.setattr(SimFile, "reserve", reserves)
    monkeypatch.setattr(SimFile, "truncate", truncates)
    piece = PIECE[: 8 << 10]
    length = RESERVE_BYTES + 4 * len(piece)
    crashes: list[BaseException] = []
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=length)))
        replica = await node.broker.replica(NAME)
        first = replica.spool
        for _ in range(length // len(piece) + 2):
            assert reserved.get(first.name, 0) == 0 or reserved[first.name] > first.length
            run = UnaryAppend(piece)
            replica.deliver(Submitted(run=run, count=1, length=len(piece)))
            await run.answered

        assert replica.spool is not first
        assert reserved[first.name] == first.length > length
    assert not crashes
