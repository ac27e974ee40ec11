"""A reader whose node goes away goes on where it stood, in the same journal, and gives up when it says so."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest

import broadsheet
from broadsheet.base.types import ByteOffset, Revision
from broadsheet.client import Client
from broadsheet.errors import (
    DeadlineExceeded,
    LocalProtocolError,
    NotFound,
    OffsetNotYetAvailable,
    RemoteProtocolError,
    StoreUnhealthy,
    Unknown,
)
from broadsheet.journal.client import Journals
from broadsheet.journal.client_reads import Reader
from broadsheet.journal.messages import Chunk, FragmentsReply, IndexPointsReply, ListReply, ReadMessage
from broadsheet.runtime.entropy import Entropy
from broadsheet.wire.client import Caller
from broadsheet.wire.method import Message
from tests.journal.node_process import CONFIG, NodeProcess

NAME = "read/a"
SECONDS_MAX = 30.0
DRAIN_SECONDS = 10.0  # `native.limits.drain_timeout`


class Moving:
    """A node that can be at another address for a while, where its old clients do not find it."""

    def __init__(self, root: Path) -> None:
        self.root, self.node, self.address = root, NodeProcess(root), ""

    async def start(self) -> None:
        """At its address, the same after each restart."""
        self._listen_at(self.address or "127.0.0.1:0")
        assert await self.node.start(), (self.root / "node.log").read_text()
        self.address = self.node.address

    async def start_elsewhere(self) -> str:
        """At an address that only the caller knows."""
        self._listen_at("127.0.0.1:0")
        assert await self.node.start(), (self.root / "node.log").read_text()
        return self.node.address

    def _listen_at(self, address: str) -> None:
        native = '[native]\naddress = "127.0.0.1:0"'
        config = CONFIG.replace(native, f'[native]\naddress = "{address}"')
        config = config.replace("[journals]\n", '[journals]\nopening_wait = "1s"\n')
        (self.root / "node.toml").write_text(config)


@asynccontextmanager
async def started(root: Path) -> AsyncIterator[tuple[Moving, Client]]:
    """A node with an empty journal, and its client."""
    moving = Moving(root)
    try:
        await moving.start()
        async with broadsheet.connect(moving.address) as client:
            await client.journals.create(NAME)
            yield moving, client
    finally:
        moving.node.kill()


async def bytes_of(reading: AsyncIterator[Chunk], count: int) -> list[Chunk]:
    """The chunks of a read until they come to `count` bytes."""
    found: list[Chunk] = []
    async with asyncio.timeout(SECONDS_MAX):
        async for chunk in reading:
            found.append(chunk)
            if sum(len(each.data) for each in found) >= count:
                break
    return found


async def test_a_reader_from_the_end_that_connects_again_goes_on_where_it_first_stood(tmp_path: Path) -> None:
    """It asked again for the end, and what was committed while it was away was never delivered."""
    async with started(tmp_path) as (moving, client):
        await client.journals.append(NAME, b"before")
        reading = client.journals.read(NAME, None, block=True, patience=SECONDS_MAX)
        following = asyncio.create_task(bytes_of(reading, len(b"meanwhileafter")))
        await asyncio.sleep(0.5)  # It has been told where it stands, or the append is not for it.
        moving.node.kill()
        elsewhere = await moving.start_elsewhere()
        async with broadsheet.connect(elsewhere) as other:
            await other.journals.append(NAME, b"meanwhile")
        moving.node.kill()
        await moving.start()
        async with broadsheet.connect(moving.address) as other:
            await other.journals.append(NAME, b"after")
        found = await following
    assert b"".join(chunk.data for chunk in found) == b"meanwhileafter"
    assert found[0].offset == len(b"before")


async def test_a_reader_never_goes_on_in_another_journal_of_the_same_name(tmp_path: Path) -> None:
    """A journal that was deleted and made again has other bytes at the same offsets."""
    async with started(tmp_path) as (moving, client):
        await client.journals.append(NAME, b"old")
        reading = client.journals.read(NAME, 0, block=True)
        assert (await anext(reading)).data == b"old"
        moving.node.kill()
        elsewhere = await moving.start_elsewhere()
        async with broadsheet.connect(elsewhere) as other:
            await other.journals.delete(NAME)
            await other.journals.create(NAME)
            await other.journals.append(NAME, b"another one")
        moving.node.kill()
        await moving.start()

        with pytest.raises(NotFound, match="deleted and made again"):
            async with asyncio.timeout(SECONDS_MAX):
                await anext(reading)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_patience_of_a_reader_ends_when_it_says(tmp_path: Path, how: signal.Signals) -> None:
    """A node that is gone, or that is there and says nothing: a reader must not wait for ever."""
    async with started(tmp_path) as (moving, client):
        await client.journals.append(NAME, b"x")
        os.kill(moving.node.pid or 0, how)

        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="nothing came from 0 on in 1 s"):
            async for _ in client.journals.read(NAME, 0, patience=1):
                pass
        assert time.monotonic() - began < 10


async def test_a_read_of_bytes_that_were_committed_waits_for_a_node_that_lacks_them(tmp_path: Path) -> None:
    """The Spark source had a second loop for it around the reader's, and the reader a third below."""
    async with started(tmp_path) as (_moving, client):
        await client.journals.append(NAME, b"first")
        both = len(b"first") + len(b"second")

        whole = client.journals.read(NAME, 0, end=both, is_whole=True)
        reading = asyncio.create_task(bytes_of(whole, both))
        await asyncio.sleep(0.2)  # It has met the end below `end`, and asks again.
        await client.journals.append(NAME, b"second")
        assert b"".join(chunk.data for chunk in await reading) == b"firstsecond"

        began = time.monotonic()
        with pytest.raises(OffsetNotYetAvailable, match=f"ends at {both}, below {both + 1}"):
            async for _ in client.journals.read(NAME, 0, end=both + 1, is_whole=True, patience=1):
                pass
        with pytest.raises(OffsetNotYetAvailable, match="above the committed end"):
            await anext(client.journals.read(NAME, both + 1, end=both + 2, is_whole=True, patience=1))
        assert time.monotonic() - began < 10


class Lossy:
    """A node that places each read and is lost before its first byte."""

    def __init__(self) -> None:
        self.opened = self.received = 0

    async def open(self, _method: str, _request: object, *, is_repeated: bool) -> "Lossy":
        assert not is_repeated, "the reader has the only loop (ADR 0008)"
        self.opened += 1
        return self

    async def receive(self) -> Message:
        self.received += 1
        if self.received % 2:
            placed = ReadMessage(
                offset=ByteOffset(0), committed_end=ByteOffset(9), create_revision=Revision(1)
            )
            return Message(memoryview(msgspec.msgpack.encode(placed)), memoryview(b""))
        raise Unknown("the connection was lost")

    def cancel(self) -> None:
        """Nothing goes on."""


async def test_a_read_that_only_ever_is_placed_ends_with_its_patience() -> None:
    """Each new connection began its patience anew, so it asked the node for ever, and a task never failed."""
    lossy = Lossy()
    reader = Reader(cast("Caller", lossy), NAME, offset=0, end=9, block=False, is_whole=True, patience=1)
    with pytest.raises(DeadlineExceeded, match="the connection was lost"):
        async with asyncio.timeout(SECONDS_MAX):
            await anext(reader.chunks())
    assert 2 <= lossy.opened <= 5, "after 50, 100, 200 and 400 ms"


@pytest.mark.parametrize("body", [b"", b"\x93\x00\x00\x00", b"\x81\xa1x" + b"\x91" * 5_000 + b"\xc0"])
async def test_a_message_in_other_words_is_an_error_of_the_protocol(body: bytes) -> None:
    """A program that catches Broadsheet's errors met one of the decoder's."""

    class Rogue(Lossy):
        async def receive(self) -> Message:
            return Message(memoryview(body), memoryview(b""))

    reader = Reader(cast("Caller", Rogue()), NAME, offset=0, end=9, block=False, is_whole=True, patience=1)
    with pytest.raises(RemoteProtocolError, match=r"journal\.read is malformed"):
        await anext(reader.chunks())


async def test_pages_that_come_no_further_end_a_listing() -> None:
    """A node that gave the same page for ever held its client's loop, and filled its memory."""
    pages: list[msgspec.Struct] = [
        ListReply([], has_more=True, after="a"),
        FragmentsReply([], has_more=True),
        IndexPointsReply([ByteOffset(7)], has_more=True),
    ]

    class Rogue:
        async def call(
            self, *_: object, reply: type, **_options: object
        ) -> tuple[msgspec.Struct, memoryview]:
            return next(page for page in pages if type(page) is reply), memoryview(b"")

    journals = Journals(cast("Caller", Rogue()), random=Entropy()("test"))
    for asked in (journals.list(), journals.fragments(NAME), journals.index_points(NAME)):
        with pytest.raises(RemoteProtocolError, match="a page that ends at"):
            await asked


async def test_a_journal_that_is_being_opened_tells_no_end(tmp_path: Path) -> None:
    """It told 0: whoever planned up to there, or began at the end, lost the journal's messages."""
    async with started(tmp_path) as (moving, client):
        await client.journals.append(NAME, b"content")
        moving.node.kill()
        (spools,) = (tmp_path / "data" / "journals" / "spool").iterdir()
        spools.rename(spools.with_name("away"))
        spools.write_bytes(b"")  # No directory: the journal cannot be opened.

        await moving.start()
        status = await client.journals.status(NAME)
        assert (status.state, status.begin, status.end) == ("opening", None, None)
        assert status.reason
        with pytest.raises(StoreUnhealthy, match="is being opened, and its end is not known"):
            await client.journals.end(NAME, timeout=0.5)
        with pytest.raises(StoreUnhealthy, match=r"is being opened .*nothing was done"):
            await client.journals.append(NAME, [b"at an offset"], offset=7, timeout=3)
        with pytest.raises(StoreUnhealthy, match="is being opened"):
            await anext(client.journals.read(NAME, None, block=True))

        spools.unlink()
        spools.with_name("away").rename(spools)
        assert await client.journals.end(NAME) == len(b"content")


async def test_each_look_up_gives_up_when_its_time_is_over(tmp_path: Path) -> None:
    """Of a node that is there and says nothing. All took 30 s, whatever their caller had."""
    async with started(tmp_path) as (moving, client):
        os.kill(moving.node.process.pid, signal.SIGSTOP)
        journals, began = client.journals, time.monotonic()
        found = await asyncio.gather(
            journals.get(NAME, timeout=1),
            journals.status(NAME, timeout=1),
            journals.registers(NAME, timeout=1),
            journals.end(NAME, timeout=1),
            journals.producer_index(NAME, 0, patience=1),
            return_exceptions=True,
        )
        took = time.monotonic() - began
        os.kill(moving.node.process.pid, signal.SIGCONT)

        assert [type(each) for each in found] == [DeadlineExceeded] * 5
        assert took < 15


async def test_a_closed_client_refuses_each_call_at_once(tmp_path: Path) -> None:
    """A look-up of a producer index, a read and an append that may be tried again took 30 s."""
    async with started(tmp_path) as (moving, _):
        async with broadsheet.connect(moving.address) as client:
            await client.journals.append(NAME, b"x")
        journals = client.journals
        calls = [
            journals.get(NAME),
            journals.end(NAME),
            journals.producer_index(NAME, 0),
            anext(journals.read(NAME)),
            journals.append(NAME, b"y"),
            journals.append(NAME, b"y", offset=1),
            journals.append(NAME, [b"y"] * 2),
            journals.append_many(NAME, [b"y"] * 2),
        ]
        async with asyncio.timeout(10):
            for call in calls:
                with pytest.raises(LocalProtocolError, match="the client is closed"):
                    await call
        with pytest.raises(LocalProtocolError, match="the client is closed"):
            client.publisher()


async def test_a_node_that_stops_does_not_wait_for_a_reader_at_the_end(tmp_path: Path) -> None:
    """Such a read never ends by itself: each stop took `drain_timeout`, 10 s, while one reader waited.

    The reader goes on at the restarted node, and no byte is missing.
    """
    async with started(tmp_path) as (moving, client):
        await client.journals.append(NAME, b"before")
        reading = client.journals.read(NAME, 0, block=True, patience=SECONDS_MAX)
        assert (await anext(reading)).data == b"before"
        following = asyncio.create_task(bytes_of(reading, len(b"after")))
        began = time.monotonic()
        moving.node.process.send_signal(signal.SIGTERM)
        assert await moving.node.died(within=DRAIN_SECONDS - 2) == 0
        assert time.monotonic() - began < DRAIN_SECONDS - 2
        await moving.start()
        async with broadsheet.connect(moving.address) as other:
            await other.journals.append(NAME, b"after")
        found = await following
    assert b"".join(chunk.data for chunk in found) == b"after"
