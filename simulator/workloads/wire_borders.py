"""Borders: requests of the wire workload at the edge of what a stream, a deadline or a budget allows.

A *hasty* caller finishes a RUN stream in the write that opens it. A handler *quits*: it has done its work,
and its task ends without an answer that can be sent. A *brief* call has less time than the wire can tell. Who
is *stuck* has a socket that takes nothing for a while, then takes all at once: what was asked, and what was
withdrawn since. In the end, with nobody else there, one client makes a *squeeze*: callers who fill the node,
and connections that wait for room one behind the other.
Whoever waits must go on as soon as there is room, and not when somebody else happens to come by.
Source: C2; wire.7-9; ADR 0152.
"""

import asyncio
from functools import partial
from typing import Final

import msgspec

from broadsheet.base.time import MILLISECOND, SECOND, Duration, in_seconds
from broadsheet.errors import BroadsheetError, DeadlineExceeded
from broadsheet.wire.client import ClientConnection, dial
from broadsheet.wire.method import Call, Empty, Reply, WireStream
from simulator.streams import End
from simulator.workload import Episode, Violation
from simulator.workloads.wire_checks import demand
from simulator.workloads.wire_crowd import Done, patient
from simulator.workloads.wire_requests import Asked, ClientSide, Deeds, Told

OPEN_TIMEOUT: Final = Duration(900 * MILLISECOND)
BRIEF_NS_MAX: Final = 2_000_000
"""A deadline goes over the wire in milliseconds: half of these calls have less than one."""
LONGEST: Final = Duration(30 * SECOND)
"""No call of this workload has more time."""
HOG_BYTES: Final = (150 << 10, 156 << 10)
"""Both together are more than one caller may hold of the node, and each alone is not."""
WAITERS: Final = 5
OTHERS_BYTES: Final = 150 << 10
"""Three of these leave less room than a large frame of another caller wants."""
LARGE_BYTES: Final = 240 << 10
MEDIUM_BYTES: Final = 90 << 10
HELD_MS: Final = 300
LONG_HELD_MS: Final = 1500
SWELLS: Final = 1
"""The answer is more than the caller takes."""
FAILS: Final = 2
SWOLLEN_BYTES: Final = 300 << 10
ROW: Final = 48
"""Equal calls, enough of them to be taken together."""
STUCK_PAUSE_MS: Final = 150
"""Of those of the row that take their time: longer than from one look to the next."""
BLOCKED_MS: Final = 120
STUCK_SECONDS: Final = 3.0
UPLOADED_BYTES: Final = 60_000
SOON_SECONDS: Final = 0.5
"""By when a small request is answered once its caller has room: sooner than anybody looks again."""


def judge_deadline(run: Episode, call: Call, now: int) -> None:
    """Every request of this workload has a deadline, and none has more time than its caller gave it."""
    left = None if call.deadline is None else call.deadline - now
    if left is None or left > LONGEST:
        run.world.fail(Violation(f"a handler of {call.method.name} is given {left} ns"))


class QuitServing:
    """The node's side: handlers that have done what was asked, and cannot say so."""

    def __init__(self, deeds: Deeds) -> None:
        self._deeds = deeds

    async def quit(self, _call: Call, request: Asked, _payload: memoryview) -> object:
        """Do it, and do not say so."""
        return await self._quit(request)

    async def quit_stream(self, _call: Call, request: Asked, stream: WireStream) -> object:
        """The same with a stream, behind its first message."""
        await stream.receive()
        return await self._quit(request)

    async def _quit(self, request: Asked) -> object:
        self._deeds.did(request.id)
        await asyncio.sleep(request.pause_ms / 1000)
        if request.count == SWELLS:
            return Reply(Told(request.id, 0, 0), (bytes(SWOLLEN_BYTES),))
        if request.count == FAILS:
            raise ValueError("a bug of a handler")
        raise asyncio.CancelledError


class Borders(ClientSide):
    """The client's side."""

    async def hasty(self, asked: Asked) -> None:
        """Open a RUN stream and finish it at once: it ends when its handler has accepted it."""
        connection = await self._dial()
        if connection is None:
            return
        is_calm = self._run.healed_at is not None
        opening = asyncio.ensure_future(
            connection.open_run("sim.log", asked, reply=Empty, timeout=patient(OPEN_TIMEOUT, self._run))
        )
        await asyncio.sleep(0)
        for run in connection._runs.values():  # noqa: SLF001 - as a node that leaves makes it do.
            run.finish()
        try:
            _, run = await opening
            await asyncio.wait_for(run.close(), in_seconds(OPEN_TIMEOUT))
        except TimeoutError:
            demand(not is_calm, f"the RUN stream {asked.id} was finished as it was opened, and stays")
        except BroadsheetError:
            pass
        finally:
            connection.abort("it was hasty")

    async def quit(self, asked: Asked) -> None:
        """Ask for what nobody answers: the node says that it stopped, and does not wait for the deadline."""
        asked = msgspec.structs.replace(asked, count=self._random.randrange(0, FAILS + 1))
        is_calm, name = self._run.healed_at is not None, f"{asked.id}.stream"
        self._deeds.given_up[asked.id] = self._deeds.given_up[name] = False
        timeout = patient(OPEN_TIMEOUT, self._run)
        try:
            await self._routed.call("sim.quit", asked, (b"?",), reply=Told, timeout=timeout)
        except DeadlineExceeded as error:
            demand(not is_calm, f"the task of {asked.id} ended without an answer, and nobody said so")
            self._deeds.ended(asked.id, error)
        except BroadsheetError as error:
            self._deeds.ended(asked.id, error)
        try:
            stream = await self._routed.open(
                "sim.quit_stream", msgspec.structs.replace(asked, id=name), timeout=timeout
            )
        except BroadsheetError as error:
            self._deeds.ended(name, error)
            return
        try:
            await asyncio.wait_for(stream.send(None, (b"?",)), in_seconds(OPEN_TIMEOUT))
            await asyncio.wait_for(stream.receive(), in_seconds(OPEN_TIMEOUT))
        except TimeoutError:
            demand(not is_calm, f"the task of {name} ended without an answer, and nobody said so")
        except BroadsheetError:
            pass
        finally:
            stream.cancel()

    async def brief(self, asked: Asked) -> None:
        """Calls that have less time than the wire can tell: they have some deadline all the same."""
        connection = await self._dial()
        if connection is None:
            return

        async def one(name: str, timeout: Duration) -> None:
            self._deeds.given_up[name] = False
            try:
                await connection.call("sim.echo", Asked(name, 5), (b"?",), reply=Told, timeout=timeout)
            except BroadsheetError as error:
                self._deeds.ended(name, error)

        spans = [Duration(self._random.randrange(20_000, BRIEF_NS_MAX)) for _ in range(4)]
        await asyncio.gather(*[one(f"{asked.id}/{number}", span) for number, span in enumerate(spans)])
        await asyncio.sleep(0.01)
        connection.abort("it was brief")

    async def stuck(self, asked: Asked) -> None:
        """Ask, withdraw and send while the socket takes nothing; then it takes bytes again."""
        connection = await self._dial()
        if connection is None:
            return
        is_calm = self._run.healed_at is not None
        self._deeds.given_up[asked.id] = False
        upload = asyncio.ensure_future(self._upload(connection, asked))
        await asyncio.sleep(self._random.randrange(0, 20) / 1000)
        end = connection.transport
        if isinstance(end, End):
            end.block()
        name = f"{asked.id}.row"
        calls = [asyncio.ensure_future(self._one_of(connection, name, number)) for number in range(ROW)]
        await asyncio.sleep(0.002)
        for call in calls[:: self._random.randrange(2, 5)]:
            call.cancel()
        await asyncio.sleep(self._random.randrange(5, BLOCKED_MS) / 1000)
        if isinstance(end, End):
            end.unblock()
        _, late = await asyncio.wait([upload, *calls], timeout=STUCK_SECONDS)
        demand(not (late and is_calm), f"{asked.id}: the socket takes bytes again, and {len(late)} wait")
        for each in (upload, *calls):
            each.cancel()
        await asyncio.gather(upload, *calls, return_exceptions=True)
        connection.abort("it was stuck")

    async def _one_of(self, connection: ClientConnection, name: str, number: int) -> None:
        known = f"{name}/{number}"
        self._deeds.given_up[known] = False
        slow = Asked(name, STUCK_PAUSE_MS)
        try:
            await connection.call(
                "sim.row", slow, (number.to_bytes(4, "little"),), reply=Done, timeout=LONGEST
            )
        except BroadsheetError as error:
            self._deeds.ended(known, error)
        else:
            self._deeds.ended(known, None)

    async def _upload(self, connection: ClientConnection, asked: Asked) -> None:
        """More than the socket takes, but less than the window."""
        try:
            stream = await connection.open("sim.sum", asked, timeout=LONGEST)
        except BroadsheetError:
            return
        try:
            for _ in range(8):
                await stream.send(None, (bytes(UPLOADED_BYTES),))
                await asyncio.sleep(0.003)
            await stream.reply(Told)
        except BroadsheetError:
            return
        finally:
            stream.cancel()

    async def squeeze(self, asked: Asked) -> None:
        """Wait for room in lines, of one caller and of several; nobody else is there.

        Raises:
            Violation: who had room did not go on.
        """
        await self._squeeze_alone(f"squeeze.{asked.id}")
        await self._squeeze_among_others(f"squeeze.{asked.id}")

    async def _squeeze_alone(self, name: str) -> None:
        """The only caller: those that wait behind the first that has room are served without any more ado."""
        hogs = [await self._as(name) for _ in HOG_BYTES]
        waiters = [await self._as(name) for _ in range(WAITERS)]
        held = []
        for number, (hog, size) in enumerate(zip(hogs, HOG_BYTES, strict=True)):
            held.append(self._ask(hog, f"{name}.hog.{number}", bytes(size), HELD_MS))
            await asyncio.sleep(0.05)
        for number, waiter in enumerate(waiters):
            await self._soon(waiter, f"{name}.first.{number}", pause_ms=1)
        await asyncio.gather(*held)
        await asyncio.sleep(2.5 * 0.1)  # Nothing is asked: whoever looks now sees who was forgotten.
        await self._soon(waiters[-1], f"{name}.last")
        for connection in (*hogs, *waiters):
            connection.abort("the squeeze is over")

    async def _squeeze_among_others(self, name: str) -> None:
        """Below the floor a small request gets through behind a large frame of its caller."""
        others = [await self._as(f"{name}.{who}") for who in ("y", "y", "w")]
        held = []
        for number, (other, who) in enumerate(zip(others, ("y", "y", "w"), strict=True)):
            ask = f"{name}.{who}.{number}"
            held.append(self._ask(other, ask, bytes(OTHERS_BYTES), LONG_HELD_MS))
            await asyncio.sleep(0.05)
        large, medium, small = [await self._as(f"{name}.x") for _ in range(3)]
        waiting = self._ask(large, f"{name}.x.large", bytes(LARGE_BYTES), 0)
        await asyncio.sleep(0.05)
        above = self._ask(medium, f"{name}.x.medium", bytes(MEDIUM_BYTES), 100)
        await asyncio.sleep(0.04)
        await self._soon(small, f"{name}.x.first", pause_ms=1)  # Above the share: from now on it waits, too.
        await above
        demand(not waiting.done(), f"{name}.x.large was not to find room, and this looks at nothing")
        await self._soon(small, f"{name}.x.small")
        await asyncio.gather(waiting, *held)
        for connection in (*others, large, medium, small):
            connection.abort("the squeeze is over")

    async def _as(self, prefix: str) -> ClientConnection:
        address = self._routed.address
        token = self._token(prefix=prefix)
        return await dial(self._context.ports, address, token=token, limits=self._limits)

    def _ask(
        self, connection: ClientConnection, name: str, payload: bytes, pause_ms: int
    ) -> "asyncio.Task[object]":
        ask = partial(connection.call, "sim.echo", reply=Told, timeout=Duration(10 * SECOND))
        return asyncio.ensure_future(ask(Asked(name, pause_ms), (payload,)))

    async def _soon(self, connection: ClientConnection, name: str, pause_ms: int = 0) -> None:
        began = self._run.world.now
        await self._ask(connection, name, b"small", pause_ms)
        took = (self._run.world.now - began) / SECOND
        demand(took < SOON_SECONDS, f"{name}, a small call whose caller has room, took {took} s")
