"""The Keyspace port: what brokers and services ask of the metadata, whoever keeps it (control.15-17).

Everything that is shown is durable. Reads are of the mirror in this process and never wait.
Implementations: `local` (now); over our KV and over etcd come with their parts. One conformance suite
(`tests/keyspace/conformance`) runs against all. Source: control.15-17.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import Revision
from broadsheet.keyspace.core.transaction import Compare, KeyValue, Operation, Outcome

WAIT_REVISION_TIMEOUT: Final = Duration(10 * SECOND)
"""How long `wait_revision` waits where the caller does not say."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one transaction did to one key."""

    key: str
    now: KeyValue | None
    """The key after the transaction; None where it was deleted."""


class Update(msgspec.Struct, frozen=True, gc=False):
    """A step of a watcher's mirror: apply the whole of it at once."""

    revision: Revision
    """The revision of the mirror once this is applied."""
    changes: tuple[Change, ...]
    """In key order, only keys of the watched prefix; empty where it only advances the revision."""
    is_reload: bool = False
    """`changes` is the whole prefix at `revision`: forget every other key. Sent first where the watch began
    before the history that is kept, and whenever the watcher fell behind it."""


class Keyspace(Protocol):
    """A local, ordered mirror of the metadata, with a revision."""

    @property
    def revision(self) -> Revision:
        """The revision of what `get` and `range` show; 0 before the first transaction."""
        ...

    def get(self, key: str) -> KeyValue | None:
        """The key as of `revision`, or None."""
        ...

    def range(self, prefix: str) -> list[KeyValue]:
        """Every key that starts with `prefix`, in key order, as of `revision`."""
        ...

    def page(self, prefix: str, *, after: str, count_max: int) -> list[KeyValue]:
        """The first `count_max` pairs of `range(prefix)` whose keys are above `after`.

        It costs what it returns, however many keys there are.
        """
        ...

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, is_upkeep: bool = False
    ) -> Outcome:
        """Do all `operations` in one revision where all `compares` hold, else none of them.

        When it returns, the outcome is durable and `revision` has reached it. A transaction that changes
        nothing (no operations, or only deletes of absent keys) takes no revision.

        Args:
            is_upkeep: it is of something that the map names already, or lets go of it. A full map refuses
                what is new, and not that: else nobody could make room.

        Raises:
            InvalidArgument: an empty or malformed key, or a key in two operations. Nothing changed.
            TooLarge: above a limit; the message names it. Nothing changed.
            Unsupported: it names a lease. Nothing changed.
            Throttled: too many transactions wait. Nothing changed.
            StoreUnhealthy: the log has no space. Nothing changed.
            Unknown: the node stopped before the outcome was known. Look before repeating.
        """
        ...

    def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[Update]:
        """Every transaction from `from_revision` on that touches `prefix`: whole, once each, in order.

        Starts with a reload where `from_revision` is 0 or older than the kept history: so 0 means "the
        present, then everything after". Revisions that do not touch the prefix come as updates without
        changes, many in one. A slow watcher holds nobody up: it is reloaded. Ends when the key space closes.
        """
        ...

    async def wait_revision(self, revision: Revision, within: Duration = WAIT_REVISION_TIMEOUT) -> None:
        """Return once the mirror shows `revision` or a later one. Always ends.

        Raises:
            DeadlineExceeded: it did not come that time.
            ShuttingDown: the key space closed first.
        """
        ...
