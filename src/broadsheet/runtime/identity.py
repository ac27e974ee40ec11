"""Identity: who this node is, among whom. Offered to every role before the first one starts."""

from collections.abc import Callable, Mapping

import msgspec

from broadsheet.base.types import NodeId


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """One node of one cluster."""

    node: NodeId
    """This one."""
    cluster: str
    """The cluster's name: a token of another cluster is refused."""
    peers: Mapping[NodeId, str]
    """Every node of the cluster, this one included, with the address of its native door; fixed while it ru
    ns."""
    version: str
    """Of this release."""
    is_insecure: bool = False
    """Whether doors may be bound beyond loopback without TLS."""

    @property
    def is_alone(self) -> bool:
        """Whether the cluster is this node."""
        return len(self.peers) == 1


class StatusSource(msgspec.Struct, frozen=True):
    """What a role adds to `broadsheet status`. Offered by the role; read whenever somebody asks."""

    name: str
    """The role's own name."""
    read: Callable[[], Mapping[str, str | int | float | bool | None]]
    """A few fields, quick to make: terms, epochs, counts, bytes, with units in their names."""
