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
from simulator.disk import SimDisk
from tests.wal.harness import Bench, abandon, open_log
from tests.wal.histories import Kept, noise
from tests.wal.one_stream import ROOMY, search_one_stream

FLIPS = 1_800
NOW = Instant(0)
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
    return disk.state.image(), written.states


def search(flips: int, seed: int) -> None:
    """Flip bits of one acceptor's log; `make soak` asks for more."""
    image, states = asyncio.run(write())

    def restore(verdict: Kept) -> Memory | None:
        return remembered(held.payload for held in verdict.held)

    # A log that has lost its stream is a new life, and so no member (control.6).
    search_one_stream(image, STREAM, restore, states, flips=flips, seed=seed, record_bytes_min=15_000)


def test_no_flipped_bit_of_an_acceptors_log_is_served() -> None:
    """Its share of 10,000 flips; four of five in bytes of untrimmed records, headers included."""
    search(FLIPS, seed=14)


@pytest.mark.soak
def test_no_flipped_bit_of_an_acceptors_log_is_served_in_50_000() -> None:
    """The same, for `make soak`."""
    search(50_000, seed=15)
