"""Attempts: the attempt ids of the last conditional appends of a journal.

A client that lost an answer asks by the attempt id of its append (16 random bytes, the same for every try of
one call). Two writers may append equal bytes under one check, so the bytes alone do not show whose append
succeeded.

Offsets are bytes. The newest `KEPT` attempts are remembered. No attempt at or above the offset `known_from`
is forgotten: if one is not remembered, its append never took effect. The log's proposals and checkpoints
carry attempts, so that a restart remembers the same ones. An attempt is *settled* when its client asked about
it before it took effect: a copy of the append that arrives later is refused. Settled attempts are lost with
the process. That is safe, because the connections that could still bring a copy end with it. While too many
were settled lately, no other one is, and its client is told nothing for certain.

This module does not accept or refuse appends. Source: journals.11, journals.21; J6, J7, C2.
"""

from collections.abc import Sequence
from typing import Final, Self

import msgspec

from broadsheet.base.time import SECOND, Duration, Instant, since
from broadsheet.base.types import ByteOffset
from broadsheet.errors import InvalidArgument

ATTEMPT_BYTES: Final = 16
KEPT: Final = 64
"""Attempts that a journal remembers: about 2 KiB of each checkpoint."""
SETTLED_KEPT: Final = 4_096
"""Settled attempts that a process remembers of a journal: 64 KiB."""
SETTLED_FOR: Final = Duration(600 * SECOND)
"""How long each is remembered at least. A copy can only be in a connection that was open when the client
asked, and one from which nothing is heard ends within a minute."""
NOTHING_KNOWN: Final = ByteOffset((1 << 63) - 1)
"""The `known_from` that leaves every outcome open."""


def validate_attempt(attempt: bytes) -> None:
    """Check the length of an attempt id.

    Raises:
        InvalidArgument: it is another.
    """
    if len(attempt) != ATTEMPT_BYTES:
        raise InvalidArgument(f"an attempt id of {len(attempt)} bytes: it has {ATTEMPT_BYTES}")


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """A committed append to a journal with its attempt id."""

    attempt: bytes
    begin: ByteOffset
    end: ByteOffset


class Attempts:
    """The attempts of one journal's committed appends."""

    def __init__(
        self, remembered: Sequence[Remembered] = (), *, known_from: ByteOffset = ByteOffset(0)
    ) -> None:
        """Start with the attempts in `remembered`, oldest first."""
        self.known_from = known_from
        self._remembered: dict[bytes, Remembered] = {}
        self._settled: dict[bytes, Instant] = {}
        for each in remembered:
            self.remember(each)

    @classmethod
    def nothing_known(cls) -> Self:
        """The attempts of a journal that may have lost records: every answer is "not known"."""
        return cls(known_from=NOTHING_KNOWN)

    def remember(self, append: Remembered) -> None:
        """Note that `append` is committed; forget the oldest one above `KEPT`."""
        self._remembered[append.attempt] = append
        if len(self._remembered) > KEPT:
            oldest = self._remembered.pop(next(iter(self._remembered)))
            # An unknown attempt that began at or below `oldest.begin` may be a forgotten one.
            self.known_from = max(self.known_from, ByteOffset(oldest.begin + 1))

    def find(self, attempt: bytes) -> Remembered | None:
        """The append of that attempt, if it is committed and remembered."""
        return self._remembered.get(attempt)

    def settle(self, attempt: bytes, now: Instant) -> None:
        """Refuse copies of the attempt from now on; not if `SETTLED_KEPT` others were settled lately."""
        self._settled.pop(attempt, None)
        if len(self._settled) >= SETTLED_KEPT:
            oldest = next(iter(self._settled))
            if since(self._settled[oldest], now) < SETTLED_FOR:
                return
            del self._settled[oldest]
        self._settled[attempt] = now

    def is_settled(self, attempt: bytes) -> bool:
        """Whether a copy of the attempt is refused. Only then may its client be told "not appended"."""
        return attempt in self._settled

    def settled(self) -> dict[bytes, Instant]:
        """When each of the settled attempts was settled, oldest first."""
        return dict(self._settled)

    def lose(self, below: ByteOffset) -> None:
        """Note that attempts of appends below that offset may be missing."""
        self.known_from = max(self.known_from, below)

    def copy(self) -> "Attempts":
        """A copy of the remembered attempts, without the settled ones."""
        return Attempts(self.remembered(), known_from=self.known_from)

    def remembered(self) -> tuple[Remembered, ...]:
        """The remembered appends, oldest first."""
        return tuple(self._remembered.values())

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self._remembered) <= KEPT, "remembers a bounded number"
        assert len(self._settled) <= SETTLED_KEPT, "settles a bounded number"
        begins = [each.begin for each in self._remembered.values()]
        assert begins == sorted(begins), "remembers in the order of offsets"
