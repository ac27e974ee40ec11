"""Port: the metastore, which is one document, changed by compare-and-set on its version (control.1).

Providers: `file` for one node, `majority` for several. One conformance suite
(`tests/control/conformance.py`) runs against all. Source: design/control.md control.1, control.2, control.5.
"""

from typing import Protocol

import msgspec


class Versioned(msgspec.Struct, frozen=True):
    """The metastore's document at one version."""

    document: bytes
    version: int


class Metastore(Protocol):
    """The cluster's document. Linearizable within the provider's fault budget (control.7)."""

    async def read(self) -> Versioned:
        """The latest document.

        Raises:
            InsufficientReplicas: no majority answered in time. ShuttingDown: the node stops.
        """
        ...

    async def compare_and_set(self, version: int, document: bytes) -> Versioned:
        """Make `document` the metastore's next version, if `version` is the latest.

        Raises:
            UnexpectedVersion: `version` is not the latest: read again and decide. Nothing changed.
            TooLarge: the document is above 8 MiB. Nothing changed.
            InsufficientReplicas, Throttled, StoreUnhealthy, ShuttingDown: nothing changed.
            Unknown: the write may have taken effect, or may still do so: read again and compare.
        """
        ...
