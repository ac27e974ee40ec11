"""Long streams of the wire workload: those that outlive a token, a peer's patience, or a silence.

A token *expires* with runs on their way: what is refused was not done, and no stream goes on. A *tail* sends
much, or nothing for a while, to readers that stop reading and read again: all of it must come, in order, and
an end without the rest is no end. Names outside the grant are refused, one by one and in rows. Each uses a
connection of its own where others would suffer from it.
Source: access.4-6; C2; ADR 0151.
"""

import asyncio
from typing import Final
from zlib import crc32

import msgspec

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.errors import BroadsheetError, NotAllowed, Refused
from broadsheet.wire.client import Acknowledged, ClientConnection, ClientRunStream, ClientStream
from broadsheet.wire.method import Call, Empty, Reply, RoomyStream
from simulator.workload import Violation
from simulator.workloads.wire_checks import check_run
from simulator.workloads.wire_requests import Asked, ClientSide, Told

OPEN_TIMEOUT: Final = Duration(1500 * MILLISECOND)
TAIL_MESSAGE_BYTES: Final = 60_000
"""Twenty of these fill what a link, two buffers and a window hold."""
TAIL_SECONDS: Final = 20.0
"""By when a tail must have ended; its reader pauses for less than half a second."""
EXPIRY_SECONDS: Final = 4.0
UPLOAD_TIMEOUT: Final = Duration(3000 * MILLISECOND)
RUNS_MAX: Final = 40
TRESPASSES_MAX: Final = 48

Answers = list[tuple[str, "asyncio.Future[Acknowledged]"]]


async def tail(_call: Call, request: Asked, stream: RoomyStream) -> Reply:
    """The node's side: messages as large as there is room for, and a silence before the last."""
    size = crc = 0
    for number in range(request.count):
        if request.pause_ms and number == request.count - 1:
            await asyncio.sleep(request.pause_ms / 1000)
        wanted = TAIL_MESSAGE_BYTES if request.count > 2 else 10
        room = await stream.room(wanted)
        payload = number.to_bytes(4, "little") * (room // 4)
        await stream.send(None, (payload,))
        size, crc = size + len(payload), crc32(payload, crc)
    return Reply(Told(request.id, size, crc))


class Long(ClientSide):
    """The client's side."""

    async def expire(self, asked: Asked) -> None:
        """Show a token that ends in a second or two, and send runs until it has ended."""
        connection = await self._dial(self._token(seconds=self._random.randrange(1, 3)))
        if connection is None:
            return
        slow = msgspec.structs.replace(asked, pause_ms=100)
        try:
            _, run = await connection.open_run("sim.log", slow, reply=Empty, timeout=OPEN_TIMEOUT)
            reader = None
            if self._random.random() < 0.5:
                reader = await connection.open("sim.tail", Asked(f"{asked.id}.tail", 30_000, 1))
        except BroadsheetError:
            connection.abort("it was refused")
            return
        upload = asyncio.ensure_future(self._never_whole(connection, f"{asked.id}.sum"))
        answers: Answers = []
        time = self._run.world
        until = time.now + int(EXPIRY_SECONDS * 1e9)
        while time.now < until and not run.has_ended and len(answers) < RUNS_MAX:
            await self._submit(run, asked.id, answers)
            await asyncio.sleep(0.15)
        await self._settle(run, answers)
        await upload
        if reader is not None:
            reader.cancel()
        connection.abort("its token has expired")

    async def _never_whole(self, connection: ClientConnection, name: str) -> None:
        """Upload, and never say that it is all: whatever ends it, messages that wait are not the whole."""
        try:
            stream = await connection.open("sim.sum", Asked(name, 500), timeout=UPLOAD_TIMEOUT)
            async with asyncio.timeout(EXPIRY_SECONDS):
                while not stream.replied.done():
                    await stream.send(None, (b"more",))
                    await asyncio.sleep(0.02)
        except (BroadsheetError, TimeoutError):
            return
        if stream.replied.exception() is None:
            raise Violation(f"{name} was answered, and its client had not sent all of it")

    async def stall(self, asked: Asked) -> None:
        """Send more than is worked on at once, whose answers take long: whoever is not read is not silent."""
        connection = await self._dial()
        if connection is None:
            raise Violation("nothing fails any more, and a node cannot be reached")
        _, run = await connection.open_run("sim.log", asked, reply=Empty, timeout=OPEN_TIMEOUT)
        size = self._limits.in_flight_bytes_max // 3
        runs = [[bytes(size // 4)] * 4 for _ in range(4)]  # Of an even number of records: each is held.
        answers = [await run.submit(records) for records in runs]
        try:
            await asyncio.wait_for(asyncio.gather(*answers), TAIL_SECONDS)
        except (BroadsheetError, TimeoutError) as error:
            raise Violation(f"runs that were worked on for {asked.pause_ms} ms are lost: {error}") from error
        check_run(run)
        await run.close()
        connection.abort("it has stalled enough")

    async def _submit(self, run: ClientRunStream, name: str, answers: Answers) -> None:
        """One run more; what is not sent is not done."""
        number = len(answers)
        record = b"r" * (number + 1)
        self._deeds.given_up[f"{name}/{number}"] = False
        try:
            answers.append((f"{name}/{number}", await asyncio.wait_for(run.submit([record]), 1.0)))
        except BroadsheetError as error:
            self._deeds.ended(f"{name}/{number}", error)
        except TimeoutError:
            pass

    async def _settle(self, run: ClientRunStream, answers: Answers) -> None:
        """Hear of each run; whoever hears of none in time knows nothing."""
        for name, answer in answers:
            try:
                await asyncio.wait_for(answer, 2.0)
            except BroadsheetError as error:
                self._deeds.ended(name, error)
            except TimeoutError:
                pass
            else:
                self._deeds.ended(name, None)
        check_run(run)

    async def tail(self, asked: Asked) -> None:
        """Read a few streams at once, stop reading for a while in the middle, and have all of each."""
        connection = await self._dial()
        if connection is None:
            return
        is_silent = self._random.random() < 0.3
        pause_ms, count = (2000, 2) if is_silent else (0, self._random.randrange(3, 24))
        names = [f"{asked.id}.{number}" for number in range(1 if is_silent else self._random.randrange(1, 7))]
        readers = [self._read(connection, Asked(name, pause_ms, count)) for name in names]
        tasks = [asyncio.ensure_future(reader) for reader in readers]
        await asyncio.sleep(self._random.randrange(0, 50) / 1000)
        if connection.transport is not None and not is_silent:
            connection.transport.pause_reading()
            await asyncio.sleep(self._random.randrange(20, 400) / 1000)
            connection.transport.resume_reading()
        for task in tasks:
            await task
        connection.abort("it has read all")

    async def _read(self, connection: ClientConnection, asked: Asked) -> None:
        operation = self._run.history.invoke(self._context.node, asked.id, "tail")
        try:
            async with asyncio.timeout(TAIL_SECONDS):
                stream = await connection.open("sim.tail", asked)
                found = await self._all_of(stream, asked)
        except Refused as error:
            self._run.history.reject(operation, type(error).__name__)
        except (BroadsheetError, TimeoutError):
            self._run.history.lose(operation)
        else:
            self._run.history.ok(operation, found)

    async def _all_of(self, stream: ClientStream, asked: Asked) -> bool:
        """Whether what came is what was sent. An end by `None` says that all has come."""
        size = crc = number = 0
        while (message := await stream.receive()) is not None:
            if bytes(message.payload[:4]) != number.to_bytes(4, "little"):
                raise Violation(f"{asked.id}: message {number} begins with {bytes(message.payload[:4])!r}")
            size, crc, number = size + len(message.payload), crc32(message.payload, crc), number + 1
            await asyncio.sleep(0.002)
        if number < asked.count:
            raise Violation(f"{asked.id}: it ended well after {number} of {asked.count} messages")
        return await stream.reply(Told) == Told(asked.id, size, crc)

    async def trespass(self, asked: Asked) -> None:
        """Ask for what is somebody else's, alone and in rows: nothing of it may be done."""
        name, count = f"nobody.{asked.id}", 1 if self._random.random() < 0.8 else TRESPASSES_MAX
        theirs = Asked(name)

        async def one() -> None:
            self._deeds.given_up[name] = True
            try:
                await self._routed.call("sim.echo", theirs, (b"mine",), reply=Told, timeout=OPEN_TIMEOUT)
            except NotAllowed:
                return
            except BroadsheetError:
                return  # It may not have got there.
            raise Violation(f"{name} was answered, and its caller may not ask for it")

        await asyncio.gather(*[one() for _ in range(count)])
