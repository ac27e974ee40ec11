"""Messages between proposers and acceptors. They may be lost, repeated, reordered and late.

Plain frozen structs, the same on the native wire and in the simulators. A request names the acceptor life
that it is for, and `basis`: the ballot of the accepted value from which the proposer took its acceptor
sets. Source: CASPaxos; design/control.md control.6.
"""

from enum import IntEnum

from broadsheet.base.machine import Event
from broadsheet.base.types import NodeId
from broadsheet.control.core.value import Accepted, Acceptor, AcceptorSets, Ballot, Count, Value


class Prepare(Event, frozen=True, array_like=True, tag=1):
    """Promise me `ballot`, and tell me what you accepted. Empty `sets`: join a founding."""

    sender: NodeId
    ballot: Ballot
    acceptor: Acceptor
    basis: Ballot
    sets: AcceptorSets


class Accept(Event, frozen=True, array_like=True, tag=2):
    """Accept `value` under `ballot`. Also repeats an accepted value to a new member that has none."""

    sender: NodeId
    ballot: Ballot
    acceptor: Acceptor
    value: Value
    basis: Ballot
    sets: AcceptorSets


class Read(Event, frozen=True, array_like=True, tag=3):
    """Tell me what you hold, without promising anything."""

    sender: NodeId
    round: tuple[Count, Count]
    """Names the proposer's round, by boot nonce and count, so that no answer to an earlier boot fits."""
    known: Ballot
    """The sender has the value of this ballot: it need not be sent again."""


class Promised(Event, frozen=True, array_like=True, tag=4):
    """The acceptor takes nothing below `ballot` any more."""

    acceptor: Acceptor
    ballot: Ballot
    accepted: Accepted | None


class AcceptedBallot(Event, frozen=True, array_like=True, tag=5):
    """The acceptor durably holds the value of `ballot`."""

    acceptor: Acceptor
    ballot: Ballot


class Held(Event, frozen=True, array_like=True, tag=6):
    """What the acceptor durably holds; the answer to `Read`."""

    acceptor: Acceptor
    round: tuple[Count, Count]
    promised: Ballot
    ballot: Ballot
    """Of its accepted value; NO_BALLOT where it is blank."""
    value: Value | None
    """None where it is blank, or where the reader knows the value of `ballot`."""


class Why(IntEnum):
    """Why an acceptor refuses."""

    BALLOT = 1
    """It promised a greater ballot."""
    SETS = 2
    """It accepted, under a ballot above the proposer's basis, a value with other acceptor sets: here it
    is."""
    BLANK = 3
    """It has accepted nothing yet, so it answers nothing (control.6)."""
    STRANGER = 4
    """It is another life than the one that was asked, or no member of the value."""
    FULL = 5
    """Its log has no room."""
    LEAP = 6
    """The ballot's counter is too far above what it promised (`LEAP_MAX`)."""


class Rejected(Event, frozen=True, array_like=True, tag=7):
    """The request of `ballot` was refused, and changed nothing."""

    acceptor: Acceptor
    ballot: Ballot
    why: Why
    promised: Ballot
    accepted: Accepted | None
    """With SETS, what it accepted."""


Request = Prepare | Accept | Read
Response = Promised | AcceptedBallot | Held | Rejected
