"""What was lost beside a node, and what it says then: logs, answers, and a store that contradicts itself."""

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable
from hashlib import sha1
from pathlib import Path
from random import Random
from typing import Any

import pytest

import broadsheet
from broadsheet.base.types import ByteOffset
from broadsheet.client import Client
from broadsheet.errors import (
    Cancelled,
    Corrupt,
    IndexHasGreaterOffset,
    NotFound,
    RegisterMismatch,
    RemoteProtocolError,
    Unknown,
    WrongAppendOffset,
)
from broadsheet.journal.client import Journals
from broadsheet.journal.core.attempts import KEPT
from broadsheet.journal.messages import Commit
from tests.journal.node_process import CONFIG, NodeProcess

NAME = "lost/a"
FIRST, SECOND = b"x" * 2000, b"y" * 3000


async def content_of(client: Client, offset: int = 0, end: int | None = None) -> bytes:
    return b"".join([chunk.data async for chunk in client.journals.read(NAME, offset, end=end)])


async def make_stored(client: Client) -> None:
    """A journal with one stored fragment, and one append behind it."""
    await client.journals.create(NAME, fragment_length=1 << 10)
    await client.journals.append(NAME, FIRST)
    await client.journals.append(NAME, SECOND)
    await until_stored(client)


async def until_stored(client: Client) -> None:
    """Return once every closed fragment is in the store, and its spool file is gone."""
    async with asyncio.timeout(20):
        while True:
            fragments = await client.journals.fragments(NAME)
            if fragments and all(each.is_stored for each in fragments):
                return
            await asyncio.sleep(0.01)


async def test_two_fragments_of_one_range_with_different_sums_are_both_refused(tmp_path: Path) -> None:
    """J10: nobody picks a winner; the caller reads both names, and other ranges are served."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await make_stored(client)
        node.kill()
        (stored,) = (tmp_path / "data" / "fragments" / NAME).iterdir()
        other = f"{0:016x}-{len(FIRST):016x}-{sha1(b'z' * len(FIRST)).hexdigest()}.raw"
        stored.with_name(other).write_bytes(b"z" * len(FIRST))

        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await until_stored(client)
            with pytest.raises(Corrupt) as refused:
                await content_of(client)
            assert other in str(refused.value)
            assert stored.name in str(refused.value)
            assert await content_of(client, len(FIRST)) == SECOND
            with pytest.raises(Corrupt):
                await content_of(client, 7, 8)
    finally:
        node.kill()


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_journal_whose_log_is_lost_takes_no_appends_and_says_why(
    tmp_path: Path, *, is_stored: bool
) -> None:
    """journals.2, journals.15: bytes that were acknowledged are missing, or may be; reads go on."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            if is_stored:
                await make_stored(client)
            else:
                await client.journals.create(NAME)
                await client.journals.append(NAME, SECOND)
        node.kill()
        shutil.rmtree(tmp_path / "data" / "journals" / "log")

        for _ in range(2):  # A restart changes nothing about it.
            assert await node.start(), (tmp_path / "node.log").read_text()
            async with broadsheet.connect(node.address) as client:
                status = await client.journals.status(NAME)
                assert status.state == "behind-index"
                for content in (b"small", b"large" * 20_000):
                    with pytest.raises(IndexHasGreaterOffset, match="log is not the one that its epoch key"):
                        await client.journals.append(NAME, content)
                assert await content_of(client) == (FIRST if is_stored else b"")
                await client.journals.create("lost/other", if_absent=True)
                await client.journals.append("lost/other", b"others go on")
            node.kill()
    finally:
        node.kill()


class Restarts:
    """A node that dies at a label, and comes back at the same address."""

    def __init__(self, root: Path) -> None:
        self.root, self.node = root, NodeProcess(root)
        self.address = ""

    async def start(self, label: str) -> None:
        """Make the journal, then start the node that dies at the first `label`."""
        assert await self.node.start()
        self.address = self.node.address
        async with broadsheet.connect(self.address) as client:
            await client.journals.create(NAME)
        self.node.kill()
        self._listen_at(self.address)
        assert await self.node.start(f"{label}:1"), (self.root / "node.log").read_text()

    async def come_back(self, meanwhile: Callable[[Client], Awaitable[object]] | None = None) -> None:
        """Wait for the death; let somebody else do something, at another address; then be back."""
        assert await self.node.died() == -9
        if meanwhile is not None:
            self._listen_at("127.0.0.1:0")
            assert await self.node.start()
            async with broadsheet.connect(self.node.address) as client:
                await meanwhile(client)
            self.node.kill()
            self._listen_at(self.address)
        assert await self.node.start(), (self.root / "node.log").read_text()

    def _listen_at(self, address: str) -> None:
        native = '[native]\naddress = "127.0.0.1:0"'
        assert native in CONFIG
        (self.root / "node.toml").write_text(CONFIG.replace(native, f'[native]\naddress = "{address}"'))


@pytest.mark.parametrize("length", [100, 200_000])
@pytest.mark.parametrize("label", ["journal.append.before_log", "journal.append.before_reply"])
async def test_an_append_at_an_offset_whose_answer_was_lost_stands_there_once(
    tmp_path: Path, label: str, length: int
) -> None:
    """journals.21: tried again; where the journal has moved on, its bytes there are read and compared."""
    node, content = Restarts(tmp_path), b"z" * length
    try:
        await node.start(label)
        async with broadsheet.connect(node.address) as client:
            appending = asyncio.create_task(client.journals.append(NAME, [content], offset=0, timeout=60))
            await node.come_back()
            commit = await appending
            assert (commit.begin, commit.end) == (0, length)
            assert await content_of(client) == content
    finally:
        node.node.kill()


async def test_an_append_at_an_offset_that_another_took_meanwhile_is_refused(tmp_path: Path) -> None:
    """journals.21: other bytes stand there, so ours do not and never will: no doubt is left."""
    node = Restarts(tmp_path)
    try:
        await node.start("journal.append.before_log")
        async with broadsheet.connect(node.address) as client:
            appending = asyncio.create_task(client.journals.append(NAME, b"mine", offset=0, timeout=60))
            await node.come_back(lambda other: other.journals.append(NAME, b"theirs"))
            with pytest.raises(WrongAppendOffset, match="the head is 6"):
                await appending
            assert await content_of(client) == b"theirs"
    finally:
        node.node.kill()


def condition(kind: str, writer: str) -> dict[str, Any]:
    """What only one of two writers can meet."""
    return {"check": {"author": None}, "union": {"author": writer}} if kind == "fence" else {"offset": 0}


@pytest.mark.parametrize(
    ("kind", "later"), [("fence", 0), ("fence", KEPT + 1), ("offset", 3), ("offset", KEPT + 1)]
)
async def test_of_two_writers_of_equal_bytes_under_one_check_one_succeeds_and_the_other_is_told(
    tmp_path: Path, kind: str, later: int
) -> None:
    """journals.11, J6-J8: bytes cannot tell whose append it was, and the attempt id does, over restarts.

    After more conditional appends than a journal remembers nobody can tell any more, and nobody claims to.
    """
    node = Restarts(tmp_path)

    async def theirs(other: Client) -> None:
        await other.journals.append(NAME, b"fence\n", **condition(kind, "Y"))
        for n in range(later):
            end = (await other.journals.append(NAME)).end
            await other.journals.append(NAME, b"x" * 900, offset=end, union={"n": str(n)})

    try:
        await node.start("journal.append.before_log")
        async with broadsheet.connect(node.address) as client:
            mine = client.journals.append(NAME, b"fence\n", timeout=60, **condition(kind, "X"))
            appending = asyncio.create_task(mine)
            await node.come_back(theirs)
            told = (Unknown,) if later > KEPT else (RegisterMismatch, WrongAppendOffset)
            with pytest.raises(told):
                await appending
            assert (await content_of(client)).count(b"fence") == 1
            if kind == "fence":
                assert (await client.journals.registers(NAME)).values["author"] == "Y"
    finally:
        node.node.kill()


@pytest.mark.parametrize(("kind", "is_large"), [("fence", False), ("offset", True)])
async def test_an_append_that_another_built_on_is_known_as_ours(
    tmp_path: Path, kind: str, *, is_large: bool
) -> None:
    """journals.11: ours took effect, and its registers were changed again before the retry came."""
    node, content = Restarts(tmp_path), [b"fence\n" * (20_000 if is_large else 1)]

    async def theirs(other: Client) -> None:
        await other.journals.append(NAME, b"more\n", union={"author": "Y"})

    try:
        await node.start("journal.append.before_reply")
        async with broadsheet.connect(node.address) as client:
            mine = client.journals.append(NAME, content, timeout=60, **condition(kind, "X"))
            appending = asyncio.create_task(mine)
            await node.come_back(theirs)
            commit = await appending
            assert (commit.begin, commit.end) == (0, len(content[0]))
            assert await content_of(client) == content[0] + b"more\n"
    finally:
        node.node.kill()


@pytest.mark.parametrize("label", ["journal.append.before_log", "journal.append.before_reply"])
async def test_content_of_an_iterator_whose_answer_was_lost_is_settled_though_it_cannot_be_sent_again(
    tmp_path: Path, label: str
) -> None:
    """C2: the node knows whether that attempt took effect, so the caller is told, and not `Unknown`."""
    node = Restarts(tmp_path)
    try:
        await node.start(label)
        async with broadsheet.connect(node.address) as client:
            pieces = (b"p" * 50_000 for _ in range(3))
            appending = asyncio.create_task(client.journals.append(NAME, pieces, offset=0, timeout=60))
            await node.come_back()
            if label == "journal.append.before_reply":
                assert await appending == Commit(begin=ByteOffset(0), end=ByteOffset(150_000))
            else:
                with pytest.raises(Cancelled, match="nothing is appended"):
                    await appending
            assert len(await content_of(client)) == (150_000 if label.endswith("reply") else 0)
    finally:
        node.node.kill()


@pytest.mark.parametrize("content", [b"small", b"large" * 20_000])
async def test_an_append_without_an_offset_whose_answer_was_lost_is_unknown_and_stands_once(
    tmp_path: Path, content: bytes
) -> None:
    """journals.21: tried once. Here it is durable, and a second try would have doubled it."""
    node = Restarts(tmp_path)
    try:
        await node.start("journal.append.before_reply")
        async with broadsheet.connect(node.address) as client:
            with pytest.raises(Unknown):
                await client.journals.append(NAME, content, timeout=60)
            await node.come_back()
            assert await content_of(client) == content
    finally:
        node.node.kill()


@pytest.mark.parametrize("is_source", [False, True])
async def test_a_large_append_ends_at_its_timeout_while_the_node_stands_still(
    tmp_path: Path, *, is_source: bool
) -> None:
    """The client waited for room on the connection without a limit: 40 s for a timeout of one second."""
    node = NodeProcess(tmp_path)
    try:
        await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME)
            pieces = [b"p" * (1 << 20)] * 16  # More than the kernel takes for a node that does not read.
            node.process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(8):
                with pytest.raises(Cancelled, match="nothing is appended"):
                    await client.journals.append(NAME, iter(pieces) if is_source else pieces, timeout=0.5)
            node.process.send_signal(signal.SIGCONT)
            assert (await client.journals.append(NAME, b"next")).begin == 0
    finally:
        node.kill()


class Scripted:
    """A node that answers each call with the next of some errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked: list[Any] = []

    async def call(self, _method: str, request: Any, *_args: Any, **_options: Any) -> Any:
        self.asked.append(request)
        raise self.errors.pop(0)


@pytest.mark.parametrize("last", [Corrupt("damaged since"), RemoteProtocolError("in other words")])
async def test_an_append_that_may_stand_is_unknown_whatever_a_later_answer_says(last: Exception) -> None:
    """C2: the first answer was lost; an error of the second try says nothing of the first."""
    for node in (Scripted(Unknown("lost"), last), Scripted(Unknown("lost"), WrongAppendOffset("6"), last)):
        caller: Any = node
        journals = Journals(caller, random=Random(1))
        with pytest.raises(Unknown, match=r"may be appended|the outcome failed") as told:
            await journals.append(NAME, b"once", offset=0)
        assert told.value.__cause__ is last
        assert not node.errors
    caller = Scripted(last)
    with pytest.raises(type(last)):
        await Journals(caller, random=Random(1)).append(NAME, b"once", offset=0)


async def test_the_outcome_is_asked_of_the_journal_that_was_meant() -> None:
    """C2: a journal that was made again knows no attempt, and said for certain that nothing is appended."""
    caller: Any = Scripted(Unknown("lost"), WrongAppendOffset("0"), NotFound("made again since"))

    with pytest.raises(Unknown, match="the outcome failed"):
        await Journals(caller, random=Random(1)).append(NAME, b"once", offset=5, create_revision=7)

    assert [each.create_revision for each in caller.asked] == [7, 7, 7]
