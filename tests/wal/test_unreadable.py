"""Sectors that the disk cannot read, and damage on a full disk: a start goes on, deletes nothing (W6, W7)."""

import asyncio
import errno

import msgspec
import pytest

from broadsheet.base.time import Duration
from broadsheet.base.types import LogStreamId
from broadsheet.errors import ConfigError
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.inspection import inspected
from broadsheet.wal.record import LogFull
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import DiskState
from tests.support.faulty import Fault, FaultyDisk
from tests.wal.harness import DIRECTORY, A, B, C, abandon, open_log
from tests.wal.histories import TINY, noise
from tests.wal.one_stream import ROOMY
from tests.wal.test_shorter import Image, image_of
from tests.wal.test_shorter import written as written_shorter

D = LogStreamId(4)


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], None]:
    """Blocks that no read of returns; a write heals them, as a disk that has spare sectors does."""
    blocks: dict[tuple[str, int], None] = {}
    read, write = SimFile.read_at, SimFile._write

    def read_at(self: SimFile, at: int, length: int) -> bytes:
        if any(
            (self.name, block) in blocks
            for block in range(at // BLOCK_BYTES, -(-(at + length) // BLOCK_BYTES))
        ):
            raise OSError(errno.EIO, "unreadable sector", self.name)
        return read(self, at, length)

    def write_at(self: SimFile, at: int, content: bytes) -> None:
        write(self, at, content)
        for block in range(-(-at // BLOCK_BYTES), (at + len(content)) // BLOCK_BYTES):
            blocks.pop((self.name, block), None)

    monkeypatch.setattr(SimFile, "read_at", read_at)
    monkeypatch.setattr(SimFile, "_write", write_at)
    return blocks


async def written() -> tuple[Image, dict[LogStreamId, list[bytes]]]:
    """Three streams over two segments; what each holds."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    held: dict[LogStreamId, list[bytes]] = {A: [], B: [], C: []}
    for n in range(14):
        for stream in (A, B, C):
            if n % stream == 0:
                held[stream].append(noise(10 * n + stream, 40 + 300 * n))
                bench.send(stream, held[stream][-1])
        await bench.settled()
    await bench.log.close()
    return image_of(disk), held


async def test_a_log_of_which_no_batch_can_be_read_is_not_told_as_empty(
    bad: dict[tuple[str, int], None],
) -> None:
    """`accept-loss` would show an operator that there is nothing left to lose."""
    image, _ = await written()
    disk = SimDisk(DiskState.of(image, ("wal",)))
    for name, content in image.items():
        if name.endswith(".wal"):
            bad.update(dict.fromkeys((name, block) for block in range(1, len(content) // BLOCK_BYTES - 1)))

    with pytest.raises(ConfigError, match="cannot read"), inspected(disk, DIRECTORY):
        pass


async def test_an_unreadable_sector_anywhere_is_damage_of_its_streams_and_stops_no_start(
    bad: dict[tuple[str, int], None],
) -> None:
    """EIO from a read of the start ended the role, and nothing that an operator could do got round it."""
    image, held = await written()
    flagged = 0
    for name, content in image.items():
        if not name.endswith((".wal", "extents")):
            continue
        for block in range(-(-len(content.rstrip(b"\0")) // BLOCK_BYTES) + 1):
            disk = SimDisk(DiskState.of(image, ("wal",)))
            bad.clear()
            bad[name, block] = None
            states = []
            for seed in (5, 6):
                with inspected(disk, DIRECTORY) as log:
                    assert log.streams()
                bench = await open_log(disk, config=ROOMY, seed=seed)
                assert bench.crashes == []
                for stream, payloads in held.items():
                    told = await bench.found(stream)
                    served = [record.payload for record in told.records]
                    assert served == payloads[: len(served)]
                    is_told = told.is_quarantined or told.tail_cut
                    assert is_told or served == payloads, f"{name} {block}: {stream} lost records in silence"
                    states.append(is_told)
                await bench.commit(D, b"appends go on")
                await abandon(bench)
                disk.state.locks.clear()
            flagged += any(states)
            assert states[:3] == states[3:], f"{name} {block}: the second start tells another story"
            assert block or not any(states), f"{name}: the header of a file stops streams"
            at = block * BLOCK_BYTES
            after = image_of(disk)[name][at : at + BLOCK_BYTES]
            kept = any(
                content[at : at + BLOCK_BYTES] in c for n, c in image_of(disk).items() if "quarantine" in n
            )
            is_ours = not any(states) or kept or after == content[at : at + BLOCK_BYTES]
            assert is_ours, f"{name} {block}: bytes that may be readable again were written over"
    assert flagged > 10


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_live_log_that_meets_an_unreadable_sector_quarantines_its_stream(
    bad: dict[tuple[str, int], None], *, is_full: bool
) -> None:
    """As damage that a checksum finds; the read neither ends the node nor is repeated for ever.

    On a full disk it raised ENOSPC, and the stream took appends behind the loss.
    """
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    await bench.commit(A, b"lost")
    await bench.commit(B, b"there")
    name = next(name for name in image_of(disk) if name.endswith("0.wal"))
    bad[name, image_of(disk)[name].index(b"lost") // BLOCK_BYTES] = None
    if is_full:
        disk.state.quota_bytes = disk.state.used()
    with pytest.raises(Exception, match="lost records"):
        await bench.log.read(A, bench.log.recovered(A).first_offset, 100)
    assert bench.log.is_quarantined(A)
    assert not bench.log.is_quarantined(B)
    assert bench.crashes == []
    await abandon(bench)


@pytest.mark.parametrize("where", ["a record", "the last record", "a header", "the last header"])
async def test_damage_on_a_full_disk_stays_where_it_is_until_there_is_space(where: str) -> None:
    """W7, W8: there was no room for the file that keeps the bytes, and the start was refused."""
    image, held = await written()
    segments = [name for name, content in image.items() if name.endswith(".wal") and b"WFrm" in content]
    content = image[segments[-1]] if "last" in where else image[segments[0]]
    name = segments[-1] if "last" in where else segments[0]
    wanted = held[A][-1] if "last" in where else held[A][2]
    at = (
        content.index(wanted) + 9
        if "record" in where
        else content.index(wanted) // BLOCK_BYTES * BLOCK_BYTES + 1
    )
    damaged = bytearray(content)
    damaged[at] ^= 1
    image[name] = bytes(damaged)
    disk = SimDisk(DiskState.of(image, ("wal",)))
    disk.state.quota_bytes = disk.state.used()
    for seed in (5, 6):
        bench = await open_log(disk, config=ROOMY, seed=seed)
        assert bench.log.is_quarantined(A) == ("record" in where), "behind a header each frame proves itself"
        assert bench.log.status().is_out_of_space
        assert not bench.log.status().quarantine_files
        for stream in held:
            bench.log.trim(stream, bench.log.next_offset(stream))  # So that nothing else holds the segment.
        for n in range(300):  # Round the segments that there are, as far as that goes.
            try:
                await bench.commit(D, noise(n, 3000))
            except LogFull:
                break
            bench.log.trim(D, bench.log.next_offset(D))
        block = at // BLOCK_BYTES * BLOCK_BYTES
        assert image_of(disk)[name][block : block + BLOCK_BYTES] == damaged[block : block + BLOCK_BYTES]
        assert bench.crashes == []
        await abandon(bench)
        disk.state.locks.clear()
    disk.state.quota_bytes = 1 << 40
    bench = await open_log(disk, config=ROOMY, seed=7)
    assert not bench.log.status().is_out_of_space
    assert any("quarantine-" in each for each in image_of(disk))
    await abandon(bench)


async def test_a_torn_batch_on_a_full_disk_is_not_written_over() -> None:
    """W7: it stands where the start would write its first batch, and may have been acknowledged."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    await bench.commit(A, b"first")
    await bench.commit(A, b"torn" * 100)
    await abandon(bench)
    image = image_of(disk)
    name = next(name for name, content in image.items() if b"torn" in content)
    at = image[name].rindex(b"WBat")
    image[name] = image[name][:at] + b"?" + image[name][at + 1 :]
    disk = SimDisk(DiskState.of(image, ("wal",)))
    disk.state.quota_bytes = disk.state.used()
    for seed in (5, 6):
        bench = await open_log(disk, config=ROOMY, seed=seed)
        assert bench.log.recovered(A).tail_cut
        await bench.commit(B, b"appends go on")
        assert image_of(disk)[name][at : at + 4096] == image[name][at : at + 4096]
        await abandon(bench)
        disk.state.locks.clear()


async def test_a_free_segment_with_a_damaged_header_is_not_used_before_that_is_kept() -> None:
    """W7, W8: whatever stands there, it is not understood, and is not written over."""
    image, _ = await written()
    name = max(name for name in image if name.endswith(".wal"))
    image[name] = bytes([image[name][0] ^ 1]) + image[name][1:]
    disk = SimDisk(DiskState.of(image, ("wal",)))
    disk.state.quota_bytes = disk.state.used()
    bench = await open_log(disk, config=ROOMY, seed=5)
    assert not bench.log.status().quarantined
    for n in range(300):
        try:
            await bench.commit(D, noise(n, 3000))
        except LogFull:
            break
        bench.log.trim(D, bench.log.next_offset(D))
    assert image_of(disk)[name] == image[name]
    await abandon(bench)


async def test_a_live_log_sets_damage_aside_as_soon_as_a_full_disk_has_space() -> None:
    """No restart is needed for it, and the segment is used again."""
    image, held = await written()
    name = next(name for name, content in image.items() if held[A][2] in content)
    image[name] = image[name].replace(held[A][2], b"?" + held[A][2][1:])
    disk = SimDisk(DiskState.of(image, ("wal",)))
    disk.state.quota_bytes = disk.state.used()
    bench = await open_log(
        disk, config=msgspec.structs.replace(ROOMY, retry_delay=Duration(1_000_000)), seed=5
    )
    assert bench.log.status().is_out_of_space
    assert not bench.log.status().quarantine_files
    disk.state.quota_bytes = 1 << 40
    for _ in range(2000):
        if not bench.log.status().is_out_of_space:
            break
        await bench.commit(C, b"meanwhile")
    assert bench.log.status().quarantine_files
    assert not bench.log.status().is_out_of_space
    assert bench.log.segments.kept == {}
    assert any(b"?" + held[A][2][1:] in content for n, content in image_of(disk).items() if "quarantine" in n)
    bench.log.check()
    await abandon(bench)


async def test_a_want_of_descriptors_while_damage_is_set_aside_ends_no_node() -> None:
    """EMFILE of the file that says how far all are filled came out of the background; it passes."""
    whole, name, at = await written_shorter()
    disk = SimDisk(DiskState.of({**whole, name: whole[name][: at + 5000]}, ("wal",)))
    disk.state.quota_bytes = disk.state.used()
    full = Fault(
        "open", error=errno.EMFILE, name="*/extents", after=1, times=3
    )  # The first one is the start's.
    faulty = FaultyDisk(disk, [full])
    config = msgspec.structs.replace(TINY, retry_delay=Duration(1_000_000))
    bench = await open_log(faulty, config=config, seed=5)
    assert bench.log.status().is_out_of_space
    disk.state.quota_bytes = 1 << 40
    for _ in range(2000):
        if not bench.log.status().is_out_of_space:
            break
        await asyncio.sleep(0.001)
    assert not bench.log.status().is_out_of_space
    assert faulty.faults.faults_hit["open"] == 3
    assert bench.crashes == []
    assert not any(image_of(disk)[name][at + 4096 : at + 5000]), "what is left of a batch is void"
    await abandon(bench)


async def test_a_last_batch_that_can_be_read_again_is_not_written_over(
    bad: dict[tuple[str, int], None],
) -> None:
    """A start on a full disk could not read it, and its boot batch has the same number, in another segment.

    The next start could. It took the end of the segment with the boot batch for the end of the one before it:
    its own boot batch stood on acknowledged records, and a read of the others did not end.
    """
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    for n in range(3):
        await bench.commit(A, b"record-%d" % n)
    await bench.commit(B, bytes(BLOCK_BYTES), b"in a block that can be read")
    await abandon(bench)
    disk.state.quota_bytes = disk.state.used()
    name = f"{DIRECTORY}/segment-00000000.wal"
    bad[name, bytes(disk.state.files[name].view).rindex(b"WBat") // BLOCK_BYTES] = None
    for seed in (2, 3, 4):
        disk.state.locks.clear()
        bench = await open_log(disk, config=TINY, seed=seed)
        async with asyncio.timeout(5):
            told = await bench.found(A)
        assert [each.payload for each in told.records][:3] == [b"record-%d" % n for n in range(3)]
        assert not told.is_quarantined
        await abandon(bench)
        bad.clear()


@pytest.mark.parametrize("what", ["every block", "the segments", "all but free space", "the batches"])
async def test_a_disk_that_reads_nothing_of_a_segment_costs_no_record(
    bad: dict[tuple[str, int], None], what: str
) -> None:
    """W7: the segments looked unused. A start removed them, or wrote over them, and the log was empty."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    for n in range(3):
        await bench.commit(A, b"record-%d" % n)
    await bench.log.close()
    image = image_of(disk)
    for name, content in image.items():
        size = len(content) if what in ("every block", "the segments") else len(content.rstrip(b"\0"))
        if name.endswith(".wal") or what in ("every block", "all but free space"):
            bad.update(dict.fromkeys((name, block) for block in range(-(-size // BLOCK_BYTES))))
    for _ in range(2):
        with pytest.raises(ConfigError, match="Start again; if it stays so"):
            await open_log(disk, config=ROOMY, seed=2)
    assert image_of(disk) == image, "nothing was changed"
    bad.clear()
    bench = await open_log(disk, config=ROOMY, seed=3)
    told = await bench.found(A)
    assert [each.payload for each in told.records] == [b"record-%d" % n for n in range(3)]
    await bench.log.close()
