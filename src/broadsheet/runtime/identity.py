"""Identity: this node and the nodes of its cluster. Offered to every role before the first one starts."""

from collections.abc import Callable, Mapping

import msgspec

from broadsheet.base.types import NodeId


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """One node of one cluster, as every role knows it."""

    node: NodeId
    """This node."""
    cluster: str
    """The cluster's name: a token of another cluster is refused."""
    peers: Mapping[NodeId, str]
    """Every node of the cluster, including this one, with the address of its native door. It does not change
    while the node runs."""
    version: str
    """The version of this release."""
    is_insecure: bool = False
    """Whether doors may be bound beyond loopback without TLS."""

    @property
    def is_alone(self) -> bool:
        """Whether this node is the whole cluster."""
        return len(self.peers) == 1


class StatusSource(msgspec.Struct, frozen=True):
    """The fields that a role adds to `broadsheet status`. Offered by the role; read at each request."""

    name: str
    """The role's own name."""
    read: Callable[[], Mapping[str, str | int | float | bool | None]]
    """A few fields, quick to make: terms, epochs, counts, bytes, with units in their names."""
    gauges: Mapping[str, str] = {}
    """What the fields mean that are metrics as well. `broadsheet_ROLE_FIELD` is the metric's name."""
    counters: Mapping[str, str] = {}
    """The same for fields that only rise: `broadsheet_ROLE_FIELD_total`."""
