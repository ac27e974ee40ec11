"""What a caller hands to the wire is refused before a byte of it leaves, and the connection goes on."""

import asyncio
from typing import Any

import pytest

from broadsheet.base.time import SECOND, Duration
from broadsheet.errors import InvalidArgument
from tests.wire.harness import Echo, Empty, Sum, world

NOT_BUFFERS: list[Any] = [
    b"bare", "text", ("text",), (1,), (None,), (b"x", "y"), ([1, 2],), (memoryview(bytes(16)).cast("I"),),
    (memoryview(bytes(16))[::2],), (memoryview(bytes(16)).cast("B", (4, 4)),), (bytearray(3), 7.0),
]  # fmt: skip


class Unencodable:
    """MessagePack has no form for it."""


@pytest.mark.parametrize("payload", NOT_BUFFERS)
async def test_a_payload_that_is_no_buffers_breaks_nothing(payload: Any) -> None:
    """Found in use: a `str` failed when the turn's frames were written, and took every request with it."""
    async with world() as w:
        client = await w.client()
        others = asyncio.ensure_future(client.call("test.wait", Echo(), reply=Echo))
        stream = await client.open("test.sum", Echo())
        _, run = await client.open_run("test.append", Echo(), reply=Empty)
        with pytest.raises(InvalidArgument):
            await client.call("test.echo", Echo(), payload, reply=Echo)
        with pytest.raises(InvalidArgument):
            await stream.send(None, payload)
        with pytest.raises(InvalidArgument):
            await run.send(payload)
        w.methods.gate.set()

        assert (await others)[0] == Echo()
        assert await stream.reply(Sum) == Sum(0, 0)
        assert (await run.send([b"x"])).sequence == 0
        await run.close()
        await client.close()


@pytest.mark.parametrize("timeout", [1.5, -1, "1s", True], ids=repr)
async def test_a_timeout_that_is_none_opens_no_stream(timeout: Any) -> None:
    """A float failed after the stream was counted as open, and cost one of them each time."""
    async with world() as w:
        client = await w.client()
        for asking in (
            client.call("test.echo", Echo(), reply=Echo, timeout=timeout),
            client.open("test.sum", Echo(), timeout=timeout),
            client.open_run("test.append", Echo(), reply=Empty, timeout=timeout),
        ):
            with pytest.raises(InvalidArgument, match="timeout"):
                await asking

        assert not client.machine.streams
        await client.close()


async def test_a_request_that_cannot_be_encoded_is_refused() -> None:
    """An integer of 65 bits, and what is no value at all."""
    async with world() as w:
        client = await w.client()
        for request in (Echo(number=1 << 65), Unencodable()):
            with pytest.raises(InvalidArgument, match=r"the request of test\.echo"):
                await client.call("test.echo", request, reply=Echo)  # type: ignore[arg-type]  # on purpose.

        assert (await client.call("test.echo", Echo(number=1), reply=Echo))[0].number == 1
        await client.close()


async def test_offsets_and_empty_runs_are_refused_where_they_are_given() -> None:
    """2**64 - 1 means the head on the wire, so that a wrong offset would have meant another place."""
    async with world() as w:
        client = await w.client()
        _, run = await client.open_run("test.append", Echo(), reply=Empty)
        for at in (-1, 1 << 63, (1 << 64) - 1, 1.0, True):
            with pytest.raises(InvalidArgument, match="offset"):
                await run.send([b"x"], at=at)  # type: ignore[arg-type]  # on purpose.
        with pytest.raises(InvalidArgument, match="at least one"):
            await run.send([])

        assert (await run.send([b"x"], at=0)).end == 1
        await run.close()
        await client.close()


async def test_a_token_that_is_no_text_is_not_sent() -> None:
    """The node would take it for a broken protocol, and end the connection."""
    async with world() as w:
        client = await w.client()
        for token in (b"x", None, "\ud800"):
            with pytest.raises(InvalidArgument, match="token"):
                await w.client(token=token)  # type: ignore[arg-type]  # on purpose.

        await client.call("test.echo", Echo(), reply=Echo, timeout=Duration(5 * SECOND))
        await client.close()
