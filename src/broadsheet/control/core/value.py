"""Value: the content of the metastore's register, and the ballots under which it is proposed.

A version counts the writes of the register from 1. A ballot is (counter, node, boot nonce): no two proposers,
and no two boots of one proposer, can make the same ballot (control.3). These are plain values without state.
This module does not know what is in the document (`core.document`). Source: design/control.md control.1,
control.3, control.5, control.6.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from broadsheet.base.types import Incarnation, NodeId

ATTEMPTS_KEPT: Final = 64
"""How many of the last attempts a value remembers (control.5)."""
DOCUMENT_BYTES_MAX: Final = 8 << 20
"""The largest document; above it a write is refused (control.1)."""
DOCUMENT_BYTES_WARN: Final = DOCUMENT_BYTES_MAX // 2
"""From this size on the host warns."""
ACCEPTORS_MAX: Final = 9
"""The most acceptors in one set."""

COUNT_BITS: Final = 62
"""Counters, versions and nonces are below 2**62, so that their successors fit every number format."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << COUNT_BITS)]
"""A number that a peer may send; another one is refused when it is read."""
LEAP_MAX: Final = 1 << 32
"""By how much a ballot's counter may exceed the promise that an acceptor has given: counters rise by one for
each round. A proposer that leaps further is damaged or hostile, and would use up the range of counters."""

AttemptId = str
"""Unique for ever: `node.nonce.count` of the proposer that took the request."""


def oversize(document: bytes) -> str:
    """Why a document of this size is refused; empty if it is not (control.1)."""
    if len(document) <= DOCUMENT_BYTES_MAX:
        return ""
    return f"the metastore's document has {len(document)} bytes, above {DOCUMENT_BYTES_MAX} (control.1)"


class Ballot(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """The right to propose one value. Compared by counter, then node, then nonce."""

    counter: Count
    node: NodeId
    nonce: Count


NO_BALLOT: Final = Ballot(0, NodeId(""), 0)
"""Below every ballot that is used."""


class Acceptor(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One life of one node's acceptor. An acceptor that lost its state is another one (control.6)."""

    node: NodeId
    incarnation: Annotated[Incarnation, msgspec.Meta(ge=0, lt=1 << COUNT_BITS)]


def acceptor_text(acceptor: Acceptor) -> str:
    """An acceptor as an operator reads and types it: `node#incarnation`, in hexadecimal."""
    return f"{acceptor.node}#{acceptor.incarnation:x}"


class AcceptorSets(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The acceptors that decide. While a change is pending there are two sets, and both must agree."""

    old: tuple[Acceptor, ...] = ()
    """The set in force; empty only before the founding."""
    new: tuple[Acceptor, ...] = ()
    """The set after a pending change; empty if no change is pending."""

    @property
    def is_joint(self) -> bool:
        """Whether a change is pending."""
        return bool(self.new)

    def members(self) -> tuple[Acceptor, ...]:
        """The acceptors of both sets, once each, in order."""
        return tuple(dict.fromkeys((*self.old, *self.new)))

    def is_quorum(self, votes: Iterable[Acceptor] | Mapping[Acceptor, object]) -> bool:
        """Whether `votes` hold a majority of each set."""
        voted = dict.fromkeys(votes)
        return all(
            sum(member in voted for member in members) * 2 > len(members)
            for members in (self.old, self.new)
            if members
        )


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A write to the metastore that took effect, and the version that it made."""

    attempt: AttemptId
    version: Count


class Value(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The whole content of the metastore's register."""

    version: Count
    sets: AcceptorSets
    attempts: tuple[Attempt, ...]
    """The last writes, oldest first; one for each version."""
    addresses: tuple[tuple[NodeId, str], ...]
    """The addresses of acceptors' nodes, for proposers whose configuration does not name them."""
    document: bytes

    def write(
        self,
        attempt: AttemptId,
        *,
        document: bytes | None = None,
        sets: AcceptorSets | None = None,
        address: tuple[NodeId, str] | None = None,
    ) -> "Value":
        """The next value: this one with another document, or other acceptor sets, or one more address."""
        entry = Attempt(attempt, self.version + 1)
        return Value(
            version=entry.version,
            sets=self.sets if sets is None else sets,
            attempts=(*self.attempts, entry)[-ATTEMPTS_KEPT:],
            addresses=tuple(sorted({**dict(self.addresses), **dict((address,) if address else ())}.items())),
            document=self.document if document is None else document,
        )

    def remembering(self, count: int) -> "Value":
        """This value, with the last `count` attempts only."""
        if len(self.attempts) <= count:
            return self
        return msgspec.structs.replace(self, attempts=self.attempts[-count:])

    def version_of(self, attempt: AttemptId) -> int | None:
        """The version that `attempt` made, if it is among those remembered."""
        return next((entry.version for entry in self.attempts if entry.attempt == attempt), None)

    def remembers(self, version: int) -> bool:
        """Whether the attempt that made `version` is still named, or no write has made it yet."""
        return version > self.version or any(entry.version == version for entry in self.attempts)


class Accepted(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A value and the ballot under which an acceptor accepted it. The value may not be chosen."""

    ballot: Ballot
    value: Value


def founding(
    acceptors: tuple[Acceptor, ...],
    attempt: AttemptId,
    *,
    addresses: tuple[tuple[NodeId, str], ...],
    document: bytes,
) -> Value:
    """The first value of a cluster."""
    assert 0 < len(acceptors) <= ACCEPTORS_MAX, "a cluster has acceptors"
    return Value(
        version=1,
        sets=AcceptorSets(old=acceptors),
        attempts=(Attempt(attempt, 1),),
        addresses=addresses,
        document=document,
    )
