"""What a commit journal holds: records as JSON lines, and four registers {author, batch, query, at}.

Records: `fence` (a new author), `commit` (batch, intents, digest; the newest stands at offset `at`),
`retire` (producers that are never used again). Units: batch numbers from 0, `NO_BATCH` for none; byte
offsets. It decides nothing. Source: pipelines.6-9.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, NewType

import msgspec

from broadsheet.base.types import Revision
from broadsheet.errors import Corrupt, LocalProtocolError
from broadsheet.message.publisher import Intent
from broadsheet.message.uuid import NO_CLOCK, Clock, ProducerId

Fence = NewType("Fence", str)
"""Who may commit: random, one for each START."""

NO_BATCH: Final = -1
REGISTERS: Final = ("author", "batch", "query", "at")
RECORD_BYTES_MAX: Final = 16 << 20
SHOWN_BYTES: Final = 80
"""How much of a foreign line an error shows."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the commit journal."""

    type: str
    fence: str
    batch: int = NO_BATCH
    query: str = ""
    digest: str = ""
    intents: list[Intent] = []
    producers: list[ProducerId] = []

    def line(self) -> bytes:
        """The record as it stands in the journal."""
        return msgspec.json.encode(self) + b"\n"

    def by_journal(self) -> "list[Acknowledgements]":
        """The acknowledgements of each journal, for one append."""
        contents: dict[tuple[str, Revision], list[bytes]] = {}
        for intent in self.intents:
            contents.setdefault((intent.journal, intent.create_revision), []).append(intent.content())
        return [
            Acknowledgements(journal, revision or None, b"".join(parts))
            for (journal, revision), parts in contents.items()
        ]


class Acknowledgements(NamedTuple):
    """Those of one journal."""

    journal: str
    create_revision: Revision | None
    """Of the journal that has the messages; None: of whichever has the name."""
    content: bytes


class Standing(msgspec.Struct, frozen=True):
    """What the registers say."""

    author: str | None
    batch: int
    query: str
    at: int
    """Offset of the newest commit record; -1 for none."""

    def as_check(self) -> dict[str, str | None]:
        """A condition that fails as soon as any register has changed."""
        if self.author is None:
            return dict.fromkeys(REGISTERS)
        return {"author": self.author, "batch": str(self.batch), "query": self.query, "at": str(self.at)}


class BatchPlan(msgspec.Struct, frozen=True):
    """What the tasks of a batch are told; small, and pickled into each."""

    fence: Fence
    committed: int
    query: str
    reusable: tuple[tuple[ProducerId, Clock], ...] = ()
    """Producers of the newest commit under this fence that may be used again, with their last acknowledged
    clock."""

    def may_use(self, producer: ProducerId, acknowledged: Clock) -> bool:
        """Whether `producer` may be used again by who acknowledged up to this clock with it."""
        return (producer, acknowledged) in self.reusable

    def is_committed(self, batch: int) -> bool:
        """Whether a task of `batch` drains its input and writes nothing: its output stands."""
        return batch <= self.committed

    def refuse_query(self, query: str, *, journal: str) -> None:
        """Raise where the commit journal is another query's.

        Raises:
            LocalProtocolError: it is.
        """
        if self.query not in ("", query):
            raise LocalProtocolError(
                f"commit journal {journal} belongs to query {self.query}, not {query}: a "
                "new checkpoint needs a new commit journal"
            )


def standing_of(values: Mapping[str, str], *, journal: str) -> Standing:
    """What registers of these values say.

    Raises:
        Corrupt: they are no commit journal's.
    """
    author = values.get("author")
    if author is None:
        return Standing(author=None, batch=NO_BATCH, query="", at=NO_BATCH)
    try:
        return Standing(
            author=author, batch=int(values["batch"]), query=values["query"], at=int(values["at"])
        )
    except (KeyError, ValueError) as error:
        raise Corrupt(f"the registers of commit journal {journal} are {dict(values)}, not ours") from error


def records_from(content: bytes, now: Standing, *, journal: str) -> list[Record]:
    """The newest commit record, and the records after it.

    Args:
        content: the journal's bytes from offset `now.at` on.

    Raises:
        Corrupt: the first is not what the registers say, or a foreign line follows.
    """
    *lines, torn = content.split(b"\n")
    records = [_record(line, now.at, journal) for line in ([*lines, torn] if torn else lines)]
    if torn:
        raise Corrupt(f"commit journal {journal} holds half a line after {now.at}: {torn[:SHOWN_BYTES]!r}")
    if not records or records[0].type != "commit" or records[0].batch != now.batch:
        raise Corrupt(f"offset {now.at} of {journal} holds no commit of batch {now.batch}")
    return records


def _record(line: bytes, at: int, journal: str) -> Record:
    try:
        return msgspec.json.decode(line, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"commit journal {journal} holds a foreign line after {at}: {line[:SHOWN_BYTES]!r}"
        ) from error


def reusable_of(newest: Record, later: list[Record], fence: Fence) -> tuple[tuple[ProducerId, Clock], ...]:
    """The producers that the next batch under `fence` may use, with their last acknowledged clocks.

    Those of the newest commit, if it is of the same fence, less the retired ones (pipelines.8): the
    acknowledgement of every other producer may still be on its way.
    """
    if newest.fence != fence:
        return ()
    retired = dict.fromkeys(p for each in later if each.type == "retire" for p in each.producers)
    reusable: dict[ProducerId, Clock] = {}
    for intent in newest.intents:
        if intent.producer not in retired:
            reusable[intent.producer] = max(reusable.get(intent.producer, NO_CLOCK), intent.clock)
    return tuple(reusable.items())
