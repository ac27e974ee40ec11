"""Queue: the operations that a proposer has not answered yet, oldest first.

An operation is *covered* by a round that began after it came: only such a round may answer it, or the
answer could be older than the question. Not a machine: a noun of `core.proposer`. It knows no ballots.
Source: linearizability of reads, control.7.
"""

from collections import deque

from broadsheet.base.time import Instant
from broadsheet.control.core.operation import OperationRequest


class Queued:
    """A request, when its client gives up on it, and how far it came."""

    __slots__ = ("deadline", "is_covered", "request", "was_proposed")

    def __init__(self, request: OperationRequest, deadline: Instant) -> None:
        self.request, self.deadline = request, deadline
        self.is_covered = False
        self.was_proposed = False


class Queue:
    """Operations in the order in which they came."""

    def __init__(self) -> None:
        self._operations: deque[Queued] = deque()

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def head(self) -> Queued:
        """The oldest operation."""
        return self._operations[0]

    def add(self, request: OperationRequest, deadline: Instant) -> None:
        """Let `request` wait."""
        self._operations.append(Queued(request, deadline))

    def pop(self) -> None:
        """The oldest one is answered."""
        self._operations.popleft()

    def cover(self) -> None:
        """A round begins now: it may answer everyone who waits."""
        for operation in self._operations:
            operation.is_covered = True

    def expire(self, now: Instant) -> list[Queued]:
        """Take out those whose time is up."""
        late = [operation for operation in self._operations if operation.deadline <= now]
        for operation in late:
            self._operations.remove(operation)
        return late

    def deadline(self) -> Instant | None:
        """When the next one gives up. All have the same timeout, so that is the oldest."""
        return self._operations[0].deadline if self._operations else None
