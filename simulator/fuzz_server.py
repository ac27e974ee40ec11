"""Fuzz server: the process that the fuzzer attacks, with one method of each shape.

It serves real sockets with small limits, so that a session of a few hundred KiB reaches each limit. An
undeclared error ends the process, which the fuzzer notices. It keeps no state.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.capability import Capability
from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.errors import Status
from broadsheet.ports import Network, Random, Time, Timers
from broadsheet.runtime.entropy import Entropy
from broadsheet.runtime.loop import run
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.runtime.time import LoopTimers, SystemTime
from broadsheet.runtime.turn import Turn
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY, Call, Empty, Method, Reply, RunOpened, Shape, WireStream
from broadsheet.wire.run import Run
from broadsheet.wire.server import Server
from simulator.fuzz_sessions import APPEND, ECHO, SUM, Asked

LIMITS: Final = WireLimits(
    frame_bytes_max=256 << 10,
    body_bytes_max=64 << 10,
    window_bytes=1 << 20,
    streams_max=32,
    run_count_max=4096,
    in_flight_bytes_max=1 << 20,
    send_buffer_bytes_max=4 << 20,
    call_timeout=Duration(200 * MILLISECOND),
    drain_timeout=Duration(SECOND),
)


class _Sink:
    """Answers most runs at once, refuses some, and keeps one back now and then until the end."""

    def __init__(self) -> None:
        self._head = 0
        self._kept: list[Run] = []

    def on_run(self, run: Run) -> None:
        assert sum([len(part) for part in run.parts]) == run.size, "the parts are the run"
        if run.sequence % 7 == 3 and len(self._kept) < 4:
            self._kept.append(run)
        elif run.at not in (None, self._head):
            run.answer(Status.WRONG_APPEND_OFFSET, message=f"the head is at {self._head}")
        else:
            begin, self._head = self._head, self._head + run.size
            run.answer(Status.OK, begin, begin + run.size)

    def on_end(self) -> None:
        kept, self._kept = self._kept, []
        for each in kept:
            each.answer(Status.UNKNOWN, message="the stream ended")


async def _echo(_call: Call, request: Asked, payload: memoryview) -> Reply:
    await asyncio.sleep(0.001 if request.name == "slow" else 0)
    return Reply(request, (payload,))


async def _sum(_call: Call, _request: Empty, stream: WireStream) -> Reply:
    while (message := await stream.receive()) is not None:
        await stream.send(None, (message.payload,))
    return Reply(EMPTY)


def _methods() -> list[Method]:
    def row(
        name: str, number: int, shape: Shape, request: type[msgspec.Struct], handler: Callable[..., Any]
    ) -> Method:
        return Method(
            name,
            number=number,
            shape=shape,
            capability=Capability.NONE,
            request=request,
            name_of=None,
            handler=handler,
        )

    return [
        row("fuzz.echo", ECHO, Shape.UNARY, Asked, _echo),
        row("fuzz.sum", SUM, Shape.STREAM, Empty, _sum),
        row("fuzz.append", APPEND, Shape.RUN, Empty, lambda _call, _request: RunOpened(EMPTY, _Sink(), 4096)),
    ]


class _Ports:
    """What the server needs of this process."""

    def __init__(self) -> None:
        self.time: Time = SystemTime()
        self.network: Network = TCPNetwork()
        self.random: Callable[[str], Random] = Entropy()
        self.timers: Timers = LoopTimers(asyncio.get_running_loop())
        self.crash: Crash = _die
        self.turn = Turn(self.timers, crash=self.crash)


def _die(error: BaseException) -> None:
    """Die loudly: the fuzzer is looking for it."""
    sys.stderr.write(f"crash: {error!r}\n")
    sys.stderr.flush()
    os._exit(3)


async def _serve() -> None:
    ports = _Ports()
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: ports.crash(RuntimeError(repr(context)))
    )
    server = Server(
        ports,
        Scope("fuzz", crash=ports.crash),
        _methods(),
        authorizer=Authorizer(None, time=ports.time),
        limits=LIMITS,
        failed=ports.crash,
    )
    address = await server.listen("127.0.0.1:0")
    sys.stdout.write(address.rpartition(":")[2] + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    run(_serve())
