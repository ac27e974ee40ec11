"""Principal: who calls, as a verified token says: capabilities, a grant of names, an expiry.

Prefixes are compared as plain strings: `logs/` covers `logs/web`, and not `logs-old`. Times are wall clock,
which is all that a token can speak of: a wrong clock costs availability, never isolation between names.
"""

import msgspec

from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.base.time import WallTime


class Principal(msgspec.Struct, frozen=True, gc=False):
    """The identity of a caller, with what its verified token grants."""

    capabilities: Capability
    """The capabilities of the caller."""
    names: tuple[str, ...]
    """The exact names that the capabilities are for."""
    prefixes: tuple[str, ...]
    """The prefixes of names that the capabilities are for; the empty prefix covers all."""
    expires: WallTime | None
    """When its connections end their streams and refuse its calls; None for never."""
    excluded_names: tuple[str, ...] = ()
    """Exact names that are excluded again."""
    excluded_prefixes: tuple[str, ...] = ()
    """Prefixes that are excluded again."""
    account: str = ""
    """The account whose share of the node is used: one for each subject and grant; empty for none."""

    def covers(self, name: str) -> bool:
        """Whether `name` is within its grant."""
        if name in self.excluded_names or name.startswith(self.excluded_prefixes):
            return False
        return name in self.names or name.startswith(self.prefixes)

    @property
    def is_control(self) -> bool:
        """Whether it is a peer or an operator: control goes first if the node is short of room."""
        return self.account != "" and bool(self.capabilities & (Capability.REPLICATE | Capability.ADMIN))

    @property
    def covers_everything(self) -> bool:
        """Whether its grant covers every name."""
        return "" in self.prefixes and not self.excluded_names and not self.excluded_prefixes


ANYONE = Principal(capabilities=EVERYTHING, names=(), prefixes=("",), expires=None)
"""The caller if authorization is off, which is possible only on loopback or with `--insecure`."""
