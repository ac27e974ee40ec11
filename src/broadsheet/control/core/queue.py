"""Queue: the operations that a proposer has not answered yet, oldest first.

An operation is *covered* by a round that began after the operation came. Only such a round may answer it:
otherwise the answer could be older than the request. This is a part of `core.proposer`, not a machine, and it
knows no ballots.
Source: linearizability of reads, control.7.
"""

from collections import deque
from typing import Final

from broadsheet.base.time import Instant
from broadsheet.control.core.operation import ChangeRequest, OperationRequest
from broadsheet.control.core.value import DOCUMENT_BYTES_MAX

BYTES_MAX: Final = 16 * DOCUMENT_BYTES_MAX
"""Bytes of the documents that wait. They wait until their time is up also where their callers have left."""


class Queued:
    """A proposer's request with its deadline, and whether it is covered and was proposed."""

    __slots__ = ("deadline", "is_covered", "request", "was_proposed")

    def __init__(self, request: OperationRequest, deadline: Instant) -> None:
        self.request, self.deadline = request, deadline
        self.is_covered = False
        self.was_proposed = False


class Queue:
    """The operations that a proposer has not answered, in order of arrival."""

    def __init__(self) -> None:
        self._operations: deque[Queued] = deque()

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def head(self) -> Queued:
        """The oldest operation."""
        return self._operations[0]

    def has_room(self, request: ChangeRequest) -> bool:
        """Whether the document of `request` may wait besides the others."""
        waiting = (each.request for each in self._operations)
        sizes = (len(each.document) for each in waiting if isinstance(each, ChangeRequest))
        return len(request.document) + sum(sizes) <= BYTES_MAX

    def add(self, request: OperationRequest, deadline: Instant) -> None:
        """Add `request` at the end."""
        self._operations.append(Queued(request, deadline))

    def pop(self) -> None:
        """Remove the oldest operation, which was answered."""
        self._operations.popleft()

    def cover(self) -> None:
        """Mark all operations as covered: a round begins now, and may answer them."""
        for operation in self._operations:
            operation.is_covered = True

    def expire(self, now: Instant) -> list[Queued]:
        """Remove the operations whose time is up."""
        late = [operation for operation in self._operations if operation.deadline <= now]
        for operation in late:
            self._operations.remove(operation)
        return late

    def deadline(self) -> Instant | None:
        """The deadline of the oldest operation, which is the first, because all have the same timeout."""
        return self._operations[0].deadline if self._operations else None
