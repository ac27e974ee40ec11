"""Records: the content of a commit journal, which is JSON lines and four registers.

The records are `fence` (a new author), `commit` (batch, intents and digest) and `retire` (producers that are
never used again). The registers are `author`, `batch`, `query` and `at`, the offset of the newest commit
record. Units: batch numbers from 0, `NO_BATCH` for none; byte offsets. This module does no IO, and the driver
decides. Source: pipelines.6-9.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, NewType

import msgspec

from broadsheet.base.types import Revision
from broadsheet.errors import Corrupt
from broadsheet.message.stamper import Intent
from broadsheet.message.uuid import NO_CLOCK, Clock, ProducerId

Fence = NewType("Fence", str)
"""The random id of one START. Only the run whose fence is in register `author` may commit."""

NO_BATCH: Final = -1
FENCE_BYTES: Final = 16
"""Random bytes of a fence."""
REGISTERS: Final = ("author", "batch", "query", "at")
RECORD_BYTES_MAX: Final = 16 << 20
"""The longest commit record, in bytes."""
SHOWN_BYTES: Final = 80
"""How many bytes of an unreadable line an error shows."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the commit journal."""

    type: str
    fence: str
    batch: int = NO_BATCH
    query: str = ""
    digest: str = ""
    intents: list[Intent] = []
    producers: list[ProducerId] = []
    positions: str = ""
    """Of a commit: where its input ends, as the caller encodes that; empty if it keeps that elsewhere."""

    def line(self) -> bytes:
        """The record as one JSON line."""
        return msgspec.json.encode(self) + b"\n"

    def by_journal(self) -> "list[Acknowledgements]":
        """The acknowledgements grouped by journal, so that each journal gets one append."""
        contents: dict[tuple[str, Revision], list[bytes]] = {}
        for intent in self.intents:
            contents.setdefault((intent.journal, intent.create_revision), []).append(intent.content())
        return [
            Acknowledgements(journal, revision or None, b"".join(parts))
            for (journal, revision), parts in contents.items()
        ]


class Acknowledgements(NamedTuple):
    """The acknowledgements of one batch for one journal."""

    journal: str
    create_revision: Revision | None
    """The create revision of the journal that holds the messages; None for any journal of that name."""
    content: bytes


class SinkRegisters(msgspec.Struct, frozen=True):
    """The values of a commit journal's registers."""

    author: str | None
    """The fence of the newest START; None if the journal has never been fenced."""
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
    """What a sink's tasks must know of a batch. It is small, because Spark pickles it into each task."""

    fence: Fence
    committed: int
    query: str
    reusable: tuple[tuple[ProducerId, Clock], ...] = ()
    """The producers that may be used again, each with its last acknowledged clock."""
    positions: str = ""
    """What the newest commit says about where its input ends."""
    committed_by: str = ""
    """The fence of the newest commit."""

    def may_use(self, producer: ProducerId, acknowledged: Clock) -> bool:
        """Whether a worker may use `producer` again if `acknowledged` is the last clock of its intents."""
        return (producer, acknowledged) in self.reusable

    def is_committed(self, batch: int) -> bool:
        """Whether `batch` is committed already; then a task reads its input and writes nothing."""
        return batch <= self.committed


def standing_of(values: Mapping[str, str], *, journal: str) -> SinkRegisters:
    """The standing of a commit journal that its register values express.

    Raises:
        Corrupt: the values are not those of a commit journal.
    """
    author = values.get("author")
    if author is None:
        return SinkRegisters(author=None, batch=NO_BATCH, query="", at=NO_BATCH)
    try:
        return SinkRegisters(
            author=author, batch=int(values["batch"]), query=values["query"], at=int(values["at"])
        )
    except (KeyError, ValueError) as error:
        raise Corrupt(
            f"the registers of {journal} are {dict(values)}, which are not those of a commit journal: "
            "another program changed them. Start with a new checkpoint and a new commit journal"
        ) from error


def records_from(content: bytes, now: SinkRegisters, *, journal: str) -> list[Record]:
    """The commit journal's newest commit record, and the records after it.

    Args:
        content: the journal's bytes from offset `now.at` on.

    Raises:
        Corrupt: the first record is not the commit that the registers name, or a line is not a record.
    """
    *lines, torn = content.split(b"\n")
    records = [_record(line, now.at, journal) for line in ([*lines, torn] if torn else lines)]
    if torn:
        raise Corrupt(
            f"commit journal {journal} holds a line without end after offset {now.at}, which another program "
            f"appended: {torn[:SHOWN_BYTES]!r}"
        )
    if not records or records[0].type != "commit" or records[0].batch != now.batch:
        raise Corrupt(
            f"offset {now.at} of {journal} holds no commit of batch {now.batch}, which its registers name"
        )
    return records


def _record(line: bytes, at: int, journal: str) -> Record:
    try:
        return msgspec.json.decode(line, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"commit journal {journal} holds a line after offset {at} that is not a record, which another "
            f"program appended: {line[:SHOWN_BYTES]!r}"
        ) from error


def records_before(content: bytes, *, is_whole: bool) -> list[Record]:
    """The commit journal's records before the newest commit, but none older than an unreadable one.

    Args:
        content: the journal's bytes up to the newest commit.
        is_whole: whether `content` begins where a line begins.
    """
    found: list[Record] = []
    for line in content.split(b"\n")[0 if is_whole else 1 : -1]:
        try:
            found.append(msgspec.json.decode(line, type=Record))
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = []  # It may have retired a producer of these.
    return found


def reusable_of(records: Iterable[Record], fence: Fence) -> tuple[tuple[ProducerId, Clock], ...]:
    """The producers that the next batch under `fence` may use again, with their last acknowledged clocks.

    These are the producers of the commits that the same fence made, without the retired ones (pipelines.8):
    a batch follows when the one before it is acknowledged, and then each of its acknowledgements was answered
    at once, or its producers are retired. Any other acknowledgement may still be on its way, and would roll
    back the producer's next messages.

    Args:
        records: from any record to the journal's end. A producer is retired behind the commit that names it.
    """
    reusable: dict[ProducerId, Clock] = {}
    retired: dict[ProducerId, None] = {}
    for each in records:
        if each.fence == fence:
            retired |= dict.fromkeys(each.producers)
            for intent in each.intents:
                reusable[intent.producer] = max(reusable.get(intent.producer, NO_CLOCK), intent.clock)
    return tuple((producer, clock) for producer, clock in reusable.items() if producer not in retired)
