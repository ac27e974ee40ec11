"""Unavailable: the journal methods of a node that serves no journals; each refuses with the reason.

A cluster of several nodes serves only the metastore and its status, until journals are replicated. Without
these methods a client would read "unknown method" instead of the reason.
"""

from broadsheet.errors import Unsupported
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.service import ROWS
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.role import Ports, Services
from broadsheet.runtime.scope import Scope
from broadsheet.wire.method import Method, Reply


class UnavailableJournals:
    """The role `journals` of a node that has peers."""

    name = "journals"

    async def start(self, scope: Scope, ports: Ports, config: JournalsConfig, services: Services) -> None:
        """Offer the journals' methods, each of which refuses."""
        count = len(services.one(Identity).peers)

        async def refuse(*_: object) -> Reply:
            raise Unsupported(
                f"journals are not replicated yet, and this node is one of {count}: "
                "start a single node in another data directory with `broadsheet up`"
            )

        for row in ROWS:
            services.offer(Method, row.method(refuse))
