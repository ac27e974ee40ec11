"""History: the calls of all clients of a run, their answers, and the times of both.

Checkers read nothing else of a client. Times are world time in nanoseconds, and never a node's clock. An
operation: INVOKED --ok|rejected|unknown--> ENDED, once.
"""

from collections.abc import Callable
from enum import Enum

import msgspec


class Outcome(Enum):
    """What the client knows of its operation (Q4)."""

    OPEN = "open"
    OK = "ok"
    """Acknowledged; `result` is what it was told."""
    REJECTED = "rejected"
    """Certainly without effect, now and ever."""
    UNKNOWN = "unknown"
    """It may take effect at any later time, or never, or have done so."""


class Operation(msgspec.Struct):
    """One operation of one client on one key."""

    number: int
    client: str
    key: str
    name: str
    argument: object
    invoked_at: int
    result: object = None
    outcome: Outcome = Outcome.OPEN
    returned_at: int | None = None
    version: int | None = None
    """The position in the key's total order, where the answer carried one."""


class History:
    """All operations, in order of invocation."""

    def __init__(self, now: Callable[[], int], note: Callable[..., None] = lambda *_: None) -> None:
        self.operations: list[Operation] = []
        self.open_count = 0
        self.acked = self.rejected = self.unknown = 0
        self._now, self._note = now, note

    def invoke(self, client: str, key: str, name: str, argument: object = None) -> Operation:
        """A client asks. End the operation with `ok`, `reject` or `lose`; one left open counts as unknown."""
        operation = Operation(len(self.operations), client, key, name, argument, self._now())
        self.operations.append(operation)
        self.open_count += 1
        return operation

    def ok(self, operation: Operation, result: object = None, *, version: int | None = None) -> None:
        """It was acknowledged with `result`."""
        operation.result, operation.version = result, version
        self._end(operation, Outcome.OK)
        self.acked += 1

    def reject(self, operation: Operation, reason: object = None) -> None:
        """It was refused for certain.

        A refusal that is itself a read (a failed compare) is `ok`, not this.
        """
        operation.result = reason
        self._end(operation, Outcome.REJECTED)
        self.rejected += 1

    def lose(self, operation: Operation) -> None:
        """Nobody knows: timeout, lost connection, or any error after a retry."""
        self._end(operation, Outcome.UNKNOWN)
        self.unknown += 1

    def _end(self, operation: Operation, outcome: Outcome) -> None:
        assert operation.outcome is Outcome.OPEN, f"{operation} has ended already"
        operation.outcome, operation.returned_at = outcome, self._now()
        self.open_count -= 1
        self._note(operation.client, operation.number, operation.name, outcome.value, operation.result)
