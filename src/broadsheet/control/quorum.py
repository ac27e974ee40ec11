"""Quorum: whether a majority of the acceptors answers this node, found out by reads.

A read writes nothing and needs no disk. A cluster that nobody uses is asked as well: who reads `/readyz`
wants to know it before the first operation fails. Source: node.12, ADR 0203.
"""

from typing import Final

from broadsheet.base.time import SECOND, Duration, Instant, in_seconds, since
from broadsheet.control.majority import MajorityMetastore
from broadsheet.errors import Refused, Unknown
from broadsheet.ports import Time
from broadsheet.runtime.readiness import Trouble

SILENCE_MAX: Final = Duration(3 * SECOND)
"""How long a read may take. If it takes longer, there is no majority, until one has answered."""


class Quorum:
    """What the last reads of one node have told."""

    def __init__(self, metastore: MajorityMetastore, time: Time) -> None:
        """Begin without an answer: nobody has been asked."""
        self._metastore, self._time = metastore, time
        self._asked: Instant | None = None
        """When the read began that is under way."""
        self._is_heard = False
        """Whether the last read that has ended was answered."""

    async def probe(self) -> None:
        """Read once, which takes `metastore.proposer.operation_timeout` at most."""
        self._asked = self._time.now()
        try:
            await self._metastore.read_value()
            self._is_heard = True
        except (Refused, Unknown):
            self._is_heard = False
        finally:
            self._asked = None

    def troubles(self) -> list[Trouble]:
        """No majority, no room, or no vote."""
        found = []
        waited = Duration(0) if self._asked is None else since(self._asked, self._time.now())
        if not self._is_heard or waited > SILENCE_MAX:
            text = (
                f"no majority of the metastore's acceptors answers within {in_seconds(SILENCE_MAX):.0f} s:"
                " `broadsheet metastore status` asks each node; start those that are down"
            )
            found.append(Trouble("no_quorum", text))
        elif not self._metastore.is_member:
            text = (
                "this node's acceptor has no vote: `broadsheet metastore status` names the command that helps"
            )
            found.append(Trouble("no_vote", text, is_warning=True))
        if shortage := self._metastore.shortage:
            found.append(Trouble("log_full", f"this node's acceptor cannot accept: {shortage}"))
        return found
