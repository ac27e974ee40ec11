"""Claims: what a verified token says, and the principal that it makes of its bearer.

Prefixes are compared as plain strings: `logs/` covers `logs/web`, and not `logs-old`. Times are wall clock,
which is all that a token can speak of: a wrong clock costs availability, never isolation between names.
"""

import msgspec

from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.base.time import WallTime


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Whoever speaks on a connection."""

    capabilities: Capability
    """What it may do."""
    names: tuple[str, ...]
    """Names that it may do it to, exactly."""
    prefixes: tuple[str, ...]
    """Prefixes of names that it may do it to; the empty prefix covers all."""
    expires: WallTime | None
    """When it must have shown a newer token; None for never."""
    excluded_names: tuple[str, ...] = ()
    """Names taken out again."""
    excluded_prefixes: tuple[str, ...] = ()
    """Prefixes taken out again."""
    account: str = ""
    """Whose share of the node it uses: equal for tokens of one subject and grant; empty for everybody's."""

    def covers(self, name: str) -> bool:
        """Whether `name` is within its grant."""
        if name in self.excluded_names or name.startswith(self.excluded_prefixes):
            return False
        return name in self.names or name.startswith(self.prefixes)

    @property
    def is_control(self) -> bool:
        """Whether it speaks as a peer or an operator: control goes first where the node is short of room."""
        return self.account != "" and bool(self.capabilities & (Capability.REPLICATE | Capability.ADMIN))

    @property
    def covers_everything(self) -> bool:
        """Whether its grant leaves out no name at all."""
        return "" in self.prefixes and not self.excluded_names and not self.excluded_prefixes


ANYONE = Principal(capabilities=EVERYTHING, names=(), prefixes=("",), expires=None)
"""The caller where authorization is off: only ever on loopback, or by `--insecure`."""
