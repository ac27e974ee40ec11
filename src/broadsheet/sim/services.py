"""Seats of tier 2: the real roles of one boot of a node, or a real client, with every port simulated.

The seat's life ends by kill: nothing of it acts again, no `finally` included (its ports are gated). Disk
and clock of a node outlive its lives; a client has its own.
"""

from collections.abc import Callable

from broadsheet.base.types import NodeId
from broadsheet.ports import Random
from broadsheet.runtime.role import Ports
from broadsheet.runtime.scope import Scope
from broadsheet.sim.world import Life, World

PORT = 6640


class ServiceSeat:
    """One boot of one node, or one client."""

    def __init__(
        self, world: World, life: Life, ports: Ports, scope: Scope, random: Callable[[str], Random]
    ) -> None:
        self.world, self.life, self.ports, self.scope, self.random = world, life, ports, scope, random
        self.node, self.boot = NodeId(life.node), life.boot
        self.incarnation = 0
        """Rises with each wipe of this node's disk."""
        self.is_stopping = False
        """Set by the runner for clients: finish the operation at hand and return."""

    @property
    def address(self) -> str:
        """Where this node listens."""
        return self.address_of(self.node)

    def address_of(self, node: str) -> str:
        """Where `node` listens, whether it is up or not."""
        return f"{node}:{PORT}"
