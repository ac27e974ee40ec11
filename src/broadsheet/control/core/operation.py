"""Operation: a client's request to the metastore, and its next step, given a value.

`next_step` is a pure function of the operation, the value, and whether the value is known to be chosen. It
says: propose this value, have the present value chosen first, or answer. An answer may depend on chosen
values only: otherwise a later reader might not see them. This module sends nothing and counts no votes
(`core.proposer`). Source: design/control.md control.1 (compare-and-set), control.5 (attempts), control.6 (a
change is two writes).
"""

from typing import assert_never

import msgspec

from broadsheet.base.machine import Effect, Event
from broadsheet.base.types import NodeId, RequestId
from broadsheet.control.core.value import (
    ACCEPTORS_MAX,
    Acceptor,
    AcceptorSets,
    AttemptId,
    Value,
    acceptor_text,
)
from broadsheet.errors import Status


class ReadRequest(Event, frozen=True):
    """A client wants the metastore's latest value."""

    request: RequestId


class ChangeRequest(Event, frozen=True):
    """A client wants to write the metastore's `document` if the version is `expected`."""

    request: RequestId
    expected: int
    document: bytes
    attempt: AttemptId


class ReplaceRequest(Event, frozen=True):
    """An operator wants to replace acceptor `removed` by `added`. Either may be None: only add or remove."""

    request: RequestId
    removed: Acceptor | None
    added: Acceptor | None
    address: str
    """The address of `added`'s node."""
    attempt: AttemptId


OperationRequest = ReadRequest | ChangeRequest | ReplaceRequest


class Answer(Effect, frozen=True):
    """Answer a request to the metastore. With OK it carries the new version or, for a read, the value."""

    request: RequestId
    status: Status
    version: int = 0
    value: Value | None = None
    message: str = ""


class Propose(msgspec.Struct, frozen=True, gc=False):
    """The next step of an operation is to propose `value` to the acceptors."""

    value: Value


Step = Propose | Answer | None
"""None: have the present value chosen first."""


def next_step(operation: OperationRequest, value: Value, *, is_chosen: bool, was_proposed: bool) -> Step:
    """The next step of `operation`, if `value` is the latest one that a quorum knows.

    Args:
        is_chosen: whether `value` is known to be chosen.
        was_proposed: whether a value of this operation was ever sent, so that it may still take effect.
    """
    match operation:
        case ReadRequest():
            return Answer(operation.request, Status.OK, value.version, value) if is_chosen else None
        case ChangeRequest():
            return _change(operation, value, is_chosen=is_chosen, was_proposed=was_proposed)
        case ReplaceRequest():
            step = _replace(operation, value, is_chosen=is_chosen)
            if was_proposed and isinstance(step, Answer) and step.status is not Status.OK:
                # It may have been done, and undone by another replacement: no refusal is certain any more.
                text = f"the acceptors were changed meanwhile, perhaps by this command too: {step.message}"
                return Answer(operation.request, Status.UNKNOWN, value.version, message=text)
            return step
        case _:
            assert_never(operation)


def _change(operation: ChangeRequest, value: Value, *, is_chosen: bool, was_proposed: bool) -> Step:
    made = value.version_of(operation.attempt)
    if made is None and value.version == operation.expected:
        return Propose(value.write(operation.attempt, document=operation.document))
    if not is_chosen:
        return None
    if made is not None:
        return Answer(operation.request, Status.OK, made)
    if was_proposed and not value.remembers(operation.expected + 1):
        text = (
            f"attempt {operation.attempt}: version {operation.expected + 1} is no longer remembered: "
            "read the document and compare"
        )
        return Answer(operation.request, Status.UNKNOWN, value.version, message=text)
    text = (
        f"metastore: expected version {operation.expected}, it is {value.version}: read it again and decide"
    )
    return Answer(operation.request, Status.UNEXPECTED_VERSION, value.version, message=text)


def _replace(operation: ReplaceRequest, value: Value, *, is_chosen: bool) -> Step:
    """Replace an acceptor by two writes on chosen values: both sets, then only the new one (control.6)."""
    if not is_chosen:
        return None
    sets, attempt = value.sets, operation.attempt
    if sets.is_joint:  # The second write: of this change, or of an earlier one that was left half done.
        return Propose(value.write(f"{attempt}/{value.version}", sets=AcceptorSets(old=sets.new)))
    removed, added = operation.removed, operation.added
    is_gone = removed is None or removed not in sets.old
    if is_gone and (added is None or added in sets.old):
        if removed is None or added is not None or any(f"{attempt}/" in a.attempt for a in value.attempts):
            return Answer(operation.request, Status.OK, value.version)
        text = f"{acceptor_text(removed)} is no acceptor: see `metastore status`"
        return Answer(operation.request, Status.NOT_FOUND, value.version, message=text)
    if is_gone and removed is not None:
        text = f"{acceptor_text(removed)} is no acceptor: see `metastore status`"
        return Answer(operation.request, Status.NOT_FOUND, value.version, message=text)
    if added is not None and added in sets.old:  # The set would become smaller by one.
        text = f"{added.node} is an acceptor already, so it cannot take another's place: name one that is not"
        return Answer(operation.request, Status.ALREADY_EXISTS, value.version, message=text)
    target = tuple(member for member in sets.old if member != removed)
    if added is not None:
        target = (*target, added)
    if not 0 < len(target) <= ACCEPTORS_MAX or len({member.node for member in target}) < len(target):
        text = f"the set would be {[m.node for m in target]}: 1 to {ACCEPTORS_MAX} acceptors, one of a node"
        return Answer(operation.request, Status.INVALID_ARGUMENT, value.version, message=text)
    address = None if added is None or not operation.address else (NodeId(added.node), operation.address)
    joint = AcceptorSets(old=sets.old, new=target)
    return Propose(value.write(f"{attempt}/{value.version}", sets=joint, address=address))
