"""Capability: what a token lets its bearer do.

The low bits are Gazette's, so that one token serves its door and ours; ours begin at 1 << 16, where Gazette
leaves room for applications. A method needs one capability, or none, which means that any authenticated
caller may use it. Source: access.5.
"""

from enum import IntFlag
from typing import Final


class Capability(IntFlag):
    """Bits of a token's `cap` claim."""

    NONE = 0
    """No capability: a valid token is enough, and none is needed if authorization is off."""
    LIST = 1 << 1
    """See names and specs."""
    APPLY = 1 << 2
    """Create, alter, trim and delete journals, and accept their losses."""
    READ = 1 << 3
    """Read content."""
    APPEND = 1 << 4
    """Write content."""
    REPLICATE = 1 << 5
    """Speak as a peer of this cluster."""
    ADMIN = 1 << 16
    """Operate the cluster: read and change its metastore."""


EVERYTHING: Final = (
    Capability.LIST
    | Capability.APPLY
    | Capability.READ
    | Capability.APPEND
    | Capability.REPLICATE
    | Capability.ADMIN
)
"""The capabilities of a caller if authorization is off."""
