"""`keyspace/local` on a real disk: conformance, restarts, flush requests, slow watchers, flipped bits."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from broadsheet.base.marks import count
from broadsheet.base.types import Revision
from broadsheet.errors import BroadsheetError, ShuttingDown, Unknown
from broadsheet.keyspace.core.store import Persisted
from broadsheet.keyspace.core.transaction import KeyValue, Limits, Put
from broadsheet.keyspace.local.keyspace import KeyspaceConfig
from broadsheet.keyspace.port import Keyspace
from tests.keyspace.conformance import ALL, take
from tests.keyspace.real import SMALL, opened


@pytest.mark.parametrize("story", ALL, ids=lambda story: story.__name__)
async def test_local_conforms(story: Callable[[Keyspace], Awaitable[None]], tmp_path: Path) -> None:
    """One suite for every implementation of the port."""
    async with opened(tmp_path) as keyspace:
        await story(keyspace)


async def test_everything_answered_is_there_after_a_restart(tmp_path: Path) -> None:
    """With both revisions of each key (control.16: both survive)."""
    async with opened(tmp_path) as keyspace:
        for n in range(20):
            await keyspace.transact([], [Put(f"k{n % 7}", b"%d" % n)])
        before = keyspace.range("")

    async with opened(tmp_path) as keyspace:
        assert (keyspace.revision, keyspace.range("")) == (20, before)
        assert (await keyspace.transact([], [Put("k", b"")])).revision == 21


def held_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def test_a_flush_request_is_answered_by_a_snapshot_and_the_log_stays_bounded(tmp_path: Path) -> None:
    """More than the pool is written; without snapshots the log would fill, or copy history for ever."""
    snapshots = count("keyspace.snapshot")
    async with opened(tmp_path, SMALL) as keyspace:
        for n in range(1200):
            await keyspace.transact([], [Put(f"k{n % 5}", bytes(4000))])
        before = keyspace.range("")

    assert held_bytes(tmp_path) <= 7 << 20
    async with opened(tmp_path, SMALL) as keyspace:
        assert (keyspace.revision, keyspace.range("")) == (1200, before)
        assert count("keyspace.snapshot") > snapshots


async def test_a_watcher_behind_the_history_is_reloaded_atomically(tmp_path: Path) -> None:
    """control.15: after trimmed history it reloads atomically, and then follows again."""
    async with opened(tmp_path, SMALL) as keyspace:
        await keyspace.transact([], [Put("gone", b""), Put("k", b"")])
        updates = aiter(keyspace.watch("", Revision(1)))
        mirror: dict[str, KeyValue] = {}
        for n in range(30):
            await keyspace.transact([], [Put("k", b"%d" % n), Put(f"k{n}", b"")])
        told = await take(updates, 31)
        assert told[0].is_reload
        await keyspace.transact([], [Put("last", b"")])
        for update in [*told, *await take(updates, 32)]:
            mirror = {} if update.is_reload else mirror
            mirror.update((c.key, c.now) for c in update.changes if c.now is not None)

        assert list(mirror.values()) == keyspace.range("") or sorted(mirror) == [
            p.key for p in keyspace.range("")
        ]


async def test_closing_ends_watches(tmp_path: Path) -> None:
    """Nobody may hang on a node that stops."""
    async with opened(tmp_path) as keyspace:
        watching = asyncio.create_task(anext(aiter(keyspace.watch("", Revision(1))), None))
        await asyncio.sleep(0)

    assert await watching is None
    with pytest.raises(ShuttingDown):
        await keyspace.transact([], [Put("k", b"")])


def copy_with(good: dict[Path, bytes], origin: Path, to: Path, *, damaged: Path, bit: int) -> None:
    """The files of `good` under `to`, one bit of one of them flipped."""
    for path, content in good.items():
        bad = bytearray(content)
        if path == damaged:
            bad[bit // 8] ^= 1 << bit % 8
        copy = to / path.relative_to(origin)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(bad)


async def test_no_flipped_bit_is_served(tmp_path: Path) -> None:
    """W4: a key space with a damaged record says so; it never shows other bytes than were acknowledged."""
    origin = tmp_path / "good"
    async with opened(origin, SMALL) as keyspace:
        for n in range(40):
            await keyspace.transact([], [Put(f"k{n}", b"<%03d>" % n * 100)])
        before = (keyspace.revision, keyspace.range(""))
    files = {path: path.read_bytes() for path in origin.rglob("*") if path.is_file()}
    segment = next(path for path, content in files.items() if b"<000>" in content)
    random, refused, whole = Random(7), 0, 0
    for _ in range(20):
        place = files[segment].index(b"<%03d>" % random.randrange(39)) - 60
        bit = random.randrange(place * 8, (place + 560) * 8)
        copy_with(files, origin, tmp_path / "bad", damaged=segment, bit=bit)
        try:
            async with opened(tmp_path / "bad", SMALL) as keyspace:
                assert (keyspace.revision, keyspace.range("")) == before, f"bit {bit}"
                whole += 1
        except BroadsheetError:
            refused += 1

    assert (refused, whole) == (20, 0)


async def test_who_waits_for_a_disk_that_hangs_is_told_when_the_node_stops(tmp_path: Path) -> None:
    """The outcome is not known: it may be in the log."""
    async with opened(tmp_path) as keyspace:
        waiting = asyncio.create_task(keyspace.transact([], [Put("k", b"")]))
        await asyncio.sleep(0)
        assert not waiting.done()
        await keyspace.close()

        with pytest.raises(Unknown, match="before the outcome was durable"):
            await waiting


async def test_a_start_keeps_no_record_of_what_it_has_read(tmp_path: Path) -> None:
    """The log would hold the places of all records of the last life until the node ends."""
    async with opened(tmp_path) as keyspace:
        await keyspace.transact([], [Put("k", b"")])
    async with opened(tmp_path) as keyspace:
        assert keyspace._log._recovered == {}


def test_knobs_that_cannot_work_are_refused() -> None:
    """A transaction of the largest size must fit into a record of the log."""
    wal = KeyspaceConfig().wal
    limits = Limits(transaction_bytes_max=wal.record_bytes_max - 16 * 5000, operations_max=5000)

    KeyspaceConfig(limits=limits)
    with pytest.raises(ValueError, match="must fit into the log"):
        KeyspaceConfig(limits=msgspec.structs.replace(limits, operations_max=5001))

    KeyspaceConfig(limits=limits, wal=msgspec.structs.replace(wal, segment_bytes=4 * wal.record_bytes_max))
    smaller = msgspec.structs.replace(wal, segment_bytes=4 * wal.record_bytes_max - 4096)
    with pytest.raises(ValueError, match="four times"):
        KeyspaceConfig(limits=limits, wal=smaller)


async def test_an_answer_to_a_caller_that_was_cancelled_in_the_same_turn_ends_no_node(tmp_path: Path) -> None:
    """The answer finds a caller that is cancelled and has not run since then."""
    async with opened(tmp_path) as keyspace:
        writing = asyncio.create_task(keyspace.transact([], [Put("k", b"v")]))
        await asyncio.sleep(0)
        writing.cancel()
        keyspace._host.deliver(Persisted(keyspace._store._pending[-1].token))

        await asyncio.wait([writing])
        assert writing.cancelled()
        assert [pair.value for pair in keyspace.range("k")] == [b"v"]
