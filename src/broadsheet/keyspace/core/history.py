"""History: the last committed transactions, for watchers that come a little late.

Revisions are dense: entry i is the transaction of revision `first + i`. The history is bounded by
transactions and by bytes, and forgets the oldest first. A watcher that asks for a forgotten revision gets a
reload (`port.Update`). Not a machine: a part of `core.store`.
Source: design/control.md control.15.
"""

from collections import deque

from broadsheet.base.types import Revision
from broadsheet.keyspace.core.map import size
from broadsheet.keyspace.core.transaction import KeyValue, key_size

Changes = tuple[tuple[str, KeyValue | None], ...]
"""Each key that a transaction changed, in key order, with its new pair; None if the key was deleted."""


class History:
    """A window over the transactions up to the present."""

    def __init__(self, after: Revision, *, transactions_max: int, bytes_max: int) -> None:
        """Begin with no history, right after `after`."""
        assert transactions_max > 0, "a window has at least one place"
        self.first = Revision(after + 1)
        self._entries: deque[Changes] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._transactions_max, self._bytes_max = transactions_max, bytes_max

    @property
    def end(self) -> Revision:
        """The revision after the last one in the window."""
        return Revision(self.first + len(self._entries))

    def add(self, revision: Revision, changes: Changes) -> None:
        """Append the transaction of `revision`, and forget the oldest ones above the bounds."""
        assert revision == self.end, f"revision {revision} follows {self.end - 1}"
        held = sum(key_size(key) if pair is None else size(pair) for key, pair in changes)
        self._entries.append(changes)
        self._sizes.append(held)
        self._bytes += held
        while len(self._entries) > self._transactions_max or (
            # The newest transaction stays, however large: a watcher that is up to date needs no reload.
            self._bytes > self._bytes_max and len(self._entries) > 1
        ):
            self._entries.popleft()
            self._bytes -= self._sizes.popleft()
            self.first = Revision(self.first + 1)

    def at(self, revision: Revision) -> Changes:
        """The changes of a revision in [first, end)."""
        assert self.first <= revision < self.end, f"{revision} is outside [{self.first}, {self.end})"
        return self._entries[revision - self.first]
