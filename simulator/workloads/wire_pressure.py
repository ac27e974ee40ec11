"""Pressure: streams of the wire workload that are full, uneven, or broken off, and what a node works on.

A *parade* is runs of very unequal sizes, more than a window holds: they are placed in the order in which
they were submitted, and some are cancelled while they wait. A *trickle* is so many tiny messages that what a
message costs besides its bytes fills the window. A *relay* is an upload whose sender is cancelled just as it
gets room, and goes on in another task. What is *broken off* is cancelled in the middle, with more to come.
`Slots` counts what handlers work on: a caller that cancels has no more of them running than streams (wire.9).
Source: C1, C2; wire.6-9.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final
from zlib import crc32

import msgspec

from broadsheet.base.time import MILLISECOND, Duration, in_seconds
from broadsheet.base.types import ConnectionId
from broadsheet.errors import BroadsheetError, Refused
from broadsheet.wire.client import ClientStream
from broadsheet.wire.method import Call, Empty
from simulator.workload import Episode, Violation
from simulator.workloads.wire_checks import close_run
from simulator.workloads.wire_crowd import patient
from simulator.workloads.wire_requests import Asked, ClientSide, Told

OPEN_TIMEOUT: Final = Duration(900 * MILLISECOND)
LARGE_BYTES: Final = 200_000
"""Four of these fill a window."""
TINY_MIN: Final = 1050
"""So many messages of nothing fill the first window."""
LINGERS_MS: Final = 40
"""How long a cancelled handler takes to clean up."""


class Slots:
    """The handlers that run for each connection."""

    def __init__(self, run: Episode, most: int) -> None:
        """No connection may have more than `most`."""
        self._run, self._most = run, most
        self._counts: dict[tuple[str, ConnectionId], int] = {}

    @contextmanager
    def taken(self, call: Call) -> Generator[None, None, None]:
        """A handler runs."""
        key = (repr(self._run.world.current), call.connection)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count > self._most:
            text = f"{count} handlers run for connection {key[1]} of {key[0]}, which has {self._most} streams"
            self._run.world.fail(Violation(text))
        try:
            yield
        finally:
            self._counts[key] -= 1


async def lingering(request: Asked, pause_ms: float) -> None:
    """Work for a while; some handlers take their time when they are cancelled."""
    try:
        await asyncio.sleep(pause_ms / 1000)
    except asyncio.CancelledError:
        if crc32(request.id.encode()) % 3 == 0:
            await asyncio.sleep(LINGERS_MS / 1000)
        raise


class Pressure(ClientSide):
    """The client's side."""

    async def parade(self, asked: Asked) -> None:
        """Submit more than a window holds, large and small in turn; the sink looks at their order."""
        slow = msgspec.structs.replace(asked, count=1, pause_ms=max(asked.pause_ms, 15))
        try:
            _, run = await self._routed.open_run("sim.log", slow, reply=Empty, timeout=OPEN_TIMEOUT)
        except BroadsheetError:
            return

        async def one(number: int, size: int) -> None:
            try:
                answer = await run.submit([number.to_bytes(4, "little") + bytes(size)])
                await asyncio.wait_for(answer, 3.0)
            except (BroadsheetError, TimeoutError):
                return

        sizes = [
            self._random.randrange(LARGE_BYTES // 2, LARGE_BYTES) if number % 3 else number
            for number in range(self._random.randrange(6, 14))
        ]
        calls = [asyncio.ensure_future(one(number, size)) for number, size in enumerate(sizes)]
        await asyncio.sleep(self._random.randrange(0, 40) / 1000)
        for call in calls[self._random.randrange(3, 9) :: self._random.randrange(2, 6)]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await close_run(run, OPEN_TIMEOUT)

    async def trickle(self, asked: Asked) -> None:
        """Many tiny messages to a handler that begins late."""
        count = self._random.randrange(TINY_MIN, TINY_MIN + 300)
        self._deeds.given_up[asked.id] = False
        stream = await self._opened(msgspec.structs.replace(asked, count=count))
        if stream is None:
            return
        try:
            async with asyncio.timeout(3.0):
                for number in range(count):
                    await stream.send(None, (b"xy"[: number % 3],))
                await stream.reply(Told)
        except (BroadsheetError, TimeoutError):
            return
        finally:
            stream.cancel()

    async def relay(self, asked: Asked) -> None:
        """Whenever something comes back, whoever sends is cancelled, and another one goes on."""
        operation = self._run.history.invoke(self._context.node, asked.id, "upload")
        stream = await self._opened(asked)
        if stream is None:
            self._run.history.lose(operation)
            return
        left = [bytes([number]) * self._random.randrange(1, 60_000) for number in range(12)]
        sent: list[bytes] = []

        async def send() -> None:
            while left:
                await stream.send(None, (left[0],))
                sent.append(left.pop(0))

        sender = asyncio.ensure_future(send())
        try:
            async with asyncio.timeout(in_seconds(patient(Duration(2_000 * MILLISECOND), self._run))):
                came = 0
                while came < len(sent) or left:
                    if await stream.receive() is None:
                        break
                    came += 1
                    if came % 3 == 0 and not sender.done():
                        sender.cancel()
                        await asyncio.gather(sender, return_exceptions=True)
                        sender = asyncio.ensure_future(send())
                told = await stream.reply(Told)
        except Refused as error:  # As where every place for a stream is taken.
            self._run.history.reject(operation, type(error).__name__)
        except (BroadsheetError, TimeoutError):
            self._run.history.lose(operation)
        else:
            whole = b"".join(sent)
            self._run.history.ok(operation, told == Told(asked.id, len(whole), crc32(whole)))
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            stream.cancel()

    async def break_off(self, asked: Asked) -> None:
        """Cancel an upload, a reader and an opening in the middle, with more to come."""
        self._deeds.given_up[asked.id] = False
        slow = msgspec.structs.replace(asked, pause_ms=60)
        stream = await self._opened(slow)
        if stream is None:
            return
        try:
            for _ in range(self._random.randrange(1, 6)):
                await asyncio.wait_for(stream.send(None, (bytes(9_000),)), 1.0)
        except (BroadsheetError, TimeoutError):
            pass
        reader: ClientStream | None = None
        try:
            tail = Asked(f"{asked.id}.tail", 500, 12)
            reader = await self._routed.open("sim.tail", tail, timeout=OPEN_TIMEOUT)
            await asyncio.wait_for(reader.receive(), 0.3)
        except (BroadsheetError, TimeoutError):
            pass
        stream.cancel()
        if reader is not None:
            reader.cancel()

    async def _opened(self, asked: Asked) -> ClientStream | None:
        try:
            return await self._routed.open("sim.sum", asked, timeout=patient(OPEN_TIMEOUT, self._run))
        except BroadsheetError:
            return None
