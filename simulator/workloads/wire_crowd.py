"""Crowds: what one client of the wire workload asks all at once.

A *row* is many calls that are alike, made in one turn, so that they share frames and answers; some are
refused, some take their time, some are cancelled, some are answered in another form: each leaves the row, and
the others must still get their own. *Hedged* calls are more than there are streams: the first one that is
answered cancels others in that very moment, which may have been woken for a place of their own. A *flood* is
more runs than a window holds, submitted at once. A *moved* call is one whose first attempt nobody knows the
outcome of, and whose later ones are told to go elsewhere, about when the time is up. What is received is
looked at again long after it came. Source: C1, C2 (docs/guarantees.md).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final
from zlib import crc32

import msgspec

from broadsheet.base.time import MILLISECOND, Duration, in_seconds
from broadsheet.errors import BroadsheetError, InvalidArgument, NotLeader, Refused, Unknown
from broadsheet.wire.method import Call, Empty, Reply
from simulator.workload import Episode, Violation
from simulator.workloads.wire_checks import close_run
from simulator.workloads.wire_requests import Asked, ClientSide, Deeds, Told

KEPT_MAX: Final = 12
"""Received views that are looked at again."""
LARGE_BYTES: Final = 250_000
"""Ten of these are more than a peer that is slow is given time for."""
ROW_TIMEOUT: Final = Duration(900 * MILLISECOND)
GIVEN_UP: Final = 0.4
"""How many rows have calls that are cancelled on their way."""
PATIENCE: Final = 10
"""So many times as long may a call take when nothing fails any more: over two streams and a slow link."""
GONE_FOR_GOOD: Final = 2
MOVED_TIMEOUT: Final = Duration(300 * MILLISECOND)


def patient(timeout: Duration, run: Episode) -> Duration:
    """How long a call may take: as long as it says while faults last."""
    return timeout if run.healed_at is None else Duration(PATIENCE * timeout)


class Done(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one of a row."""

    what: str = ""


DONE: Final = Done()
"""One object for all, as handlers do whose answers say nothing."""
OTHER: Final = Done("in another form")


class Keeper:
    """Holds what was received, and looks later whether it still is what it was."""

    def __init__(self) -> None:
        self._kept: deque[tuple[memoryview, int]] = deque()

    def keep(self, view: memoryview) -> None:
        """Hold `view` for a while, and look at the one that was held the longest."""
        self._kept.append((view, crc32(view)))
        if len(self._kept) > KEPT_MAX:
            self._look(*self._kept.popleft())

    def look(self) -> None:
        """Look at all of them."""
        for view, crc in self._kept:
            self._look(view, crc)

    def _look(self, view: memoryview, crc: int) -> None:
        if crc32(view) != crc:
            raise Violation(f"{len(view)} received bytes are others now: they were written over")


class CrowdServing:
    """The node's side."""

    def __init__(self, deeds: Deeds, taken: Callable[[Call], AbstractContextManager[None]]) -> None:
        """Count into `deeds`, and what runs as a task by `taken`."""
        self._deeds, self._taken = deeds, taken

    def row(self, call: Call, request: Asked, payload: memoryview) -> object:
        """Echo, in one of the forms that the number asks for."""
        number = int.from_bytes(payload[:4], "little")
        form = (number * 7 + len(request.id)) % 9 if request.pause_ms else 0
        if form == 5:
            raise InvalidArgument("one of the row is refused")
        if form == 3:
            return self._later(call, request, bytes(payload))  # What is not begun has done nothing.
        self._deeds.did(f"{request.id}/{number}")
        if form == 7:
            return Reply(OTHER, (bytes(payload), b"!"))
        return Reply(DONE, (bytes(payload),))

    async def _later(self, call: Call, request: Asked, payload: bytes) -> Reply:
        self._deeds.did(f"{request.id}/{int.from_bytes(payload[:4], 'little')}")
        with self._taken(call):
            await asyncio.sleep(request.pause_ms / 1000)
        return Reply(DONE, (payload,))

    async def moved(self, call: Call, request: Asked, payload: memoryview, *, other: str, now: int) -> Reply:
        """Do it without saying so, then send the caller elsewhere when its time is nearly up."""
        if not self._deeds.counts.get(request.id):
            self._deeds.did(request.id)
            raise Unknown("it may have been done")
        if request.count == GONE_FOR_GOOD:
            raise InvalidArgument("it is refused, wherever it is asked for")
        if request.count:
            raise NotLeader("it has moved, and nobody has it", hint=other)
        if request.pause_ms and call.deadline is not None:
            early = Duration((request.pause_ms % 7 - 2) * MILLISECOND)
            await asyncio.sleep(in_seconds(Duration(max(0, call.deadline - now - early))))
            raise NotLeader("it has moved", hint=other)
        self._deeds.did(request.id)
        return Reply(DONE, (bytes(payload),))


class Crowd(ClientSide):
    """The client's side."""

    async def row(self, asked: Asked) -> None:
        """Many calls that are alike, at once; each must get its own answer."""
        size = self._random.randrange(0, 40)
        timeout = patient(ROW_TIMEOUT, self._run)
        count = self._random.randrange(2, 100)
        alike = max(1, count - self._random.randrange(0, 20))  # Those behind differ in length.

        async def one(number: int) -> None:
            name = f"{asked.id}/{number}"
            operation = self._run.history.invoke(self._context.node, name, "row")
            payload = number.to_bytes(4, "little") + bytes(size + number // alike)
            try:
                _, rest = await self._routed.call("sim.row", asked, (payload,), reply=Done, timeout=timeout)
            except Refused as error:
                self._run.history.reject(operation, type(error).__name__)
            except (BroadsheetError, asyncio.CancelledError):
                self._run.history.lose(operation)
            else:
                self._run.history.ok(operation, bytes(rest).rstrip(b"!") == payload)

        calls = [asyncio.ensure_future(one(number)) for number in range(count)]
        if self._run.healed_at is None and self._random.random() < GIVEN_UP:
            await asyncio.sleep(self._random.randrange(0, 5) / 1000)
            for call in calls[:: self._random.randrange(1, 5)]:
                call.cancel()
        await asyncio.gather(*calls)

    async def hedge(self, asked: Asked) -> None:
        """More calls than streams; the first that is answered cancels others, and the rest must go on."""
        calls: list[asyncio.Task[None]] = []
        deeds, tail = self._deeds, bytes(LARGE_BYTES if self._random.random() < 0.15 else 8)

        async def one(name: str) -> None:
            deeds.given_up[name] = False
            try:
                await self._routed.call(
                    "sim.echo",
                    msgspec.structs.replace(asked, id=name),
                    (tail,),
                    reply=Told,
                    timeout=ROW_TIMEOUT,
                )
            except Refused:
                deeds.given_up[name] = True
            except BroadsheetError:
                pass
            waiting = [call for call in calls if not call.done() and call is not asyncio.current_task()]
            for call in waiting[:: self._random.randrange(1, 12)][:4]:
                call.cancel()

        calls += [
            asyncio.ensure_future(one(f"{asked.id}/{number}"))
            for number in range(self._random.randrange(4, 40 if len(tail) < LARGE_BYTES else 16))
        ]
        await asyncio.gather(*calls, return_exceptions=True)

    async def flood(self, asked: Asked) -> None:
        """More runs at once than the window holds; some are cancelled while they wait."""
        try:
            _, run = await self._routed.open_run("sim.log", asked, reply=Empty, timeout=ROW_TIMEOUT)
        except BroadsheetError:
            return
        size = self._random.randrange(1, 60_000)
        ends: list[tuple[int, int]] = []
        waiting: dict[int, None] = {}

        def give_up(_answered: object) -> None:
            """Cancel the first that waits: it has just been promised the room of the one that is answered."""
            if waiting and self._random.random() < 0.2:
                calls[next(iter(waiting))].cancel()

        async def one(number: int) -> None:
            waiting[number] = None
            try:
                answer = await run.submit([bytes(size + number)])
            except BroadsheetError:
                return
            finally:
                del waiting[number]
            answer.add_done_callback(give_up)
            try:
                found = await asyncio.wait_for(answer, 3.0)
            except (BroadsheetError, TimeoutError):
                return
            ends.append((found.begin, found.end - size - number))

        calls = [asyncio.ensure_future(one(number)) for number in range(self._random.randrange(4, 40))]
        await asyncio.gather(*calls, return_exceptions=True)
        await close_run(run, ROW_TIMEOUT)
        if any(begin != end for begin, end in ends) or len({begin for begin, _ in ends}) < len(ends):
            raise Violation(f"runs of {asked.id} were told places that are not theirs: {ends}")

    async def moved(self, asked: Asked) -> None:
        """Twice is as once, so it is tried again; a no in the end would be wrong."""
        if self._run.healed_at is not None:
            asked = msgspec.structs.replace(asked, pause_ms=0)  # From now on every call succeeds.
        operation = self._run.history.invoke(self._context.node, asked.id, "moved")
        timeout = patient(MOVED_TIMEOUT, self._run)
        try:
            await self._routed.call(
                "sim.moved", asked, (b"!",), reply=Done, timeout=timeout, is_idempotent=True
            )
        except Refused as error:
            self._run.history.reject(operation, type(error).__name__)
        except BroadsheetError:
            self._run.history.lose(operation)
        else:
            self._run.history.ok(operation, result=True)

    async def gone(self, asked: Asked) -> None:
        """As `moved`, but every later attempt is refused: still nobody knows of the first."""
        self._deeds.given_up[asked.id] = False
        try:
            await self._routed.call(
                "sim.moved",
                msgspec.structs.replace(asked, count=self._random.randrange(1, GONE_FOR_GOOD + 1)),
                (b"!",),
                reply=Done,
                timeout=MOVED_TIMEOUT,
                is_idempotent=True,
            )
        except BroadsheetError as error:
            self._deeds.ended(asked.id, error)
