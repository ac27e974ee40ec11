"""A server with a few methods of every shape, on real loopback sockets, and clients for it."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.capability import Capability
from broadsheet.access.tokens import Tokens
from broadsheet.errors import NotFound, Status
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import LoopTimers, SystemTime
from broadsheet.runtime.turn import Turn
from broadsheet.wire.client import ClientConnection, dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY, Call, Empty, Method, Reply, RunOpened, Shape, WireStream
from broadsheet.wire.run import Run
from broadsheet.wire.server import Server
from simulator.workloads.wire_checks import check_ended

PATIENCE_SECONDS = 30.0
"""Far beyond what anything here takes, and before a test is ended without a word."""


class Echo(msgspec.Struct, frozen=True, array_like=True):
    name: str = "a/b"
    number: int = 0


class Sum(msgspec.Struct, frozen=True, array_like=True):
    count: int
    size: int


class LoopPorts:
    """The ports that the wire wants, on the running loop."""

    def __init__(self) -> None:
        self.time = SystemTime()
        self.timers = LoopTimers(asyncio.get_running_loop())
        self.network = TCPNetwork()
        self.random = random.Random
        self.crashed: list[BaseException] = []
        self.crash = self.crashed.append
        self.turn = Turn(self.timers, crash=self.crash)


class Log:
    """A sink that places records one behind another, at once or when told."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.held: list[Run] = []
        self.is_holding = False
        self.is_ended = False
        self.refuse_above = 1 << 62
        self.joined_bytes_max = 0

    def on_run(self, run: Run) -> None:
        if self.is_holding:
            self.held.append(run)
        else:
            self.place(run)

    def place(self, run: Run) -> None:
        begin = len(self.content)
        if run.at is not None and run.at != begin:
            run.answer(Status.WRONG_APPEND_OFFSET, message=f"the head is at {begin}")
            return
        if run.size > self.refuse_above:
            run.answer(Status.TOO_LARGE, message="more than this log takes")
            return
        for part in run.parts:
            self.content += part
        assert len(self.content) == begin + run.size, "the parts are the records"
        run.answer(Status.OK, begin, begin + run.size)

    def release(self) -> None:
        held, self.held, self.is_holding = self.held, [], False
        for run in held:
            self.place(run)

    def on_end(self) -> None:
        self.is_ended = True


class Methods:
    """Every shape, and every way to go wrong."""

    def __init__(self) -> None:
        self.log = Log()
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.done = 0
        row = self._row
        self.table = [
            row("test.echo", 201, Shape.UNARY, self.echo, Capability.READ),
            row("test.task", 202, Shape.UNARY, self.task, Capability.READ),
            row("test.wait", 203, Shape.UNARY, self.wait, Capability.READ),
            row("test.refuse", 204, Shape.UNARY, self.refuse, Capability.READ),
            row("test.fail", 205, Shape.UNARY, self.fail, Capability.READ),
            row("test.sum", 206, Shape.STREAM, self.sum, Capability.APPEND),
            row("test.download", 207, Shape.STREAM, self.download, Capability.READ, is_receiving=False),
            row("test.append", 208, Shape.RUN, self.append, Capability.APPEND),
            row("test.chat", 209, Shape.STREAM, self.chat, Capability.READ),
            row("test.append_later", 210, Shape.RUN, self.append_later, Capability.APPEND),
            row("test.commit", 211, Shape.STREAM, self.commit, Capability.APPEND),
            row("test.slow", 214, Shape.STREAM, self.slow, Capability.APPEND),
            row("test.busy", 215, Shape.STREAM, self.busy, Capability.APPEND),
            row("test.deaf", 213, Shape.STREAM, self.deaf, Capability.APPEND),
            row("test.stubborn", 212, Shape.UNARY, self.stubborn, Capability.READ),
        ]

    @staticmethod
    def _row(
        name: str,
        number: int,
        shape: Shape,
        handler: Any,
        capability: Capability,
        *,
        is_receiving: bool = True,
    ) -> Method:
        return Method(
            name,
            number=number,
            shape=shape,
            capability=capability,
            request=Echo,
            name_of=lambda request: request.name,
            handler=handler,
            is_receiving=is_receiving,
        )

    def echo(self, _call: Call, request: Echo, payload: memoryview) -> Reply:
        return Reply(request, (payload,))

    async def task(self, _call: Call, request: Echo, payload: memoryview) -> Reply:
        await asyncio.sleep(0)
        return Reply(request, (payload,))

    async def wait(self, _call: Call, request: Echo, _payload: memoryview) -> Reply:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.done += 1
        return Reply(request)

    async def slow(self, _call: Call, _request: Echo, stream: WireStream) -> Reply:
        count = size = 0
        while (message := await stream.receive()) is not None:
            count, size = count + 1, size + len(message.payload)
            await asyncio.sleep(0.002)
        return Reply(Sum(count, size))

    async def deaf(self, _call: Call, _request: Echo, _stream: WireStream) -> Reply:
        await self.gate.wait()  # As a handler that has to wait before it takes anything.
        return Reply(EMPTY)

    async def busy(self, _call: Call, _request: Echo, stream: WireStream) -> Reply:
        await self.gate.wait()
        await stream.receive()  # It has come already, so nobody waits for it.
        self.done += 1
        await asyncio.Event().wait()
        return Reply(EMPTY)

    async def stubborn(self, _call: Call, request: Echo, _payload: memoryview) -> Reply:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            await self.gate.wait()  # What a handler does that must see its write through.
            raise
        return Reply(request)

    async def refuse(self, _call: Call, request: Echo, _payload: memoryview) -> Reply:
        raise NotFound(f"there is no {request.name}", hint="elsewhere:1")

    async def fail(self, _call: Call, _request: Echo, _payload: memoryview) -> Reply:
        raise KeyError("secret")

    async def sum(self, _call: Call, _request: Echo, stream: WireStream) -> Reply:
        count = size = 0
        while (message := await stream.receive()) is not None:
            count += 1
            size += len(message.payload)
        return Reply(Sum(count, size))

    async def commit(self, call: Call, request: Echo, stream: WireStream) -> Reply:
        reply = await self.sum(call, request, stream)
        self.done += 1
        await self.gate.wait()
        return reply

    async def download(self, _call: Call, request: Echo, stream: WireStream) -> Reply:
        for number in range(request.number):
            await stream.send(Echo(number=number), (bytes(100_000),))
        return Reply(EMPTY)

    async def chat(self, _call: Call, _request: Echo, stream: WireStream) -> Reply:
        try:
            while (message := await stream.receive()) is not None:
                await stream.send(None, (message.payload,))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Reply(EMPTY)

    def append(self, _call: Call, _request: Echo) -> RunOpened:
        return RunOpened(EMPTY, self.log, self.log.joined_bytes_max)

    async def append_later(self, _call: Call, request: Echo) -> RunOpened:
        await asyncio.sleep(0)
        if request.number:
            raise NotFound("there is no such log")
        return RunOpened(EMPTY, self.log, self.log.joined_bytes_max)


class World:
    """One server and its clients."""

    def __init__(self, limits: WireLimits, tokens: Tokens | None) -> None:
        self.ports = LoopPorts()
        self.scope = Scope("test", crash=self.ports.crash)
        self.methods = Methods()
        self.limits = limits
        self.failures: list[BaseException] = []
        self.server = Server(
            self.ports,
            self.scope,
            self.methods.table,
            authorizer=Authorizer(tokens, time=self.ports.time),
            limits=limits,
            node="a",
            cluster="c1",
            failed=self.failures.append,
        )
        self.address = ""

    async def client(
        self, *, token: str = "", limits: WireLimits | None = None, cluster: str = ""
    ) -> ClientConnection:
        return await dial(
            self.ports, self.address, token=token, limits=limits or self.limits, node="test", cluster=cluster
        )


@asynccontextmanager
async def world(limits: WireLimits | None = None, tokens: Tokens | None = None) -> AsyncIterator[World]:
    made = World(limits or WireLimits(), tokens)
    made.address = await made.server.listen("127.0.0.1:0")
    try:
        yield made
    finally:
        for connection in list(made.server.connections.values()):
            connection.abort("the test is over")
        await made.server.close()
        await made.scope.close()
    assert not made.ports.crashed, made.ports.crashed
    await until(lambda: not made.server.accounts.by_name, lambda: check_ended(made.server))
    check_ended(made.server)


async def until(condition: Callable[[], object], explain: Callable[[], object] = str) -> None:
    """Let the loop turn until `condition` holds.

    Args:
        explain: called when it does not within `PATIENCE_SECONDS`; what it raises says what is wrong.
    """
    ends = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > ends:
            explain()
            code = getattr(condition, "__code__", None)
            where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(condition)
            raise AssertionError(f"not within {PATIENCE_SECONDS} s: the condition at {where}")
        await asyncio.sleep(0.001)


__all__ = ["EMPTY", "Echo", "Empty", "Log", "LoopPorts", "Sum", "World", "until", "world"]
