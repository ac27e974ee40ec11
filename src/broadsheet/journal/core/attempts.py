"""Attempts: whose the last conditional appends of a journal were.

A client that lost an answer asks by the attempt id of its append (16 random bytes, the same for every try of
one call). Two writers may append equal bytes under one check, so bytes cannot tell whose append succeeded.

Offsets are bytes. `KEPT` attempts are remembered, the newest ones; `known_from` is the offset from which on
none is missing: an append at or above it that is not remembered never took effect. The log's proposals and
checkpoints carry attempts, so a restart knows as much. *Settled* attempts are those that a client asked about
and that had not taken effect: a copy that is still on its way is refused when it comes. They end with the
process, and so do the connections that could bring such a copy.

It does not decide what becomes of an append. Source: journals.11, journals.21; J6, J7, C2.
"""

from collections.abc import Sequence
from typing import Final, Self

import msgspec

from broadsheet.base.types import ByteOffset

ATTEMPT_BYTES: Final = 16
KEPT: Final = 64
"""Attempts that a journal remembers: some 2 KiB of each checkpoint."""
SETTLED_KEPT: Final = 4_096
"""Settled attempts that a process remembers of a journal: 64 KiB."""


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """A committed append, and whose it was."""

    attempt: bytes
    begin: ByteOffset
    end: ByteOffset


class Attempts:
    """The attempts of one journal's committed appends."""

    def __init__(
        self, remembered: Sequence[Remembered] = (), *, known_from: ByteOffset = ByteOffset(0)
    ) -> None:
        """Start with `remembered`, oldest first."""
        self.known_from = known_from
        self._remembered: dict[bytes, Remembered] = {}
        self._settled: dict[bytes, None] = {}
        for each in remembered:
            self.remember(each)

    @classmethod
    def nothing_known(cls) -> Self:
        """Those of a journal that may have lost records: about no offset it can tell anything."""
        return cls(known_from=ByteOffset((1 << 63) - 1))

    def remember(self, append: Remembered) -> None:
        """`append` is committed; the oldest one is forgotten where there are too many."""
        self._remembered[append.attempt] = append
        if len(self._remembered) > KEPT:
            oldest = self._remembered.pop(next(iter(self._remembered)))
            # What began below may have been this one, or another that was forgotten before.
            self.known_from = max(self.known_from, ByteOffset(oldest.begin + 1))

    def find(self, attempt: bytes) -> Remembered | None:
        """The append of that attempt, where it is committed and remembered."""
        return self._remembered.get(attempt)

    def settle(self, attempt: bytes) -> None:
        """Its client has asked: what comes of it from now on is refused."""
        self._settled[attempt] = None
        if len(self._settled) > SETTLED_KEPT:
            del self._settled[next(iter(self._settled))]

    def is_settled(self, attempt: bytes) -> bool:
        """Whether its client has been told already."""
        return attempt in self._settled

    def settled(self) -> tuple[bytes, ...]:
        """Those whose clients were told, oldest first."""
        return tuple(self._settled)

    def lose(self, below: ByteOffset) -> None:
        """Of appends below that offset some may be missing, though others are remembered."""
        self.known_from = max(self.known_from, below)

    def copy(self) -> "Attempts":
        """Another one that remembers the same."""
        return Attempts(self.remembered(), known_from=self.known_from)

    def remembered(self) -> tuple[Remembered, ...]:
        """Oldest first."""
        return tuple(self._remembered.values())

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self._remembered) <= KEPT, "remembers a bounded number"
        assert len(self._settled) <= SETTLED_KEPT, "settles a bounded number"
        begins = [each.begin for each in self._remembered.values()]
        assert begins == sorted(begins), "remembers in the order of offsets"
