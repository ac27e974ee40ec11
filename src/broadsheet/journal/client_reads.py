"""Client reads: one read of a client, over as many connections as it takes.

Offsets are bytes, times seconds. UNPLACED --first message--> PLACED --chunk--> PLACED ... --> ended. The
first message tells the offset and the create revision. From then on the read goes on at its own offset in
that journal, however often the connection breaks: if it asked for "the end" again, it would skip bytes that
were appended meanwhile. A read changes nothing, so every attempt may be repeated. This is the only loop that
repeats a read: neither what opens its streams nor what consumes its chunks does. Source: journals.20,
journals.21; ADR 0008.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import in_seconds
from broadsheet.base.types import ByteOffset, JournalName, Revision
from broadsheet.errors import (
    BroadsheetError,
    DeadlineExceeded,
    OffsetNotYetAvailable,
    ShuttingDown,
    StoreUnhealthy,
    Throttled,
    Unknown,
    Unreachable,
)
from broadsheet.journal.client_requests import RETRY_MAX, RETRY_MIN
from broadsheet.journal.messages import (
    Chunk,
    ProducerIndexReply,
    ProducerIndexRequest,
    ReadMessage,
    ReadReply,
    ReadRequest,
)
from broadsheet.wire import frame as f
from broadsheet.wire.client import Caller

AWAY: Final = (Unknown, Unreachable, ShuttingDown, Throttled)
"""Errors after which the read tries again: the node is unreachable or busy, the read itself is sound."""
LACKING: Final = (OffsetNotYetAvailable, StoreUnhealthy)
"""Errors after which a read of bytes that are known to be committed tries again, too."""

_read_message: Final = msgspec.msgpack.Decoder(ReadMessage)


class EncodedIndex(msgspec.Struct, frozen=True):
    """A journal's producer index at an index point."""

    offset: int
    """The index point: a frame boundary at or below the offset asked for."""
    encoded: bytes
    """The states there, as `message.stored_index` encodes them; empty at the journal's begin."""


class Reader:
    """Reads `[offset, end)` of one journal."""

    def __init__(
        self,
        caller: Caller,
        name: str,
        *,
        offset: int | None,
        end: int | None,
        block: bool,
        is_whole: bool,
        patience: float,
        create_revision: Revision | None = None,
    ) -> None:
        """Read a journal through `caller`, which reconnects when it must.

        Args:
            offset: None: from the committed end on, as the first answer tells it.
            is_whole: `[offset, end)` is known to be committed, so a node that cannot give it yet is awaited.
            patience: seconds for which the node may be unreachable, or owe an answer.
            create_revision: None: of whichever journal the first answer is about.
        """
        self._caller, self._name, self._block, self._patience = caller, name, block, patience
        self._at = None if offset is None else ByteOffset(offset)
        self._end = None if end is None else ByteOffset(end)
        self._passing = (*AWAY, *LACKING) if is_whole else AWAY
        self._is_whole = is_whole
        self._create_revision = create_revision
        self._is_connected = False

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Chunks of the journal in order, each once.

        Raises:
            DeadlineExceeded: the node was unreachable, or owed an answer, for longer than the patience.
            BroadsheetError: the read was refused.
        """
        loop = asyncio.get_running_loop()
        give_up, backoff = loop.time() + self._patience, Backoff(RETRY_MIN, RETRY_MAX)
        lacking: BroadsheetError | None = None
        while True:
            try:
                async with aclosing(self._attempt(give_up)) as attempt:
                    async for chunk in attempt:
                        yield chunk
                        give_up, lacking = loop.time() + self._patience, None
                        backoff.reset()
                self._require_end()
            except (TimeoutError, *self._passing) as error:
                if isinstance(error, LACKING):
                    lacking = error
                elif self._block and self._is_connected and not isinstance(error, TimeoutError):
                    give_up = loop.time() + self._patience  # The node was reachable until now.
                if loop.time() + in_seconds(backoff.pause) >= give_up:
                    if lacking is error:
                        raise
                    raise lacking or self._gave_up(str(error) or "it owes an answer") from error
            else:
                return
            await asyncio.sleep(in_seconds(backoff.next()))

    def _require_end(self) -> None:
        """Refuse an end of the journal below the end of a span that is known to be committed."""
        if self._is_whole and self._at is not None and self._end is not None and self._at < self._end:
            raise OffsetNotYetAvailable(
                f"journal {self._name} ends at {self._at}, below {self._end}, which was committed before: the"
                " node has another data directory, or lost bytes"
            )

    async def _attempt(self, give_up: float) -> AsyncGenerator[Chunk]:
        """The chunks of the journal that one stream brings.

        Raises:
            TimeoutError: nothing came until `give_up`, though an answer was due.
        """
        loop = asyncio.get_running_loop()
        self._is_connected = False
        request = ReadRequest(
            journal=JournalName(self._name),
            offset=self._at,
            end=self._end,
            block=self._block,
            create_revision=self._create_revision,
        )
        async with asyncio.timeout_at(give_up):
            stream = await self._caller.open("journal.read", request, is_repeated=False)
        try:
            while True:
                # A blocking read at the end may wait for ever; the connection notices if the node is gone.
                is_owed = not (self._block and self._is_connected)
                async with asyncio.timeout_at(give_up if is_owed else None):
                    message = await stream.receive()
                if message is None:
                    break
                found = f.decode_with(_read_message, message.body, "a message of journal.read")
                self._create_revision, self._is_connected = found.create_revision, True
                chunk = Chunk(offset=found.offset, data=bytes(message.payload))
                self._at = chunk.end
                if chunk.data:
                    yield chunk
                give_up = loop.time() + self._patience
            async with asyncio.timeout_at(give_up):
                await stream.reply(ReadReply)
        finally:
            stream.cancel()

    def _gave_up(self, reason: str) -> BroadsheetError:
        at = "its end" if self._at is None else self._at
        return DeadlineExceeded(
            f"journal {self._name}: nothing came from {at} on in {self._patience:g} s: {reason}; the node is"
            " away or stuck: look at `broadsheet status`, and read again from there"
        )


async def read_index(
    caller: Caller, request: ProducerIndexRequest, *, patience: float
) -> tuple[ProducerIndexReply, bytes]:
    """A producer index as it is stored; read again from its begin after a lost connection.

    Raises:
        DeadlineExceeded: the node owed an answer for `patience` seconds.
        BroadsheetError: the read was refused, or every try within `patience` failed.
    """
    loop = asyncio.get_running_loop()
    give_up, backoff = loop.time() + patience, Backoff(RETRY_MIN, RETRY_MAX)
    while True:
        try:
            return await _read_index(caller, request, patience)
        except TimeoutError:
            raise DeadlineExceeded(
                f"journal {request.journal}: nothing of its producer index at {request.offset} came in"
                f" {patience:g} s; the node is away or stuck: look at `broadsheet status`, and try again"
            ) from None
        except AWAY:
            if loop.time() + in_seconds(backoff.pause) >= give_up:
                raise
        await asyncio.sleep(in_seconds(backoff.next()))


async def _read_index(
    caller: Caller, request: ProducerIndexRequest, patience: float
) -> tuple[ProducerIndexReply, bytes]:
    async with asyncio.timeout(patience):
        stream = await caller.open("journal.producer_index", request, is_repeated=False)
    encoded = bytearray()
    try:
        while True:
            async with asyncio.timeout(patience):
                message = await stream.receive()
            if message is None:
                async with asyncio.timeout(patience):
                    return await stream.reply(ProducerIndexReply), bytes(encoded)
            encoded += message.payload
    finally:
        stream.cancel()
