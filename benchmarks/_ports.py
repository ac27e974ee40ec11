"""What benchmarks share: a native server on real ports without authorization, and what a process has used."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.capability import Capability
from broadsheet.ports import Network, Random, Time, Timers
from broadsheet.runtime.entropy import Entropy
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.runtime.time import LoopTimers, SystemTime
from broadsheet.runtime.turn import Turn
from broadsheet.wire.method import Empty, Method, Shape
from broadsheet.wire.server import Server


class Ports:
    """What the wire needs."""

    def __init__(self) -> None:
        self.time: Time = SystemTime()
        self.network: Network = TCPNetwork()
        self.timers: Timers = LoopTimers(asyncio.get_running_loop())
        self.random: Callable[[str], Random] = Entropy()
        self.crash: Crash = _die
        self.turn = Turn(self.timers, crash=self.crash)


def _die(error: BaseException) -> None:
    sys.exit(repr(error))


async def ports_and_server(rows: Sequence[tuple[str, int, Shape, Callable[..., Any]]]) -> str:
    """Serve `rows`; returns the address."""
    ports = Ports()
    methods = [
        Method(
            name,
            number=number,
            shape=shape,
            capability=Capability.NONE,
            request=Empty,
            name_of=None,
            handler=handler,
        )
        for name, number, shape, handler in rows
    ]
    authorizer = Authorizer(None, time=ports.time)
    server = Server(ports, Scope("bench", crash=ports.crash), methods, authorizer=authorizer)
    return await server.listen("127.0.0.1:0")


def cpu_us(pid: int) -> float:
    """Microseconds on a CPU that the main thread of `pid` has had, kernel's included (Linux)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1000
