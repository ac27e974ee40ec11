"""Runs of appends from one client: what its caller is told of them, and how many streams they take."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import broadsheet
from broadsheet.base.types import JournalName, Revision
from broadsheet.client import Client
from broadsheet.errors import (
    BroadsheetError,
    DeadlineExceeded,
    LocalProtocolError,
    NotFound,
    Refused,
    ShuttingDown,
    Status,
    Throttled,
    TooLarge,
    Unknown,
    Unreachable,
)
from broadsheet.journal.client_batches import STREAMS_KEPT, Batches
from broadsheet.journal.core.spec import JournalSpec
from broadsheet.journal.messages import Commit, JournalInfo, RunReply, RunRequest
from broadsheet.journal.service import ROWS
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import RunOpened
from broadsheet.wire.run import Run
from tests.journal.node_process import CONFIG, NodeProcess
from tests.wire.harness import Log, until, world

NAME = "runs/a"
LENGTH = 50_000
FRAMES_OF = 200
CLOSED_SECONDS_MAX = 5.0


def marks(content: bytes) -> list[int]:
    """Which of the appends stand there."""
    return [content[at] for at in range(0, len(content), LENGTH)]


async def content_of(client: Client, offset: int) -> bytes:
    return b"".join([chunk.data async for chunk in client.journals.read(NAME, offset)])


async def test_many_appends_of_which_some_were_taken_are_never_called_refused(tmp_path: Path) -> None:
    """C2: Refused is certain. A frame was refused for want of room, those beside it were appended."""
    node = NodeProcess(tmp_path)
    config = CONFIG.replace(
        "[journals.wal]\nsegment_bytes = 1048576", "[journals.wal]\nsegment_bytes = 8388608"
    )
    (tmp_path / "node.toml").write_text(f"{config}\n[journals.limits]\npending_bytes_max = 2100000\n")
    contents = [bytes([n]) * LENGTH for n in range(FRAMES_OF)]
    partial = 0
    try:
        assert await node.start(), (tmp_path / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME)
            for _ in range(4):
                begin = (await client.journals.append(NAME)).end
                try:
                    commits = await client.journals.append_many(NAME, contents)
                except Refused:
                    assert await content_of(client, begin) == b""
                except Unknown as error:
                    partial += isinstance(error.__cause__, Throttled)
                    assert marks(await content_of(client, begin))
                else:
                    assert len(commits) == FRAMES_OF
            assert partial, "nothing was refused: the limit is not met"
            assert len(await client.journals.append_many(NAME, contents[:10])) == 10, "the stream is sound"
    finally:
        node.kill()


async def test_one_client_appends_to_more_journals_than_a_connection_has_streams(tmp_path: Path) -> None:
    """Each journal kept its stream open for ever: after the last one, every call waited for its deadline."""
    node, count = NodeProcess(tmp_path), 1_100
    (tmp_path / "node.toml").write_text(CONFIG[: CONFIG.index("[keyspace]")])
    try:
        assert await node.start(), (tmp_path / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            journals = client.journals
            await asyncio.gather(*(journals.create(f"many/{n}") for n in range(count)))
            appends = (journals.append(f"many/{n}", b"%d" % n, timeout=60) for n in range(count))
            commits = await asyncio.gather(*appends)
            assert all(commit.begin == 0 for commit in commits)
            assert (await journals.append("many/7", b"again")).begin == 1
            assert len(journals._batches._batches) <= STREAMS_KEPT
            assert (await journals.status("many/1099")).end == 4
    finally:
        node.kill()


async def test_a_journal_that_is_deleted_during_appends_leaves_no_stream_open(tmp_path: Path) -> None:
    """Whoever deleted 2,000 such journals had no stream left: every further call waited for its deadline."""
    node, told = NodeProcess(tmp_path), list[type]()

    async def append(client: Client, name: str) -> None:
        try:
            while True:
                await client.journals.append(name, bytes(1_000))
        except BroadsheetError as error:
            told.append(type(error))

    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            for number in range(100):
                await client.journals.create(f"short/{number}")
                appends = [asyncio.ensure_future(append(client, f"short/{number}")) for _ in range(4)]
                await asyncio.sleep(0.02)
                await client.journals.delete(f"short/{number}")
                await asyncio.gather(*appends)
                if told.count(Unknown) >= 20:
                    break
            assert Unknown in told, "no append was on its way to the disk when its journal was deleted"
            await client.journals._batches.close()
            (connection,) = client._pool._connections.values()  # type: ignore[union-attr]
            await until(lambda: not connection._runs)
    finally:
        node.kill()


async def test_appends_to_a_journal_that_was_made_again_are_all_taken(tmp_path: Path) -> None:
    """Frames that were on their way together were refused, but the first: as deleted, though it was there."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client, broadsheet.connect(node.address) as other:
            journals = client.journals

            async def append(turns: int) -> Commit:
                for _ in range(turns):
                    await asyncio.sleep(0)
                return await journals.append(NAME, b"%03d" % turns)

            for _ in range(2):
                await other.journals.create(NAME)
                assert (await journals.append_many(NAME, [b"many"] * 3))[-1].end == 12
                await other.journals.delete(NAME)
                await other.journals.create(NAME)
                commits = await asyncio.gather(*[append(turns) for turns in range(0, 30, 3)])
                assert sorted([commit.begin for commit in commits]) == [*range(0, 30, 3)]
                await other.journals.delete(NAME)
            with pytest.raises(NotFound):
                await journals.append_many(NAME, [b"gone"])
            with pytest.raises(NotFound):
                await append(0)
    finally:
        node.kill()


class Deleted(Log):
    """A journal that was deleted: it refuses its runs when it is told, and from then on."""

    def place(self, run: Run) -> None:
        run.answer(Status.NOT_FOUND, message="it was deleted")


@pytest.mark.parametrize("is_together", [False, True])
async def test_appends_that_wait_for_room_are_taken_by_a_journal_that_was_made_again(
    is_together: bool,
) -> None:
    """The first answer ended the old stream, and whoever waited there was refused, as unreachable."""
    contents = [bytes([n]) * LENGTH for n in range(20)]
    limits = WireLimits(frame_bytes_max=128 << 10, window_bytes=300 << 10)
    async with world(limits) as w, asyncio.timeout(20):
        gone, made = Deleted(), Log()
        gone.is_holding = True
        opened = [gone, made]
        row = next(row for row in ROWS if row.request is RunRequest)
        w.server.table[row.number] = row.method(lambda _, request: open_run(opened.pop(0), request, LENGTH))
        w.server.numbers[row.name] = row.number
        async with broadsheet.connect(w.address) as client:
            journals = client.journals
            appends: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(journals.append(NAME, content)) for content in contents[:10]
            ]
            if is_together:
                appends.append(asyncio.ensure_future(journals.append_many(NAME, contents[10:])))
            await until(lambda: sum(run.size for run in gone.held) + LENGTH > limits.window_bytes)
            gone.release()
            await asyncio.gather(*appends)
            assert sorted(marks(bytes(made.content))) == [*range(20 if is_together else 10)]


async def test_appends_on_their_way_to_a_journal_that_is_made_again_keep_the_order_of_their_calls() -> None:
    """Each frame that was refused went before those that had been refused earlier: the last came first."""
    async with world() as w, asyncio.timeout(20):
        gone, made = Deleted(), Log()
        gone.is_holding = True
        opened = [gone, made]
        row = next(row for row in ROWS if row.request is RunRequest)
        w.server.table[row.number] = row.method(lambda _, request: open_run(opened.pop(0), request))
        w.server.numbers[row.name] = row.number
        async with broadsheet.connect(w.address) as client:
            appends: list[asyncio.Future[Commit]] = []
            for number in range(6):
                appends.append(asyncio.ensure_future(client.journals.append(NAME, b"%d" % number)))
                await until(lambda: len(gone.held) == len(appends))
            gone.release()
            await asyncio.gather(*appends)
            assert made.content == b"012345"


async def test_an_append_that_is_called_while_earlier_ones_are_refused_goes_behind_them() -> None:
    """The order is that of the calls, though the newest was ready first. No test noticed the other one."""
    async with world() as w, asyncio.timeout(20):
        gone, made, gate = Deleted(), Log(), asyncio.Event()
        gone.is_holding = True
        opened, waiting = [gone, made], list[RunRequest]()

        async def open_next(_call: object, request: RunRequest) -> RunOpened:
            if len(opened) == 1:
                waiting.append(request)
                await gate.wait()
            return await open_run(opened.pop(0), request)

        row = next(row for row in ROWS if row.request is RunRequest)
        w.server.table[row.number] = row.method(open_next)
        w.server.numbers[row.name] = row.number
        async with broadsheet.connect(w.address) as client:
            appends: list[asyncio.Future[Commit]] = []
            for number in range(3):
                appends.append(asyncio.ensure_future(client.journals.append(NAME, b"%d" % number)))
                await until(lambda: len(gone.held) == len(appends))
            gone.place(gone.held.pop(0))
            await until(lambda: bool(waiting))
            appends.append(asyncio.ensure_future(client.journals.append(NAME, b"3")))
            batches = client.journals._batches.of(NAME)
            await until(lambda: len(batches._ready) == 1)
            gone.release()
            await until(lambda: len(batches._ready) == 3)
            gate.set()
            await asyncio.gather(*appends)
            assert made.content == b"0123"


class Reopened(Log):
    """A journal that a command has opened anew: runs on the streams from before are refused for ever."""

    def place(self, run: Run) -> None:
        run.answer(Status.SHUTTING_DOWN, message="it is opened again")


@pytest.mark.parametrize("is_one", [False, True])
async def test_an_append_behind_one_that_a_reopened_journal_refused_goes_on_a_new_stream(
    is_one: bool,
) -> None:
    """A stream belongs to one opening. No test noticed that a client kept it, and was refused for ever."""
    async with world() as w, asyncio.timeout(20):
        made = Log()
        opened = [Reopened(), made]
        row = next(row for row in ROWS if row.request is RunRequest)
        w.server.table[row.number] = row.method(lambda _, request: open_run(opened.pop(0), request))
        w.server.numbers[row.name] = row.number
        async with broadsheet.connect(w.address) as client:

            async def append(content: bytes) -> None:
                journals = client.journals
                await (journals.append(NAME, content) if is_one else journals.append_many(NAME, [content]))

            with pytest.raises(ShuttingDown, match="it is opened again"):
                await append(b"refused")
            await append(b"taken")
            assert made.content == b"taken"


@pytest.mark.parametrize("is_one", [False, True])
async def test_appends_that_were_refused_and_find_no_stream_any_more_are_refused(is_one: bool) -> None:
    """C2: nothing of them is in any journal, and at the end of their time they were in doubt."""
    async with world() as w, asyncio.timeout(20):
        opened: list[Log] = [Deleted()]

        async def open_once(_call: object, request: RunRequest) -> RunOpened:
            if not opened:
                await asyncio.Event().wait()
            return await open_run(opened.pop(), request)

        row = next(row for row in ROWS if row.request is RunRequest)
        w.server.table[row.number] = row.method(open_once)
        w.server.numbers[row.name] = row.number
        async with broadsheet.connect(w.address) as client:
            journals = client.journals
            with pytest.raises(Unreachable, match="it could not be sent in"):
                await (
                    journals.append(NAME, b"refused", timeout=0.3)
                    if is_one
                    else journals.append_many(NAME, [b"refused"], timeout=0.3)
                )


async def test_appends_that_make_a_run_above_the_frames_of_their_node_are_refused_at_once() -> None:
    """What no stream takes is not sent again on another one."""
    async with world(WireLimits(frame_bytes_max=128 << 10)) as w, asyncio.timeout(20):
        row = next(row for row in ROWS if row.request is RunRequest)
        w.server.table[row.number] = row.method(lambda _, request: open_run(Log(), request))
        w.server.numbers[row.name] = row.number
        async with broadsheet.connect(w.address) as client:
            appends = [asyncio.ensure_future(client.journals.append(NAME, bytes(LENGTH))) for _ in range(3)]
            told = await asyncio.gather(*appends, return_exceptions=True)
            assert [type(each) for each in told] == [TooLarge] * 3


async def test_what_was_not_sent_when_its_caller_left_is_not_sent_later(tmp_path: Path) -> None:
    """It stood in a queue without end, and was appended minutes after its caller had given up."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME)
            runs = client.journals._batches.of(NAME)
            async with runs._opening:  # Nothing can be sent meanwhile.
                first = asyncio.ensure_future(client.journals.append(NAME, b"first "))
                gone = [asyncio.ensure_future(client.journals.append(NAME, b"gone"))]  # In its frame.
                await asyncio.sleep(0.01)
                gone += [asyncio.ensure_future(client.journals.append(NAME, b"gone")) for _ in range(5)]
                kept = asyncio.ensure_future(client.journals.append(NAME, b"kept"))
                await asyncio.sleep(0)
                for each in gone:
                    each.cancel()
                await asyncio.gather(*gone, return_exceptions=True)
            await asyncio.gather(first, kept)
            assert await content_of(client, 0) == b"first kept"
    finally:
        node.kill()


async def test_an_append_sends_what_its_content_was_when_it_was_called(tmp_path: Path) -> None:
    """A buffer was used again after a timeout, while the append still waited for room.

    The node got the next content twice, half of one, and one of an append that was refused.
    """
    node, buffer = NodeProcess(tmp_path), bytearray(b"first ")
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME)
            runs = client.journals._batches.of(NAME)
            async with runs._opening:  # Nothing can be sent meanwhile.
                first = asyncio.ensure_future(client.journals.append(NAME, buffer))
                await asyncio.sleep(0.01)
                buffer[:] = b"later "
                second = asyncio.ensure_future(client.journals.append_many(NAME, [memoryview(buffer)]))
                await asyncio.sleep(0.01)
                buffer[:] = b"third "
            await asyncio.gather(first, second)
            assert sorted((await content_of(client, 0)).split()) == [b"first", b"later"]
    finally:
        node.kill()


class Away:
    """A node that cannot be reached."""

    async def open_run(self, *_: Any, **__: Any) -> Any:
        await asyncio.get_running_loop().create_future()


async def test_appends_that_are_late_together_cost_little_more_than_their_timeouts() -> None:
    """Each was looked for among all: of 20,000 that a node did not take, the loop stood still for 18 s."""
    caller: Any = Away()
    batches, count = Batches(caller, JournalName(NAME)), 20_000

    async def timeout() -> None:
        async with asyncio.timeout(0.1):
            await asyncio.get_running_loop().create_future()

    async def cpu_seconds(late: Callable[[], Awaitable[object]], error: type[Exception]) -> float:
        begun = time.process_time()
        told = await asyncio.gather(*(late() for _ in range(count)), return_exceptions=True)
        assert all(type(each) is error for each in told)
        return time.process_time() - begun

    alone = await cpu_seconds(timeout, TimeoutError)
    assert await cpu_seconds(lambda: batches.append(b"x", 0.1), Unreachable) < 6 * alone
    await batches.close()


async def test_a_client_whose_node_is_gone_closes_at_once(tmp_path: Path) -> None:
    """It waited half a minute, until an append that its caller had given up could not be sent."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME)
            await client.journals.append(NAME, b"its stream is open")
            runs = client.journals._batches.of(NAME)
            stream = runs._stream
            assert stream is not None
            node.kill()
            with contextlib.suppress(BroadsheetError):
                await stream.close()
            assert stream.has_ended
            assert runs._stream is stream, "nobody has tried since"
            given_up = asyncio.ensure_future(client.journals.append(NAME, b"given up"))
            await asyncio.sleep(0.1)
            assert runs._sender is not None, "it dials"
            given_up.cancel()
            begun = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - begun < CLOSED_SECONDS_MAX
    finally:
        node.kill()


async def open_run(log: Log, request: RunRequest, run_bytes_max: int = 1 << 20) -> RunOpened:
    """The node's answer to a client that appends to `log`."""
    info = JournalInfo(JournalSpec(name=request.journal), Revision(1), Revision(1))
    return RunOpened(body=RunReply(journal=info, run_bytes_max=run_bytes_max), sink=log)


async def test_a_client_leaves_though_an_append_that_was_given_up_is_never_answered() -> None:
    """Where the disk of a node hung, `append` raised in its time, and the end of `async with` never came.

    Where somebody else still waits for an append, the client waits for that.
    """
    async with world() as w:
        log = Log()
        row = next(row for row in ROWS if row.request is RunRequest)
        w.server.table[row.number] = row.method(lambda _call, request: open_run(log, request))
        w.server.numbers[row.name] = row.number
        log.is_holding = True
        async with asyncio.timeout(20):
            async with broadsheet.connect(w.address) as client:
                with pytest.raises(DeadlineExceeded):
                    await client.journals.append(NAME, b"never answered", timeout=0.1)
                with pytest.raises(DeadlineExceeded):
                    await client.journals.append_many(NAME, [b"nor is this"], timeout=0.1)
            async with broadsheet.connect(w.address) as client:
                waits = asyncio.ensure_future(client.journals.append(NAME, b"answered"))
                await until(lambda: len(log.held) == 3)
                asyncio.get_running_loop().call_later(0.1, log.release)
            assert (await waits).end == len(log.content)


async def test_an_append_that_was_not_begun_when_its_client_was_closed_is_refused_at_once() -> None:
    """What was to send it had not had its first step, and nobody told the caller: it waited half a minute."""
    async with world() as w, asyncio.timeout(20):
        async with broadsheet.connect(w.address) as client:
            late = asyncio.ensure_future(client.journals.append(NAME, b"late"))
            await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            await late


async def test_many_appends_that_no_node_takes_are_refused_and_hold_no_client_up() -> None:
    """They waited for a node that was gone, and the client that was closed waited for them: half a minute.

    C2: and at the end of their time they were in doubt, though nothing was ever sent.
    """
    async with world() as w, asyncio.timeout(20):
        async with broadsheet.connect(w.address) as client:
            await w.server.close()
            with pytest.raises(Unreachable, match="it could not be sent in"):
                await client.journals.append_many(NAME, [b"late"], timeout=0.2)
            left = asyncio.ensure_future(client.journals.append_many(NAME, [b"left"]))
            await asyncio.sleep(0.1)
            assert not left.done(), "it dials"
            begun = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - begun < CLOSED_SECONDS_MAX
        with pytest.raises(
            (Unreachable, LocalProtocolError), match=r"the client (is|was) closed|cannot be reached"
        ):
            await left  # Closed while it dialled, before it dialled again, or as a dial was refused.


async def test_many_appends_whose_stream_the_node_never_opened_are_refused() -> None:
    """C2: an opening whose answer was lost left them in doubt, and nothing of them was ever sent."""
    async with world() as w, asyncio.timeout(20):
        opening = asyncio.Event()

        async def hang(_call: object, _request: RunRequest) -> RunOpened:
            opening.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        row = next(row for row in ROWS if row.request is RunRequest)
        w.server.table[row.number] = row.method(hang)
        w.server.numbers[row.name] = row.number
        async with broadsheet.connect(w.address) as client:
            left = asyncio.ensure_future(client.journals.append_many(NAME, [b"left"]))
            await opening.wait()
        with pytest.raises(Unreachable, match="nothing is appended"):
            await left


async def test_appends_go_in_runs_that_the_node_takes(tmp_path: Path) -> None:
    """A node with a log of small segments takes runs of 256 KiB: each of these was called too large.

    Together they fit into its first segment: whether the next one is filled in time depends on the disk.
    """
    node, contents = NodeProcess(tmp_path), [b"%04d" % n + bytes(1_000) for n in range(300)]
    assert "[journals.wal]\nsegment_bytes = 1048576" in CONFIG
    try:
        assert await node.start(), (tmp_path / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME)
            begins = [each.begin for each in await client.journals.append_many(NAME, contents)]
            assert begins == [1_004 * n for n in range(300)]
            appends = (client.journals.append(NAME, content, timeout=60) for content in contents)
            commits = await asyncio.gather(*appends)
            assert [each.begin for each in commits] == [1_004 * (300 + n) for n in range(300)]
            assert await content_of(client, 0) == b"".join(contents) * 2
    finally:
        node.kill()
