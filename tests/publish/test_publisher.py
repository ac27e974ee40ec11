"""What is published is seen once, transactions whole or not at all, whoever dies and whatever is lost.

Source: pipelines.18.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import broadsheet
from broadsheet.client import Client
from broadsheet.errors import (
    BroadsheetError,
    ConfigError,
    DeadlineExceeded,
    Fenced,
    InvalidArgument,
    LocalProtocolError,
    NotAllowed,
    NotFound,
    ShuttingDown,
    Throttled,
    Unknown,
    Unreachable,
)
from broadsheet.journal.client import Journals
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.mapping import fnv1a32
from broadsheet.message.position import Position
from broadsheet.ports import Random
from broadsheet.publish import arguments, lanes
from broadsheet.publish.publisher import MessagePublisher
from broadsheet.runtime.entropy import Entropy
from broadsheet.runtime.time import SystemTime
from tests.journal.node_process import NodeProcess

JSON = {FRAMING_LABEL: "json-lines"}
LINES, OTHER, FIXED, COMMITS = "out/lines", "out/other", "out/fixed", "out/commits"


@asynccontextmanager
async def served(root: Path) -> AsyncIterator[tuple[NodeProcess, Client]]:
    """A node with three output journals, and a client of it."""
    node = NodeProcess(root)
    assert await node.start()
    try:
        async with broadsheet.connect(node.address) as client:
            for name, labels in ((LINES, JSON), (OTHER, JSON), (FIXED, {FRAMING_LABEL: "fixed"})):
                await client.journals.create(name, labels=labels)
            yield node, client
    finally:
        node.kill()


async def seen(client: Client, journal: str = LINES) -> list[Any]:
    return [each.json() for each in await messages(client, journal)]


async def messages(client: Client, journal: str) -> list[Any]:
    return [each async for each in client.messages(journal)]


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if is_so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never comes to this")


async def transact(publisher: MessagePublisher, *published: tuple[str, object]) -> None:
    """One transaction of messages `{"n": ...}`."""
    async with publisher.transaction() as transaction:
        for journal, n in published:
            await transaction.publish(journal, {"n": n})


class Point(msgspec.Struct):
    x: int


async def test_what_is_published_is_seen_once_and_in_order(tmp_path: Path) -> None:
    """Every kind of message, to one journal and by key to several, alone and many at once."""
    async with served(tmp_path) as (_, client):
        async with client.publisher() as publisher:
            await publisher.publish(LINES, {"n": 0})
            await publisher.publish(LINES, '{"n": 1}')
            await publisher.publish(LINES, memoryview(b'{"n": 2}'))
            await publisher.publish(LINES, Point(3))
            await publisher.publish_many(LINES, [{"n": n} for n in range(4, 2000)])
            await asyncio.gather(*(publisher.publish(OTHER, {"n": n}) for n in range(500)))
            await publisher.publish(FIXED, b"\x00any bytes")
            for n in range(40):
                await publisher.publish([OTHER, LINES], {"key": n}, key=str(n))

        found = await seen(client)
        assert found[:4] == [{"n": 0}, {"n": 1}, {"n": 2}, {"x": 3}]
        assert found[4:2000] == [{"n": n} for n in range(4, 2000)]
        assert (await seen(client, OTHER))[:500] == [{"n": n} for n in range(500)]
        assert [each.value for each in await messages(client, FIXED)] == [b"\x00any bytes"]
        by_key = [n for n in range(40) if fnv1a32(b"%d" % n) % 2 == 0]
        assert [each["key"] for each in found[2000:]] == by_key
        uuids = [each.uuid for each in await messages(client, LINES)]
        assert len(dict.fromkeys(uuids)) == len(uuids)
        await client.journals.create("out/copy", labels=JSON)
        await client.journals.append("out/copy", (await messages(client, LINES))[0].value + b"\n")
        (copied,) = await messages(client, "out/copy")
        assert copied.uuid == uuids[0], "a line that is copied as it is keeps its UUID"


async def test_a_transaction_is_seen_whole_or_never(tmp_path: Path) -> None:
    """Nothing before its end, all of it behind it, and nothing of one that was rolled back."""
    async with served(tmp_path) as (_, client), client.publisher(COMMITS) as publisher:
        for number in range(3):
            async with publisher.transaction() as transaction:
                await transaction.publish(LINES, {"n": number})
                await transaction.publish_many(OTHER, [{"n": number}, {"n": number}])
                assert len(await seen(client)) == number
        with pytest.raises(NotFound):
            await transact(publisher, (LINES, "rolled back"), ("out/nothing", "not there"))
        async with publisher.transaction() as transaction:
            await transaction.publish(LINES, {"n": "rolled back by hand"})
            transaction.roll_back()
            with pytest.raises(LocalProtocolError, match="has ended"):
                await transaction.publish(LINES, {"n": "late"})
        with pytest.raises(LocalProtocolError, match="has ended"):
            await transaction.commit()
        async with publisher.transaction() as transaction:
            await transaction.publish(LINES, {"n": 3})
            await transaction.commit()

        assert await seen(client) == [{"n": n} for n in range(4)]
        assert await seen(client, OTHER) == [{"n": n} for n in range(3) for _ in range(2)]
        index = await client.journals.producer_index(LINES, 0)
        assert index.offset == 0


async def test_a_commit_journal_is_not_among_the_journals_of_messages(tmp_path: Path) -> None:
    """A query that selects framed journals would read its records, and the node index them (pipelines.11)."""
    async with served(tmp_path) as (_, client), client.publisher(COMMITS):
        framed = await client.journals.list(selector=f"{FRAMING_LABEL}=json-lines")

        assert [each.name for each in framed] == [LINES, OTHER]
        assert (await client.journals.get(COMMITS)).spec.labels == {}


async def test_a_newer_publisher_fences_the_one_before(tmp_path: Path) -> None:
    """Two programs run by mistake: what the older one has open is never committed."""
    async with served(tmp_path) as (_, client), client.publisher(COMMITS) as old:
        async with old.transaction() as transaction:
            await transaction.publish(LINES, {"n": 0})
            transaction.positions["in/raw"] = Position(77, 1, 2)
        open_one = old.transaction()
        await open_one.publish(LINES, {"n": "zombie"})
        async with client.publisher(COMMITS) as new:
            assert new.positions == {"in/raw": Position(77, 1, 2)}
            with pytest.raises(Fenced) as raised:
                await open_one.commit()
            assert "is not committed" in raised.value.__notes__[0]
            with pytest.raises(LocalProtocolError, match="is not committed"):
                old.transaction()
            async with new.transaction() as transaction:
                transaction.positions["in/other"] = Position(5, 2)  # Nothing but what was consumed.
        async with client.publisher(COMMITS) as last:
            assert last.positions == {"in/raw": Position(77, 1, 2), "in/other": Position(5, 2)}

        assert await seen(client) == [{"n": 0}]


CRASHING = """
import asyncio, sys
import broadsheet
async def main(address):
    async with broadsheet.connect(address) as client, client.publisher("out/commits") as publisher:
        for number in range(100):
            async with publisher.transaction() as transaction:
                await transaction.publish("out/lines", {"n": number})
                await transaction.publish("out/other", {"n": number})
            print(number, flush=True)
asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("label", ["sink.commit.deciding", "sink.commit.decided", "sink.commit.acknowledged"])
async def test_the_next_publisher_finishes_what_one_that_died_had_committed(
    tmp_path: Path, label: str
) -> None:
    """Kill -9 before the decision, after it, and between the acknowledgements of two journals."""
    async with served(tmp_path) as (node, client):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CRASHING,
            node.address,
            stdout=subprocess.PIPE,
            env={"BROADSHEET_FAILPOINT": f"{label}:3", "PATH": ""},
        )
        told = (await process.communicate())[0].split()
        assert process.returncode == -9
        async with client.publisher(COMMITS):
            pass

        lines, others = await seen(client), await seen(client, OTHER)
        assert lines == others, "whole, or not at all"
        assert len(told) <= len(lines) <= len(told) + 1
        assert lines == [{"n": n} for n in range(len(lines))]


async def test_what_was_acknowledged_stands_after_kills_of_the_node(tmp_path: Path) -> None:
    """Five kills of the node under publishes and transactions of one publisher that goes on."""
    done: dict[str, list[int]] = {LINES: [], OTHER: []}
    async with served(tmp_path) as (node, client):
        publishing = asyncio.Event()

        async def outside(publisher: MessagePublisher) -> None:
            while len(done[LINES]) < 400 or not publishing.is_set():
                await publisher.publish(LINES, {"n": len(done[LINES])})
                done[LINES].append(len(done[LINES]))

        async def inside(publisher: MessagePublisher) -> None:
            while not publishing.is_set():
                async with publisher.transaction() as transaction:
                    await transaction.publish(OTHER, {"n": len(done[OTHER])})
                done[OTHER].append(len(done[OTHER]))

        (tmp_path / "node.toml").write_text(
            (tmp_path / "node.toml").read_text().replace('127.0.0.1:0"\n[http]', f'{node.address}"\n[http]')
        )
        async with client.publisher(COMMITS) as publisher, asyncio.TaskGroup() as group:
            group.create_task(outside(publisher))
            group.create_task(inside(publisher))
            for _ in range(5):
                await asyncio.sleep(0.3)
                node.kill()
                assert await node.start()
            publishing.set()

        assert await seen(client) == [{"n": n} for n in done[LINES]]
        assert await seen(client, OTHER) == [{"n": n} for n in done[OTHER]]
        assert len(done[OTHER]) > 5


class Lossy:
    """Journals some of whose appends lose their answers, before or after they took effect."""

    def __init__(self, journals: Journals, fate: Callable[[bytes], bool | None]) -> None:
        self._journals, self._fate = journals, fate

    async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
        fate = self._fate(content)
        if fate is None:
            return await self._journals.append(name, content, **options)
        if fate:
            await self._journals.append(name, content, **options)
        raise Unknown("the answer was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journals, name)


def publisher_over(journals: Any, commits: str = "", *, patience: float = 5.0) -> MessagePublisher:
    random: Random = Entropy()("publisher")
    tasks: dict[asyncio.Task[None], None] = {}

    def spawn(work: Any, _name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        tasks[task] = None
        return task

    return MessagePublisher(
        journals, commits, patience=patience, time=SystemTime(), random=random, spawn=spawn
    )


@pytest.mark.parametrize("took_effect", [True, False])
async def test_a_message_whose_answer_is_lost_is_seen_once(tmp_path: Path, *, took_effect: bool) -> None:
    """Every third answer is lost, of messages, of decisions and of acknowledgements."""
    counts = {"all": 0}

    def fate(_content: bytes) -> bool | None:
        counts["all"] += 1
        return took_effect if counts["all"] % 3 == 0 else None

    async with served(tmp_path) as (_, client):
        async with publisher_over(Lossy(client.journals, fate), COMMITS) as publisher:
            for number in range(30):
                await publisher.publish(LINES, {"n": number})
                async with publisher.transaction() as transaction:
                    await transaction.publish(OTHER, {"n": number})

        assert await seen(client) == [{"n": n} for n in range(30)]
        assert await seen(client, OTHER) == [{"n": n} for n in range(30)]
        assert counts["all"] > 150


@pytest.mark.parametrize("took_effect", [True, False])
async def test_a_commit_whose_decision_is_in_doubt_is_unknown_though_the_node_is_gone(
    tmp_path: Path, *, took_effect: bool
) -> None:
    """`Unreachable` is a refusal: its caller would transact again, and the next publisher would show both."""

    class Gone(Lossy):
        is_gone = False

        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if b'"commit"' in content:
                self.is_gone = True
                if took_effect:
                    await self._journals.append(name, content, **options)
                raise Unknown("the answer was lost")
            return await self._journals.append(name, content, **options)

        async def registers(self, name: str, **options: Any) -> Any:
            if self.is_gone:
                raise Unreachable("there is no node")
            return await self._journals.registers(name, **options)

    async with served(tmp_path) as (_, client):
        gone = Gone(client.journals, lambda _: None)
        async with publisher_over(gone, COMMITS, patience=0.3) as publisher:
            with pytest.raises(Unknown, match="may be committed or not: there is no node"):
                await transact(publisher, (LINES, 0))
        async with client.publisher(COMMITS):
            pass

        assert await seen(client) == [{"n": 0}] * took_effect


async def test_a_commit_whose_decision_is_in_doubt_is_unknown_though_it_was_fenced(tmp_path: Path) -> None:
    """The newer publisher found the decision, and shows its messages: they must not be sent again."""

    class Overtaken(Lossy):
        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            done = await self._journals.append(name, content, **options)
            if b'"commit"' in content:
                async with publisher_over(self._journals, COMMITS):
                    raise Unknown("the answer was lost")
            return done

    async with served(tmp_path) as (_, client):
        async with publisher_over(Overtaken(client.journals, lambda _: None), COMMITS) as publisher:
            with pytest.raises(Unknown, match="may be committed or not: another run") as raised:
                await transact(publisher, (LINES, 0))
            assert isinstance(raised.value.__cause__, Fenced)

        assert await seen(client) == [{"n": 0}]


async def test_a_committed_transaction_is_not_refused_though_an_acknowledgement_is(tmp_path: Path) -> None:
    """One journal shows it at once, and the other when the next publisher begins."""

    class Refusing(Lossy):
        decided = False

        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            self.decided |= b'"commit"' in content
            if self.decided and name == LINES:
                raise NotAllowed("the token was revoked")
            return await self._journals.append(name, content, **options)

    async with served(tmp_path) as (_, client):
        async with publisher_over(Refusing(client.journals, lambda _: None), COMMITS) as publisher:
            with pytest.raises(Unknown, match="is committed: the token was revoked"):
                await transact(publisher, (LINES, 0), (OTHER, 0))
        assert (await seen(client), await seen(client, OTHER)) == ([], [{"n": 0}])
        async with client.publisher(COMMITS):
            pass

        assert await seen(client) == [{"n": 0}]


async def test_a_lost_append_does_not_come_back_behind_a_later_one(tmp_path: Path) -> None:
    """The patience ends, the caller is told that it may be there, and goes on: a late copy is a duplicate."""
    kept: list[bytes] = []

    def fate(content: bytes) -> bool | None:
        if b'"late"' in content:
            kept.append(content)
            return False
        return None

    async with served(tmp_path) as (_, client):
        async with publisher_over(Lossy(client.journals, fate), COMMITS, patience=0.3) as publisher:
            with pytest.raises(Unknown):
                await publisher.publish(LINES, {"n": "late"})
            await publisher.publish(LINES, {"n": 1})
            with pytest.raises(Unknown):
                await transact(publisher, (OTHER, 1), (LINES, "late"))
            await transact(publisher, (OTHER, 2))
        assert len(dict.fromkeys(kept)) == 2
        for content in dict.fromkeys(kept):
            await client.journals.append(LINES, content)

        assert await seen(client) == [{"n": 1}]
        assert await seen(client, OTHER) == [{"n": 2}]


async def test_a_journal_that_was_made_again_gets_nothing_of_an_older_transaction(tmp_path: Path) -> None:
    """Its first messages are gone: the rest alone must not be committed."""
    async with served(tmp_path) as (_, client), client.publisher(COMMITS) as publisher:
        transaction = publisher.transaction()
        await transaction.publish(LINES, {"n": "gone"})
        await asyncio.wait(list(transaction._on_way))
        await client.journals.delete(LINES)
        await client.journals.create(LINES, labels=JSON)
        await transaction.publish(LINES, {"n": "alone"})
        with pytest.raises(NotFound):
            await transaction.commit()
        await publisher.publish(LINES, {"n": 1})

        assert await seen(client) == [{"n": 1}]


async def test_a_transaction_whose_journal_was_made_again_is_refused_whoever_noticed_it(
    tmp_path: Path,
) -> None:
    """Another message of the publisher met the new journal: what went with the old one stays missing."""
    async with served(tmp_path) as (_, client), client.publisher(COMMITS) as publisher:
        transaction = publisher.transaction()
        await transaction.publish(LINES, {"n": "gone"})
        await asyncio.wait(list(transaction._on_way))
        await client.journals.delete(LINES)
        await client.journals.create(LINES, labels=JSON)
        with pytest.raises(NotFound):
            await publisher.publish(LINES, {"n": "refused"})
        await publisher.publish(LINES, {"n": 1})
        with pytest.raises(NotFound, match="went with it"):
            await transaction.publish(LINES, {"n": "alone"})
        with pytest.raises(NotFound, match="went with it"):
            await transaction.commit()
        await transact(publisher, (LINES, 2))

        assert await seen(client) == [{"n": 1}, {"n": 2}]


async def test_a_transaction_that_learns_of_a_loss_before_its_end_is_rolled_back(tmp_path: Path) -> None:
    """Its publisher goes on with the next one."""
    async with served(tmp_path) as (_, client), client.publisher(COMMITS) as publisher:
        await transact(publisher, (LINES, 0))
        await client.journals.delete(LINES)
        await client.journals.create(LINES, labels=JSON)
        transaction = publisher.transaction()
        await transaction.publish(OTHER, {"n": "rolled back"})
        await transaction.publish(LINES, {"n": "refused"})
        await until(lambda: not transaction._on_way)
        with pytest.raises(NotFound):
            await transaction.__aexit__(None, None, None)
        await transact(publisher, (LINES, 1), (OTHER, 1))

        assert await seen(client) == [{"n": 1}]
        assert await seen(client, OTHER) == [{"n": 1}]


async def test_a_commit_that_is_too_late_ends_no_other_transaction(tmp_path: Path) -> None:
    """It waits for its messages while its transaction is rolled back and the next one begins."""
    gate = asyncio.Event()

    class Slow(Lossy):
        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if name == LINES:
                await gate.wait()
            return await self._journals.append(name, content, **options)

    async with served(tmp_path) as (_, client):
        async with publisher_over(Slow(client.journals, lambda _: None), COMMITS) as publisher:
            first = publisher.transaction()
            await first.publish(LINES, {"n": "rolled back"})
            late = asyncio.ensure_future(first.commit())
            await asyncio.sleep(0)
            first.roll_back()
            second = publisher.transaction()
            gate.set()
            with pytest.raises(LocalProtocolError, match="has ended"):
                await late
            with pytest.raises(LocalProtocolError, match="end it first"):
                publisher.transaction()
            await second.publish(OTHER, {"n": 1})
            await second.commit()

        assert await seen(client) == []
        assert await seen(client, OTHER) == [{"n": 1}]


async def test_a_journal_is_looked_up_once_though_many_begin_at_once(tmp_path: Path) -> None:
    """Each look-up makes a way of its own: messages of one would overtake a lost append of another."""

    class Counting(Lossy):
        looked = 0

        async def get(self, name: str, **options: Any) -> Any:
            self.looked += 1
            return await self._journals.get(name, **options)

    async with served(tmp_path) as (_, client):
        counting = Counting(client.journals, lambda _: None)
        async with publisher_over(counting) as publisher:
            await asyncio.gather(*(publisher.publish(LINES, {"n": n}) for n in range(20)))
        assert counting.looked == 1

        assert await seen(client) == [{"n": n} for n in range(20)]


async def test_a_journal_has_one_way_though_it_was_forgotten_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ways, one would overtake a lost append of the other, and readers would drop its messages."""
    monkeypatch.setattr(lanes, "LANES_MAX", 1)
    monkeypatch.setattr(lanes, "WAITING_BYTES_MAX", 0)
    gate, lost = asyncio.Event(), iter(range(1))

    class Slow(Lossy):
        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if name == OTHER:
                await gate.wait()
            if b'"first"' in content and next(lost, None) is not None:
                raise Unknown("the answer was lost")
            return await self._journals.append(name, content, **options)

    async with served(tmp_path) as (_, client):
        async with publisher_over(Slow(client.journals, lambda _: None)) as publisher:
            await publisher.publish(LINES, {"n": 0})
            filling = asyncio.ensure_future(publisher.publish(OTHER, {"n": 0}))
            await until(lambda: publisher._lanes._bytes > 0)
            first = asyncio.ensure_future(publisher.publish(LINES, {"n": "first"}))
            await until(lambda: len(publisher._lanes._room._waiting) == 1)
            await publisher._lanes.lane(FIXED)
            second = asyncio.ensure_future(publisher.publish(LINES, {"n": "second"}))
            await until(lambda: len(publisher._lanes._asking._waiters or ()) == 1)
            monkeypatch.setattr(lanes, "WAITING_BYTES_MAX", 1 << 20)
            gate.set()
            await asyncio.gather(filling, first, second)

        assert await seen(client) == [{"n": 0}, {"n": "first"}, {"n": "second"}]


async def test_a_message_that_waited_while_its_journal_was_made_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acknowledgement names the old journal: in the new one it would be lost, and the commit succeed."""
    full, gone = asyncio.Event(), asyncio.Event()

    class Slow(Lossy):
        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if name in (OTHER, LINES):
                await (full if name == OTHER else gone).wait()
            return await self._journals.append(name, content, **options)

    async with served(tmp_path) as (_, client):
        async with publisher_over(Slow(client.journals, lambda _: None), COMMITS) as publisher:
            filling = asyncio.ensure_future(publisher.publish(OTHER, {"n": 0}))
            early = asyncio.ensure_future(publisher.publish(LINES, {"n": "gone"}))
            await until(lambda: len(publisher._lanes._lanes) == 2 and publisher._lanes._bytes > 100)
            monkeypatch.setattr(lanes, "WAITING_BYTES_MAX", 0)
            transaction = publisher.transaction()
            late = asyncio.ensure_future(transaction.publish(LINES, {"n": "late"}))
            await until(lambda: len(publisher._lanes._room._waiting) == 1)
            await client.journals.delete(LINES)
            await client.journals.create(LINES, labels=JSON)
            gone.set()
            with pytest.raises(NotFound):
                await early
            await publisher._lanes.lane(LINES)
            monkeypatch.setattr(lanes, "WAITING_BYTES_MAX", 1 << 20)
            full.set()
            await asyncio.gather(filling, late)
            with pytest.raises(NotFound):
                await transaction.commit()

        assert await seen(client) == []


async def test_a_publisher_that_is_far_ahead_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a fast program holds all that it has published in memory while the node is slow."""
    monkeypatch.setattr(lanes, "WAITING_BYTES_MAX", 100_000)
    monkeypatch.setattr(arguments, "PORTION_BYTES", 5_000)
    gate = asyncio.Event()

    class Slow:
        def __init__(self, journals: Journals) -> None:
            self._journals = journals

        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            await gate.wait()
            return await self._journals.append(name, content, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._journals, name)

    async with served(tmp_path) as (_, client):
        async with publisher_over(Slow(client.journals)) as publisher:
            many = [{"n": n, "padding": "x" * 1000} for n in range(500)]
            task = asyncio.ensure_future(publisher.publish_many(LINES, many))
            await asyncio.sleep(0.1)
            assert 100_000 < publisher._lanes._bytes < 110_000
            gate.set()
            await task
            assert publisher._lanes._bytes == 0

        assert [each["n"] for each in await seen(client)] == list(range(500))


async def test_an_acknowledgement_that_comes_twice_takes_nothing_back(tmp_path: Path) -> None:
    """The second copy comes late, and takes back what its producer has sent since: another one now."""
    lost: list[bytes] = []

    def fate(content: bytes) -> bool | None:
        if b'"n"' in content or b"commit" in content or not content.startswith(b'{"_meta"') or lost:
            return None
        lost.append(content)
        return True

    async with served(tmp_path) as (_, client):
        async with publisher_over(Lossy(client.journals, fate), COMMITS) as publisher:
            await transact(publisher, (LINES, 0))
            async with publisher.transaction() as transaction:
                await transaction.publish(LINES, {"n": 1})
                await until(lambda: not transaction._on_way)
                await client.journals.append(LINES, lost[0])

        assert await seen(client) == [{"n": 0}, {"n": 1}]


async def test_a_message_that_may_be_there_is_not_refused_though_its_repetition_is(tmp_path: Path) -> None:
    """The token was revoked behind a lost answer: whoever publishes it again has it there twice (C2)."""
    tries = iter(range(1))

    class Revoked(Lossy):
        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if next(tries, None) is None:
                raise NotAllowed("the token was revoked")
            await self._journals.append(name, content, **options)
            raise Unknown("the answer was lost")

    async with served(tmp_path) as (_, client):
        async with publisher_over(Revoked(client.journals, lambda _: None)) as publisher:
            with pytest.raises(Unknown, match="may be in out/lines: the answer was lost; then: the token"):
                await publisher.publish(LINES, {"n": 0})

        assert await seen(client) == [{"n": 0}]


async def test_messages_stand_in_the_order_of_the_calls_though_these_waited_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some wait already when others come, and each answer makes room for a few of them."""
    monkeypatch.setattr(lanes, "WAITING_BYTES_MAX", 5_000)
    async with served(tmp_path) as (_, client):
        async with client.publisher() as publisher, asyncio.TaskGroup() as group:
            for number in range(1_000):
                group.create_task(publisher.publish(LINES, {"n": number}))
                if not number % 3:
                    await asyncio.sleep(0)

        assert await seen(client) == [{"n": number} for number in range(1_000)]


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_message_has_its_whole_patience_though_it_leaves_with_an_older_one(
    tmp_path: Path, *, is_behind: bool
) -> None:
    """The node is away until the time of the older one is over. Only what is behind that fails too."""
    filled = asyncio.Event()

    class Away(Lossy):
        is_away = False

        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if self.is_away:
                raise Unreachable("there is no node")
            done = await self._journals.append(name, content, **options)
            await filled.wait()
            return done

    async with served(tmp_path) as (_, client):
        away = Away(client.journals, lambda _: None)
        async with publisher_over(away, patience=2) as publisher:
            lane = await publisher._lanes.lane(LINES)

            def put(n: object, behind: asyncio.Future[None] | None = None) -> asyncio.Future[None]:
                body = msgspec.json.encode({"n": n})
                stamped = publisher._outside.committed(lane.framing, body, publisher._time.wall())
                return publisher._lanes.put(lane, stamped, behind=behind)

            filling = put("filling")
            await until(lambda: not lane._waiting)
            older = put("older")
            await asyncio.sleep(1)
            newer = put("newer", older if is_behind else None)
            away.is_away = True
            filled.set()
            await filling
            with pytest.raises(Unreachable):
                await older
            away.is_away = False
            if is_behind:
                with pytest.raises(Unreachable):
                    await newer
            else:
                await newer
            assert publisher._lanes._bytes == 0

        assert await seen(client) == [{"n": "filling"}] + [{"n": "newer"}] * (not is_behind)


async def test_of_many_messages_none_is_there_behind_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who knows how many are there goes on behind them: `messages publish --skip-lines` does.

    It is Unknown, though what was refused is not there: some are, so all of them must not be sent again.
    """
    monkeypatch.setattr(arguments, "PORTION_BYTES", 1_000)
    monkeypatch.setattr(lanes, "APPEND_BYTES", 1_000)

    class Refusing(Lossy):
        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if b'"n":30,' in content:
                raise Throttled("the log is full")
            return await self._journals.append(name, content, **options)

    async with served(tmp_path) as (_, client):
        async with publisher_over(Refusing(client.journals, lambda _: None), patience=0.3) as publisher:
            many = publisher.publish_many(LINES, [{"n": n, "padding": "x" * 50} for n in range(100)])
            other = publisher.publish(LINES, {"n": "another"})
            outcomes = await asyncio.gather(many, other, return_exceptions=True)

        assert isinstance(outcomes[0], Unknown)
        assert "the first of 100 messages are in" in str(outcomes[0])
        assert outcomes[1] is None
        numbers = [each["n"] for each in await seen(client) if each["n"] != "another"]
        assert numbers == list(range(len(numbers)))
        assert 0 < len(numbers) <= 30


async def test_of_many_messages_whose_caller_is_cancelled_none_is_there_behind_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled while the first of them are on their way, and these are not appended in the end."""
    monkeypatch.setattr(arguments, "PORTION_BYTES", 1_000)
    monkeypatch.setattr(lanes, "APPEND_BYTES", 1_000)
    gate = asyncio.Event()

    class Refusing(Lossy):
        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if b'"n":0,' in content:
                await gate.wait()
                raise NotAllowed("the token was revoked, and given again")
            return await self._journals.append(name, content, **options)

    async with served(tmp_path) as (_, client):
        async with publisher_over(Refusing(client.journals, lambda _: None)) as publisher:
            many = [{"n": n, "padding": "x" * 50} for n in range(100)]
            cancelled = asyncio.ensure_future(publisher.publish_many(LINES, many))
            await until(lambda: publisher._lanes._bytes > 10_000)
            cancelled.cancel()
            await asyncio.wait((cancelled,))
            gate.set()
            await publisher.publish(LINES, {"n": "behind"})
            assert publisher._lanes._bytes == 0

        assert await seen(client) == [{"n": "behind"}]


async def test_a_refusal_that_passes_is_waited_for(tmp_path: Path) -> None:
    """A node that is full for a second must not fail a transaction of an hour."""
    refusals = iter(range(5))

    class Full:
        def __init__(self, journals: Journals) -> None:
            self._journals = journals

        async def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if name == LINES and next(refusals, None) is not None:
                raise Throttled("the log is full")
            return await self._journals.append(name, content, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._journals, name)

    async with served(tmp_path) as (_, client):
        async with publisher_over(Full(client.journals)) as publisher:
            await publisher.publish(LINES, {"n": 1})

        assert await seen(client) == [{"n": 1}]
        with pytest.raises(StopIteration):
            next(refusals)


async def test_wrong_arguments_are_refused_and_change_nothing(tmp_path: Path) -> None:
    """Each with its values and what to do, before anything is stamped or sent."""
    async with served(tmp_path) as (_, client):
        unentered = client.publisher()
        with pytest.raises(LocalProtocolError, match="enter it with"):
            await unentered.publish(LINES, {"n": 1})
        async with client.publisher() as publisher:
            for wrong, text in ((["a"], "one object"), ("[1]", "one object"), (b"{\n}", "one line")):
                with pytest.raises(InvalidArgument, match=text):
                    await publisher.publish(LINES, wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="not JSON"):
                await publisher.publish(LINES, {"n": object()})
            with pytest.raises(InvalidArgument, match="reserved for the UUID"):
                await publisher.publish(LINES, {"_meta": {"uuid": "mine"}})
            with pytest.raises(InvalidArgument, match="fixed frames takes bytes"):
                await publisher.publish(FIXED, {"n": 1})
            with pytest.raises(InvalidArgument, match="name one, or several with a key"):
                await publisher.publish([LINES, OTHER], {"n": 1})
            with pytest.raises(InvalidArgument, match="name one, or several with a key"):
                await publisher.publish([], {"n": 1}, key="k")
            with pytest.raises(InvalidArgument, match="leave the key out"):
                await publisher.publish(LINES, {"n": 1}, key="k")
            with pytest.raises(NotFound):
                await publisher.publish("out/nothing", {"n": 1})
            with pytest.raises(InvalidArgument, match=r"name one, client\.publisher"):
                publisher.transaction()
        with pytest.raises(LocalProtocolError, match="was closed"):
            await publisher.publish(LINES, {"n": 1})
        with pytest.raises(LocalProtocolError, match="entered before"):
            await publisher.__aenter__()
        async with client.publisher(COMMITS) as publisher:
            with pytest.raises(InvalidArgument, match="the publisher's commit journal"):
                await publisher.publish(COMMITS, {"n": 1})
            async with publisher.transaction() as transaction:
                with pytest.raises(LocalProtocolError, match="end it first"):
                    publisher.transaction()
                with pytest.raises(InvalidArgument):
                    await transaction.publish_many(LINES, [{"n": 1}, {"n": object()}])
        await publisher_is_refused(client)

        assert [await seen(client, name) for name in (LINES, OTHER, FIXED)] == [[], [], []]


async def publisher_is_refused(client: Client) -> None:
    """Commit journals of a Spark query, and journals that hold data, stay as they are."""
    await client.journals.create("out/spark")
    union = {"author": "f", "batch": "3", "query": "a-query", "at": "0"}
    await client.journals.append("out/spark", b"{}\n", union=union)
    await client.journals.create("out/data")
    await client.journals.append("out/data", b"data\n")
    for name, text in (("out/spark", "Spark query a-query"), ("out/data", "no query's registers")):
        with pytest.raises(ConfigError, match=text):
            async with client.publisher(name):
                pass
    assert (await client.journals.registers("out/spark")).values == union


async def test_a_client_that_closes_ends_what_is_on_its_way(tmp_path: Path) -> None:
    """Nobody waits for ever, and what was not sent is told as not sent."""
    async with served(tmp_path) as (node, _):
        client = broadsheet.connect(node.address)
        await client.__aenter__()
        publisher = await client.publisher().__aenter__()
        await publisher.publish(LINES, {"n": 0})
        node.kill()
        first = asyncio.ensure_future(publisher.publish(LINES, {"n": 1}))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(publisher.publish(LINES, {"n": 2}))
        await asyncio.sleep(0.05)
        await client.__aexit__(None, None, None)
        for each in (first, second):
            with pytest.raises(BroadsheetError, match="closed"):
                await asyncio.wait_for(each, 5)


async def test_look_ups_give_up_with_the_patience_whoever_waits_for_them(tmp_path: Path) -> None:
    """They took 30 s, whatever it was, and those of several callers one after the other."""
    async with served(tmp_path) as (node, client), client.publisher(patience=1) as publisher:
        os.kill(node.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        found = await asyncio.gather(
            *(publisher.publish(f"out/{number}", {"n": 1}) for number in range(20)),
            client.publisher(COMMITS, patience=1).__aenter__(),
            anext(aiter(client.messages(LINES, patience=1))),
            return_exceptions=True,
        )
        took = time.monotonic() - began
        os.kill(node.process.pid, signal.SIGCONT)

        assert {type(each) for each in found} <= {DeadlineExceeded, Unreachable}
        assert took < 10


async def test_a_publisher_that_closes_between_portions_says_that_the_first_may_be_there(
    tmp_path: Path,
) -> None:
    """It said that nothing was sent, and a program that sent all again doubled the first ones (C2)."""
    async with served(tmp_path) as (_, client):
        publisher = await client.publisher().__aenter__()
        messages = [{"n": n, "x": "x" * arguments.PORTION_BYTES} for n in range(20)]
        publishing = asyncio.ensure_future(publisher.publish_many(LINES, messages))
        await until(lambda: publisher._lanes._bytes > 0)  # One portion is on its way.
        publisher.close()

        with pytest.raises(Unknown, match="the first of 20 messages may be in out/lines"):
            await publishing
        with pytest.raises(LocalProtocolError, match="was closed"):
            await publisher.publish_many(LINES, messages)


async def test_a_client_that_closes_before_a_message_could_leave_says_so(tmp_path: Path) -> None:
    """Its task never took a step. Later messages are refused, and what is open is rolled back."""
    async with served(tmp_path) as (node, _):
        client = broadsheet.connect(node.address)
        await client.__aenter__()
        publisher = await client.publisher(COMMITS).__aenter__()
        await transact(publisher, (LINES, 0))
        transaction = publisher.transaction()
        await transaction.publish(LINES, {"n": 1})
        await client.__aexit__(None, None, None)
        with pytest.raises(ShuttingDown, match="closed"):
            await asyncio.wait_for(transaction.commit(), 5)
        with pytest.raises(LocalProtocolError, match="the client is closed"):
            await asyncio.wait_for(publisher.publish(LINES, {"n": 2}), 5)
        assert publisher._lanes._bytes == 0
        open_one = publisher.transaction()
        with pytest.raises(LocalProtocolError, match="the client is closed"):
            await open_one.publish(LINES, {"n": 3})
        publisher.close()
