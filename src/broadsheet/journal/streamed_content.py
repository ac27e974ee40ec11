"""Streamed content: receives the content of a streamed append from the wire and stages it.

Before the content is copied to the tail, the append ends if its client is gone, its deadline passes or it is
refused. In all three cases nothing of it took effect. Source: journals.17; C2.
"""

import asyncio
from typing import Final

import msgspec

from broadsheet.base.time import MILLISECOND, Duration, Instant
from broadsheet.errors import BroadsheetError, RemoteProtocolError, Status
from broadsheet.journal.context import Context
from broadsheet.journal.messages import AppendStreamMessage, Commit
from broadsheet.journal.staging_area import SLICE_BYTES
from broadsheet.journal.streamed_append import StreamedAppend
from broadsheet.ports import Timer
from broadsheet.wire import frame as f
from broadsheet.wire.method import Message, WireStream

EXPIRES_AHEAD: Final = Duration(20 * MILLISECOND)
"""How long before its deadline an append that is not whole is refused, so that this arrives in time."""

_stream_message: Final = msgspec.msgpack.Decoder(AppendStreamMessage)


async def receive(
    context: Context, append: StreamedAppend, stream: WireStream, deadline: Instant | None
) -> Commit:
    """Receive the content of the streaming `append` in messages, and wait for its outcome.

    Raises:
        Unknown: it may be appended.
        BroadsheetError: the append was refused, or the stream broke. Nothing is appended.
    """
    expiry: Timer | None = None
    if deadline is not None:
        left = Duration(max(0, deadline - context.time.now() - EXPIRES_AHEAD))
        expiry = context.timers.call_after(left, append.expire)
    try:
        await append.begun
        await _pump(append, stream)
        return await append.answered
    except BroadsheetError as error:
        append.fail(error.status)
        raise
    except BaseException:
        append.fail(Status.CANCELLED)
        raise
    finally:
        if expiry is not None:
            expiry.cancel()


async def _pump(append: StreamedAppend, stream: WireStream) -> None:
    """Stage a streaming append's messages until the last one.

    Raises:
        RemoteProtocolError: the stream ended without a last message. Nothing is appended.
        BroadsheetError: the pipeline aborted the append, or the stream broke.
    """
    while True:
        message = await _next(append, stream)
        if message is None:
            raise RemoteProtocolError(
                "the stream of an append ended before the client said that all was sent"
            )
        payload = message.payload
        for at in range(0, len(payload), SLICE_BYTES):
            append.put(payload[at : at + SLICE_BYTES])
            if at:
                await asyncio.sleep(0)
        body = message.body
        if len(body) and f.decode_with(_stream_message, body, "a message of journal.append_stream").is_last:
            append.finish()
            return


async def _next(append: StreamedAppend, stream: WireStream) -> Message | None:
    """The next message of a streaming append, unless it is aborted first."""
    receiving = asyncio.ensure_future(stream.receive())
    try:
        await asyncio.wait((receiving, append.aborted), return_when=asyncio.FIRST_COMPLETED)
        if append.aborted.done():
            raise append.refused(append.aborted.result())
        return receiving.result()
    finally:
        receiving.cancel()
