"""No flipped bit of an acceptor's log is served silently (W4): it remembers all, or says that it does not."""

import asyncio

import pytest

from broadsheet.base.time import Instant
from broadsheet.base.types import Incarnation, NodeId, Offset
from broadsheet.control.core.acceptor import (
    AcceptorMachine,
    Memory,
    Persist,
    Persisted,
    TrimLog,
    encoded,
    remembered,
)
from broadsheet.control.core.messages import Accept, Prepare
from broadsheet.control.core.value import NO_BALLOT, Acceptor, AcceptorSets, Ballot, founding
from broadsheet.control.role import STREAM
from broadsheet.errors import BroadsheetError
from broadsheet.sim.disk import SimDisk
from broadsheet.wal.config import BLOCK_BYTES, KIB, WALConfig
from broadsheet.wal.format import Kind, RowFlag
from broadsheet.wal.scan import frames
from tests.support.bitflips import Flagged, Range, flip_bits
from tests.wal.harness import Bench, abandon, open_log
from tests.wal.histories import noise, read_image

FLIPS = 1_800
NOW = Instant(0)
ROOMY = WALConfig(
    segment_bytes=256 * KIB, segments_initial=3, initial_fill_bytes=256 * KIB, record_bytes_max=32 * KIB
)
"""Nothing is copied forward, so every record stands in one place."""
ME = Acceptor(NodeId("a"), Incarnation(77))
SETS = AcceptorSets(old=(ME,))


class Written:
    """A log in which one acceptor promised and accepted, and every state that it was in."""

    def __init__(self, bench: Bench) -> None:
        self.bench, first = bench, Memory(ME, NO_BALLOT, None)
        self.machine = AcceptorMachine(first, next_offset=Offset(1))
        self.states = [first]
        bench.send(STREAM, encoded(first))

    async def step(self, event: Prepare | Accept) -> None:
        """One request, and its record durable."""
        for effect in self.machine.step(event, NOW):
            assert isinstance(effect, Persist), effect
            self.bench.send(STREAM, effect.record)
            await self.bench.settled()
            for after in self.machine.step(Persisted(effect.token), NOW):
                if isinstance(after, TrimLog) and len(self.states) == 18:
                    self.bench.log.trim(STREAM, after.below)
        self.states.append(self.machine.memory)


async def write() -> tuple[dict[str, bytes], list[Memory]]:
    """The disk's content, and the states; the last one is what must be remembered."""
    disk = SimDisk()
    written = Written(await open_log(disk, config=ROOMY))
    value = founding((ME,), "first", addresses=(), document=b"")
    for n in range(1, 25):
        ballot = Ballot(n, NodeId("b"), 5)
        basis, sets = (Ballot(n - 1, NodeId("b"), 5), SETS) if n > 1 else (NO_BALLOT, AcceptorSets())
        await written.step(Prepare(NodeId("b"), ballot, ME, basis, sets))
        value = value.write(f"attempt {n}", document=noise(n, 60 + 40 * n))
        await written.step(Accept(NodeId("b"), ballot, ME, value, basis, SETS))
    await abandon(written.bench)
    return disk.medium.image(), written.states


def serve(image: dict[str, bytes]) -> dict[object, object]:
    """What an acceptor that starts here remembers; flagged where its log says that something is missing."""
    try:
        verdict = read_image(image).get(STREAM)
        if verdict is None:
            return {ME: Flagged()}  # A new life: no member (control.6).
        if verdict.flags & RowFlag.QUARANTINED:
            return {ME: Flagged()}
        memory = remembered(held.payload for held in verdict.held)
    except BroadsheetError:
        return {ME: Flagged()}
    return {ME: Flagged(memory) if verdict.flags & RowFlag.TAIL_CUT else memory}


def search(flips: int, seed: int) -> None:
    """Flip bits of one acceptor's log; `make soak` asks for more."""
    image, states = asyncio.run(write())
    expected: dict[object, object] = {ME: states[-1]}
    assert serve(image) == expected
    first = read_image(image)[STREAM].first
    assert first > 0, "something was trimmed"
    ranges = [
        Range(name, frame.at, frame.at + len(frame.head_crc_input) + 8 + frame.header.length)
        for name, content in image.items()
        for frame in frames(content, BLOCK_BYTES, len(content), lambda _: True, is_after_hole=True)
        if frame.header.kind == Kind.RUN and frame.header.offset >= first
    ]
    assert sum(found.end - found.begin for found in ranges) > 15_000
    report = flip_bits(
        image,
        ranges,
        serve,
        expected,
        flips=flips,
        seed=seed,
        is_part=lambda served, _: served is None or served in states,
    )
    print(f"{report.flips} flips, {report.in_records} in records: {report.detected} detected")

    assert report.silent == []
    assert report.in_records >= 0.8 * flips
    assert report.detected >= 0.95 * report.in_records


def test_no_flipped_bit_of_an_acceptors_log_is_served() -> None:
    """Its share of 10,000 flips; four of five in bytes of untrimmed records, headers included."""
    search(FLIPS, seed=14)


@pytest.mark.soak
def test_no_flipped_bit_of_an_acceptors_log_is_served_in_50_000() -> None:
    """The same, for `make soak`."""
    search(50_000, seed=15)
