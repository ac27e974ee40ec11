"""Messages: what proposers and acceptors send each other. Messages may be lost, repeated, reordered and late.

They are plain frozen structs, the same on the native wire and in the simulators. A request names the acceptor
(with its incarnation) that it is for, and `basis`: the ballot of the accepted value from which the proposer
took its acceptor sets. Source: CASPaxos; design/control.md control.6.
"""

from enum import IntEnum

from broadsheet.base.machine import Event
from broadsheet.base.types import NodeId
from broadsheet.control.core.value import Accepted, Acceptor, AcceptorSets, Ballot, Count, Value


class Prepare(Event, frozen=True, array_like=True, tag=1):
    """Ask an acceptor to promise `ballot` and to tell its value. Empty `sets` ask to join a founding."""

    sender: NodeId
    ballot: Ballot
    acceptor: Acceptor
    basis: Ballot
    sets: AcceptorSets
    founders: tuple[Acceptor, ...] = ()
    """Of a founding: all acceptors that are asked. Each must promise it, so each has accepted nothing."""


class Accept(Event, frozen=True, array_like=True, tag=2):
    """Ask an acceptor to accept `value` of `ballot`. Also repeats a value to a new member that has none."""

    sender: NodeId
    ballot: Ballot
    acceptor: Acceptor
    value: Value
    basis: Ballot
    sets: AcceptorSets


class Read(Event, frozen=True, array_like=True, tag=3):
    """Ask an acceptor for its accepted value, without a promise."""

    sender: NodeId
    round: tuple[Count, Count]
    """The proposer's round: boot nonce and count, so that no answer to an earlier boot matches."""
    known: Ballot
    """The sender has the value of this ballot, so it need not be sent again."""


class Promised(Event, frozen=True, array_like=True, tag=4):
    """The acceptor has promised to grant nothing below `ballot`."""

    acceptor: Acceptor
    ballot: Ballot
    accepted: Accepted | None


class AcceptedBallot(Event, frozen=True, array_like=True, tag=5):
    """The acceptor durably holds the value of `ballot`."""

    acceptor: Acceptor
    ballot: Ballot


class Held(Event, frozen=True, array_like=True, tag=6):
    """The value that the acceptor durably holds; the answer to `Read`."""

    acceptor: Acceptor
    round: tuple[Count, Count]
    promised: Ballot
    ballot: Ballot
    """The ballot of the accepted value; NO_BALLOT if the acceptor is blank."""
    value: Value | None
    """None if the acceptor is blank, or if the reader knows the value of `ballot`."""


class Why(IntEnum):
    """Why an acceptor refuses."""

    BALLOT = 1
    """The acceptor has promised a greater ballot, or has accepted another value under this one."""
    SETS = 2
    """The acceptor has accepted a value with other acceptor sets, under a ballot above the proposer's basis.
    The answer holds that value."""
    BLANK = 3
    """The acceptor has accepted nothing yet, so it promises nothing (control.6)."""
    STRANGER = 4
    """The request was for another life of this acceptor, or the acceptor is no member of the value's sets.
    If the acceptor has accepted a value above the proposer's basis, the answer holds that value."""
    FULL = 5
    """The acceptor's log has no room."""
    LEAP = 6
    """The ballot's counter is more than `LEAP_MAX` above the promised one."""


class Rejected(Event, frozen=True, array_like=True, tag=7):
    """The acceptor refused the request with `ballot`, and changed nothing."""

    acceptor: Acceptor
    ballot: Ballot
    why: Why
    promised: Ballot
    accepted: Accepted | None
    """With SETS, the accepted value; with STRANGER, if it is above the basis; otherwise None."""


Request = Prepare | Accept | Read
Response = Promised | AcceptedBallot | Held | Rejected
