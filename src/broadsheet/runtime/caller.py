"""Caller: the ports of a process that only calls nodes; a client has no disk and no stores."""

import asyncio
from collections.abc import Callable

from broadsheet.ports import Network, Random, Time, Timers
from broadsheet.runtime.entropy import Entropy
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.scope import Crash
from broadsheet.runtime.time import LoopTimers, SystemTime
from broadsheet.runtime.turn import Turn


class CallerPorts:
    """Clocks, sockets and entropy on the running loop: what `wire.client.dial` needs."""

    def __init__(self, *, crash: Crash) -> None:
        """Make the ports, on the loop that will use them."""
        self.time: Time = SystemTime()
        self.timers: Timers = LoopTimers(asyncio.get_running_loop())
        self.network: Network = TCPNetwork()
        self.random: Callable[[str], Random] = Entropy()
        self.crash = crash
        self.turn = Turn(self.timers)
