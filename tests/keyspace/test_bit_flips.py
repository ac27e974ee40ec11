"""No flipped bit of a key space's log is served silently (W4): the map as it was, or a refusal to start."""

import asyncio

import pytest

from broadsheet.base.time import Instant
from broadsheet.base.types import Offset, RequestId, Revision
from broadsheet.keyspace.core.record import snapshot
from broadsheet.keyspace.core.recovery import recovered
from broadsheet.keyspace.core.store import (
    EncodeSnapshot,
    FlushAsked,
    Persist,
    Persisted,
    SnapshotEncoded,
    Store,
    StoreEffect,
    StoreEvent,
    TransactRequest,
    TrimLog,
)
from broadsheet.keyspace.core.transaction import KeyValue, Limits, Put
from broadsheet.keyspace.local.keyspace import STREAM
from simulator.disk import SimDisk
from tests.wal.harness import Bench, abandon, open_log
from tests.wal.histories import Kept, noise
from tests.wal.one_stream import ROOMY, search_one_stream

FLIPS = 1_800
NOW = Instant(0)
State = tuple[int, list[KeyValue]]


class Written:
    """A log that a store wrote, and every map that it showed."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.store, self.states = bench, restored([], 0), [(0, list[KeyValue]())]

    async def step(self, event: StoreEvent) -> None:
        """One event, and all that follows from it."""
        todo: list[StoreEffect] = list(self.store.step(event, NOW))
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, Persist):
                self.bench.send(STREAM, effect.record)
                await self.bench.settled()
                todo += self.store.step(Persisted(effect.token), NOW)
            elif isinstance(effect, EncodeSnapshot):
                chunks = snapshot(effect.revision, effect.pairs, chunk_bytes=1024)
                todo += self.store.step(SnapshotEncoded(chunks), NOW)
            elif isinstance(effect, TrimLog):
                self.bench.log.trim(STREAM, effect.below)
        self.states.append((self.store.revision, self.store.shown.range("")))


def restored(payloads: list[bytes], first: int) -> Store:
    """The store that records from offset `first` on describe."""
    return recovered(
        payloads,
        is_trimmed=first > 0,
        next_offset=Offset(first + len(payloads)),
        limits=Limits(),
        transactions_max=64,
        bytes_max=1 << 20,
    )


async def write() -> tuple[dict[str, bytes], list[State]]:
    """The disk's content, and the maps; the last one is what must be shown."""
    disk = SimDisk()
    written = Written(await open_log(disk, config=ROOMY))
    for n in range(40):
        puts = [Put(f"k{n % 9}", noise(n, 100 + 11 * n)), Put(f"other{n % 4}", noise(-n, 50))]
        await written.step(TransactRequest(RequestId(n), (), puts))
        if n == 12:
            await written.step(FlushAsked())
    await abandon(written.bench)
    return disk.state.image(), written.states


def shown(verdict: Kept) -> State:
    """The map that the records of a stream describe."""
    store = restored([held.payload for held in verdict.held], verdict.first)
    return store.revision, store.shown.range("")


def search(flips: int, seed: int) -> None:
    """Flip bits of one key space's log; `make soak` asks for more."""
    image, states = asyncio.run(write())
    assert states[-1][0] == Revision(40)
    search_one_stream(image, STREAM, shown, states, flips=flips, seed=seed, record_bytes_min=10_000)


def test_no_flipped_bit_of_a_key_spaces_log_is_served() -> None:
    """Its share of 10,000 flips; four of five in bytes of untrimmed records, headers included."""
    search(FLIPS, seed=24)


@pytest.mark.soak
def test_no_flipped_bit_of_a_key_spaces_log_is_served_in_50_000() -> None:
    """The same, for `make soak`."""
    search(50_000, seed=25)
