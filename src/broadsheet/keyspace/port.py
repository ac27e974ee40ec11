"""Port: the interface through which brokers and services read and change the metadata (control.15-17).

Readers see only durable state. Reads are answered from the mirror in this process and never wait.
The one implementation today is `local`; others, over our KV and over etcd, are planned. One conformance
suite (`tests/keyspace/conformance`) holds for all of them. Source: control.15-17.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from broadsheet.base.types import Revision
from broadsheet.keyspace.core.transaction import Compare, KeyValue, Operation, Outcome


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one transaction of the key space did to one key."""

    key: str
    now: KeyValue | None
    """The key after the transaction; None if the transaction deleted it."""


class Update(msgspec.Struct, frozen=True, gc=False):
    """One step of a watcher's mirror of the key space: the watcher must apply all of it at once."""

    revision: Revision
    """The revision of the mirror after this update is applied."""
    changes: tuple[Change, ...]
    """In key order, only keys of the watched prefix; empty if the update only advances the revision."""
    is_reload: bool = False
    """`changes` is the whole prefix at `revision`, and the watcher forgets every other key. A reload comes
    first if the watch began before the kept history, and again whenever the watcher fell behind it."""


class Keyspace(Protocol):
    """A local, ordered mirror of the metadata, with a revision."""

    @property
    def revision(self) -> Revision:
        """The revision of the state that `get` and `range` show; 0 before the first transaction."""
        ...

    def get(self, key: str) -> KeyValue | None:
        """The key as of `revision`, or None."""
        ...

    def range(self, prefix: str) -> list[KeyValue]:
        """Every key that starts with `prefix`, in key order, as of `revision`."""
        ...

    def page(self, prefix: str, *, after: str, count_max: int) -> list[KeyValue]:
        """The first `count_max` pairs of `range(prefix)` whose keys are above `after`.

        The cost grows with the number of pairs returned, not with the number of keys in the map.
        """
        ...

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, is_upkeep: bool = False
    ) -> Outcome:
        """Do all `operations` in one revision if all `compares` hold; otherwise do none of them.

        When the call returns, the outcome is durable and `revision` has reached it. A transaction that
        changes nothing (no operations, or only deletes of absent keys) takes no revision.

        Args:
            is_upkeep: the transaction concerns something that the map names already, or removes it. A full
                map accepts upkeep and refuses only what is new; otherwise nobody could make room.

        Raises:
            InvalidArgument: an empty or malformed key, or a key in two operations. Nothing changed.
            TooLarge: above a limit; the message names it. Nothing changed.
            Unsupported: an operation names a lease. Nothing changed.
            Throttled: too many transactions wait. Nothing changed.
            StoreUnhealthy: the log has no space. Nothing changed.
            Unknown: the node stopped before the outcome was known. Read the keys before you repeat the call.
        """
        ...

    def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[Update]:
        """Every transaction from `from_revision` on that touches `prefix`: whole, once each, in order.

        Starts with a reload if `from_revision` is 0 or older than the kept history; 0 therefore means "the
        present, then everything after". One update without changes stands for all revisions in a row that do
        not touch the prefix. A slow watcher delays nobody: it gets a reload. Ends when the key space closes.
        """
        ...
