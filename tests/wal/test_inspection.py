"""A log is read without a change to it, and what is damaged in it is told from what is whole."""

import pytest

from broadsheet.wal.inspection import FoundRecord, inspected
from simulator.disk import SimDisk
from tests.wal.harness import DIRECTORY, A, Bench, abandon, files_open, open_log
from tests.wal.one_stream import ROOMY

PAYLOADS = [bytes((65 + n,)) * 100 for n in range(4)]


async def written() -> SimDisk:
    """Four records, each in a batch of its own, and one of another stream that vouches for the last."""
    disk = SimDisk()
    bench: Bench = await open_log(disk, config=ROOMY)
    for payload in (*PAYLOADS, b"vouches"):
        bench.send(A, payload)
        await bench.settled()
    await abandon(bench)
    return disk


def image(disk: SimDisk) -> dict[str, bytes]:
    return {name: bytes(inode.view) for name, inode in disk.state.files.items()}


async def test_what_is_read_is_what_was_written_and_nothing_changes() -> None:
    """A look must not repair, set aside or write a boot frame: an operator has not decided yet."""
    disk = await written()
    before = image(disk)

    with inspected(disk, DIRECTORY) as log:
        found = list(log.records(A))
        last = log.last(A)
        assert log.streams() == [A]

    assert [each.payload for each in found] == [*PAYLOADS, b"vouches"]
    assert all(each.is_whole for each in found)
    assert last == found[-1]
    assert image(disk) == before


@pytest.mark.parametrize("damaged", range(4))
async def test_a_damaged_payload_is_told_from_the_whole_ones_behind_it(damaged: int) -> None:
    """What salvage believes hangs on this: a flipped bit must never pass for a value."""
    disk = await written()
    (inode,) = [
        each for name, each in disk.state.files.items() if PAYLOADS[damaged] in bytes(each.view) and name
    ]
    at = bytes(inode.view).index(PAYLOADS[damaged])
    file = disk.open(next(name for name, each in disk.state.files.items() if each is inode))
    file.write_at(at, (b"#",))

    with inspected(disk, DIRECTORY) as log:
        found: dict[int, FoundRecord] = {each.offset: each for each in log.records(A)}

    assert [offset for offset, each in found.items() if not each.is_whole] == [damaged]
    assert [found[n].payload for n in range(4) if n != damaged] == [
        payload for n, payload in enumerate(PAYLOADS) if n != damaged
    ]


async def test_a_log_that_is_not_there_holds_nothing() -> None:
    """Whoever lost the directory is told of that, not of a traceback."""
    with inspected(SimDisk(), "nothing/here") as log:
        assert (log.streams(), list(log.records(A)), log.last(A), log.generation(A)) == ([], [], None, 0)


async def test_a_look_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that looks at many logs would run out of descriptors."""
    disk = await written()
    is_open = files_open(monkeypatch)

    with inspected(disk, DIRECTORY):
        assert is_open
    assert not is_open
