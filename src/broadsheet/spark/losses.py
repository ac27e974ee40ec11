"""Losses: bytes that a query was to read and that are gone end the query, or are counted and told.

Option `failOnDataLoss` decides. What a batch still finds is read whole, so only the bytes that are gone are
missing. Each process counts what it found; a journal's loss is told once. Source: pipelines.2.
"""

import sys

from broadsheet.errors import LocalProtocolError
from broadsheet.message.position import Position

REMEDY = (
    "start with a new checkpoint and a new commit journal, or set option failOnDataLoss to 'false' to go on "
    "without what is gone"
)


class Losses:
    """What one process of a query found to be gone."""

    def __init__(self, *, is_fatal: bool) -> None:
        self.is_fatal = is_fatal
        self.count = 0
        """How many losses were told."""
        self.known_bytes = 0
        """How many bytes they were, of those whose length is known."""
        self._told: dict[str, None] = {}

    def of_journal(self, journal: str, was: Position, now: int | None, *, size: int | None = None) -> None:
        """Fail, or tell once, that a journal of which the query has read, or was to read, is gone.

        Args:
            was: where the query stands, or its batch ends.
            now: the create revision of the journal that has the name now; None if there is none.
            size: how many bytes of a batch are gone; None if nobody knows what followed `was`.

        Raises:
            LocalProtocolError: the query does not go on without them.
        """
        again = "" if now is None else f" and made again (create revision {was.create_revision}, now {now})"
        gone = f"what followed offset {was.offset}" if size is None else f"{size} bytes up to {was.offset}"
        self.tell(f"journal {journal} was deleted{again}: {gone} cannot be read", size=size)

    def of_begin(self, journal: str, was: Position, begin: int) -> None:
        """Fail, or tell once, that bytes from `was` to `begin`, which the query was to read, were removed.

        Raises:
            LocalProtocolError: the query does not go on without it.
        """
        size = begin - was.offset
        self.tell(
            f"journal {journal} begins at {begin}: {size} bytes from {was.offset} on were removed", size=size
        )

    def tell(self, text: str, *, size: int | None) -> None:
        """Fail with `text`, or write it once.

        Raises:
            LocalProtocolError: losses end the query.
        """
        if self.is_fatal:
            raise LocalProtocolError(f"{text}: {REMEDY}")
        if text in self._told:
            return
        self._told[text] = None
        self.count += 1
        self.known_bytes += size or 0
        sys.stderr.write(
            f"broadsheet: {text}; failOnDataLoss is false, and the query goes on "
            f"({self.count} losses of {self.known_bytes} known bytes in this process)\n"
        )
