"""Slow peers of the wire workload: who does not greet, who does not end a frame, and who waits for it.

A *stranger* connects and says nothing, or one byte. A *dawdler* greets, sends the beginning of a large frame,
and stops; alone it has `frame_timeout`, and less where another connection of its caller waits for the room.
Each must be gone in its time: it holds a place, a descriptor and memory that others could have.
Source: wire.4-9; ADRs 0151, 0152.
"""

import asyncio
from typing import Final

from broadsheet.base.time import MILLISECOND, SECOND, Duration, in_seconds
from broadsheet.errors import BroadsheetError
from broadsheet.ports import Transport
from broadsheet.wire import frame as f
from broadsheet.wire.client import ClientConnection, dial
from simulator.workloads.wire_checks import demand
from simulator.workloads.wire_requests import Asked, ClientSide, Told

SLACK: Final = Duration(400 * MILLISECOND)
"""How much later than its time a peer may be gone: links, timers, and the last words."""
BEGUN_BYTES: Final = 140_000
"""Of a frame that has begun: so large that room is kept for it."""
CROWDING_BYTES: Final = 240_000
"""More than half of what one caller may have."""
SENT_BYTES: Final = 20_000
WAITING_BYTES: Final = 200_000
CROWDED_SECONDS: Final = 1.8
"""By when room is there for whoever waits behind a dawdler of its own caller: sooner than `frame_timeout`."""


class _Raw:
    """A protocol that says only what it is told to say."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.is_lost = False
        self._buffer = memoryview(bytearray(4096))

    def connection_made(self, transport: Transport) -> None:
        """It stands."""
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """What comes is read, and forgotten."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Whatever it is."""

    def eof_received(self) -> bool:
        """Close, too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Over."""
        self.is_lost = True

    def pause_writing(self) -> None:
        """It does not write much."""

    def resume_writing(self) -> None:
        """As above."""


class Slow(ClientSide):
    """The client's side."""

    async def dawdle(self, asked: Asked) -> None:
        """A stranger, a mumbler and a dawdler; when nothing fails any more, each is gone in its time."""
        limits = self._limits
        await asyncio.gather(
            self._stranger(b"", limits.first_byte_timeout),
            self._stranger(b"\x01", limits.greeting_timeout),
            self._dawdler(asked),
        )

    async def _stranger(self, said: bytes, timeout: Duration) -> None:
        is_calm = self._run.healed_at is not None
        made: list[_Raw] = []

        def factory() -> _Raw:
            made.append(_Raw())
            return made[-1]

        try:
            async with asyncio.timeout(1.0):
                await self._context.ports.network.dial(self._routed.address, factory)
        except (OSError, TimeoutError):
            return
        raw = made[0]
        if said and raw.transport is not None:
            raw.transport.write(said)
        await asyncio.sleep(in_seconds(Duration(timeout + SLACK)))
        demand(
            raw.is_lost or not is_calm,
            f"a stranger that said {said!r} is still there after {timeout // MILLISECOND} ms",
        )
        if raw.transport is not None:
            raw.transport.abort()

    async def _dawdler(self, asked: Asked) -> None:
        is_calm = self._run.healed_at is not None
        connection = await self._begin(self._token(), BEGUN_BYTES)
        if connection is None:
            return
        await asyncio.sleep(in_seconds(Duration(self._limits.frame_timeout + SLACK)))
        demand(
            connection.is_lost or not is_calm, f"{asked.id} began a frame long ago, and is still waited for"
        )
        connection.abort("it dawdled enough")

    async def crowd(self, asked: Asked) -> None:
        """Another connection of the same caller waits for the room of a frame that does not come.

        Raises:
            Violation: it waits for too long.
        """
        token = self._token(prefix=f"slow.{asked.id}")
        dawdler = await self._begin(token, CROWDING_BYTES)
        if dawdler is None:
            demand(is_so=False, text="nothing fails any more, and a node cannot be reached")
            return
        await asyncio.sleep(0.1)
        waiter = await dial(self._context.ports, self._routed.address, token=token, limits=self._limits)
        began = self._run.world.now
        await waiter.call(
            "sim.echo",
            Asked(f"slow.{asked.id}.waits"),
            (bytes(WAITING_BYTES),),
            reply=Told,
            timeout=Duration(10 * SECOND),
        )
        took = (self._run.world.now - began) / SECOND
        demand(took < CROWDED_SECONDS, f"a large call waited {took} s for a frame that does not come")
        for connection in (dawdler, waiter):
            connection.abort("it was slow enough")

    async def _begin(self, token: str, size: int) -> ClientConnection | None:
        """A connection that has begun a large frame."""
        address = self._routed.address
        try:
            connection = await dial(self._context.ports, address, token=token, limits=self._limits)
        except BroadsheetError:
            return None
        if connection.transport is not None:
            head = f.header(f.CALL, 1, body_bytes=0, payload_bytes=size)
            connection.transport.write(head + bytes(SENT_BYTES))
        return connection
