"""The commit journal: which batches of a query are committed, and who may commit the next.

A journal of JSON lines with registers {author, batch, query, at}. Records: `fence` (a new owner), `commit`
(batch, intents, digest; it stands
at offset `at`), `retire` (producers that are never used again). The atomic point of a batch is one append
at an explicit offset under
a check of all four registers; acknowledgements are redo of that record.
UNFENCED --START--> FENCED(author, b) --COMMIT(b+1)--> FENCED(author, b+1); another START ends every older
author for good. ABORT
writes nothing. On doubt (a timeout, a mismatch) it reads again and decides again; a lost answer is never a
no.
It knows nothing of Spark. Units: batch numbers from 0, -1 for none; byte offsets. Source: pipelines.6-11.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NewType, TypeVar

import msgspec

from broadsheet.client_sync import SyncJournals
from broadsheet.errors import (
    ConfigError,
    Corrupt,
    Fenced,
    LocalProtocolError,
    RegisterMismatch,
    Unknown,
    WrongAppendOffset,
)
from broadsheet.message.publisher import Intent
from broadsheet.message.uuid import Clock, ProducerId
from broadsheet.runtime.failpoints import passed
from broadsheet.spark.connection import Target, is_passing, patiently

Fence = NewType("Fence", str)
T = TypeVar("T")
NO_BATCH: Final = -1
_ATTEMPTS_MAX: Final = 1000
_PAUSE_S = 0.1
RECORD_BYTES_MAX: Final = 16 << 20


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


class Standing(msgspec.Struct, frozen=True):
    """What the registers say."""

    author: str | None
    batch: int
    query: str
    at: int
    """Offset of the newest commit record; -1 for none."""

    def as_check(self) -> dict[str, str | None]:
        """A condition that fails as soon as anything has changed."""
        if self.author is None:
            return dict.fromkeys(("author", "batch", "query", "at"))
        return {"author": self.author, "batch": str(self.batch), "query": self.query, "at": str(self.at)}


class Plan(msgspec.Struct, frozen=True):
    """What the tasks of a batch are told; small, and pickled into each."""

    fence: Fence
    committed: int
    query: str
    reusable: dict[ProducerId, Clock]
    """Producers of the newest commit under this fence that may be used again, with their last acknowledged
    clock."""


class CommitJournal:
    """One query's commit journal, as its driver sees it."""

    def __init__(self, target: Target, name: str, journals: SyncJournals | None = None) -> None:
        self.target, self.name = target, name
        self._given = journals
        self.pass_by: Callable[[str], None] = passed

    @property
    def journals(self) -> SyncJournals:
        """The journals of the node."""
        return self._given if self._given is not None else self.target.journals()

    def begin(self, fence: Fence) -> Standing:
        """START: become the author, then finish what the last author had committed.

        Raises:
            Fenced: another START keeps winning. ConfigError: the journal holds data.
        """
        self._patiently(lambda: self.journals.create(self.name, if_absent=True))
        for _ in range(_ATTEMPTS_MAX):
            old = self.standing()
            if old.author == fence:
                break
            union = {"author": str(fence)}
            if old.author is None:
                self._refuse_data()
                union |= {"batch": str(NO_BATCH), "query": "", "at": str(NO_BATCH)}
            try:
                # A check of what was just read: a fence whose answer was lost must not land after a newer
                # one.
                self.journals.append(
                    self.name, Record(type="fence", fence=fence).line(), check=old.as_check(), union=union
                )
            except RegisterMismatch:
                continue
            except Exception as error:
                if not is_passing(error):
                    raise
                time.sleep(_PAUSE_S)
        else:
            raise Fenced(f"commit journal {self.name} changes its author faster than we can read it")
        self.pass_by("sink.start.fenced")
        # Ours still, or what is newest belongs to a driver that goes on with its producers: to acknowledge it
        # again would roll back what they append now.
        now = self._ours(fence)
        if now.at >= 0:
            self.acknowledge(self.record(now), fence)
        return now

    def _refuse_data(self) -> None:
        """Refuse a journal with bytes and without registers: a fence sets them for good."""
        end = self._patiently(lambda: self.journals.append(self.name, b"")).end
        if end and self.standing().author is None:
            raise ConfigError(
                f"journal {self.name} holds {end} bytes and no query's registers: name another for the "
                "commits"
            )

    def standing(self) -> Standing:
        """The registers, behind every append acknowledged before."""
        values = self._patiently(lambda: self.journals.registers(self.name)).values
        author = values.get("author")
        if author is None:
            return Standing(author=None, batch=NO_BATCH, query="", at=NO_BATCH)
        try:
            return Standing(
                author=author, batch=int(values["batch"]), query=values["query"], at=int(values["at"])
            )
        except (KeyError, ValueError) as error:
            raise Corrupt(f"the registers of commit journal {self.name} are {values}, not ours") from error

    def plan(self, fence: Fence) -> Plan:
        """PLAN: what the tasks of the next batch must know.

        Raises:
            Fenced: another START came.
        """
        now = self._ours(fence)
        reusable: dict[ProducerId, Clock] = {}
        if now.at >= 0:
            newest, *later = self._newest(now)
            if newest.fence == fence:
                retired = dict.fromkeys(p for each in later if each.type == "retire" for p in each.producers)
                for intent in newest.intents:
                    if intent.producer not in retired:
                        last = reusable.get(intent.producer, Clock(0))
                        reusable[intent.producer] = max(last, intent.clock)
        return Plan(fence=fence, committed=now.batch, query=now.query, reusable=reusable)

    def commit(self, fence: Fence, *, batch: int, query: str, digest: str, intents: Sequence[Intent]) -> None:
        """COMMIT: make `batch` the newest, once, then acknowledge its messages.

        Args:
            digest: of the checkpoint's offsets of this batch: a replay must have read the same.

        Raises:
            Fenced: another START came. LocalProtocolError: the checkpoint belongs to another history.
        """
        record = Record(
            type="commit", fence=fence, batch=batch, query=query, digest=digest, intents=list(intents)
        )
        line = record.line()
        if len(line) > RECORD_BYTES_MAX:
            raise LocalProtocolError(
                f"batch {batch} has {len(intents)} acknowledgements: too many for one record"
            )
        for _ in range(_ATTEMPTS_MAX):
            now = self._ours(fence)
            self._refuse_other_history(now, batch=batch, query=query)
            if now.batch == batch:
                stored = self.record(now)
                if stored.digest != digest:
                    raise LocalProtocolError(
                        f"batch {batch} was committed with other source offsets ({stored.digest[:12]}, now "
                        f"{digest[:12]}): {self._other_history()}"
                    )
                # Some acknowledgement may have been sent already, and may still be on its way.
                self.acknowledge(stored, fence)
                return
            if self._compare_and_append(now, line, batch=batch, query=query):
                self.pass_by("sink.commit.decided")
                self._acknowledge_first(record, fence)
                return
        raise Unknown(f"batch {batch} of {self.name}: undecided after {_ATTEMPTS_MAX} attempts")

    def record(self, now: Standing) -> Record:
        """The newest commit record.

        Raises:
            Corrupt: it is not what the registers say.
        """
        return self._newest(now)[0]

    def _newest(self, now: Standing) -> list[Record]:
        """The newest commit record, and what came after it.

        Raises:
            Corrupt: it is not what the registers say, or a foreign line follows.
        """
        records = self._records(now.at)
        if not records or records[0].type != "commit" or records[0].batch != now.batch:
            raise Corrupt(f"offset {now.at} of {self.name} holds no commit of batch {now.batch}")
        return records

    def acknowledge(self, record: Record, fence: Fence) -> None:
        """Append the record's acknowledgements, perhaps again: its producers are retired first (pipelines.8).

        Raises:
            Fenced: another START came; it publishes them.
        """
        self._retire(record, fence)
        for journal, content in _by_journal(record):
            self._patiently(partial(self.journals.append, journal, content))

    def _acknowledge_first(self, record: Record, fence: Fence) -> None:
        """Append each acknowledgement once; where an answer is lost, do it as a repetition."""
        for journal, content in _by_journal(record):
            try:
                self.journals.append(journal, content)
            except Exception as error:
                if not is_passing(error):
                    raise
                self.acknowledge(record, fence)
                return
            self.pass_by("sink.commit.acknowledged")

    def _retire(self, record: Record, fence: Fence) -> None:
        """Say that no later batch uses the record's producers; under another fence nobody does anyway."""
        producers = list(dict.fromkeys(intent.producer for intent in record.intents))
        if record.fence != fence or not producers:
            return
        line = Record(type="retire", fence=fence, producers=producers).line()
        try:
            self._patiently(lambda: self.journals.append(self.name, line, check={"author": str(fence)}))
        except RegisterMismatch:
            self._ours(fence)
            raise

    def _compare_and_append(self, now: Standing, line: bytes, *, batch: int, query: str) -> bool:
        """The atomic point. False: undecided, look again."""
        head = self._patiently(lambda: self.journals.append(self.name, b"")).end
        self.pass_by("sink.commit.deciding")
        try:
            self.journals.append(
                self.name,
                line,
                offset=head,
                check=now.as_check(),
                union={"batch": str(batch), "query": query, "at": str(head)},
            )
        except (RegisterMismatch, WrongAppendOffset):
            return False
        except Exception as error:
            if not is_passing(error):
                raise
            time.sleep(_PAUSE_S)
            return False
        return True

    def _ours(self, fence: Fence) -> Standing:
        now = self.standing()
        if now.author != fence:
            raise Fenced(
                f"commit journal {self.name} belongs to another run of the query now (fence {now.author}, "
                f"ours {fence})"
            )
        return now

    def _refuse_other_history(self, now: Standing, *, batch: int, query: str) -> None:
        if now.query not in ("", query):
            raise LocalProtocolError(
                f"commit journal {self.name} belongs to query {now.query}, not {query}: "
                f"{self._other_history()}"
            )
        if batch not in (now.batch, now.batch + 1):
            raise LocalProtocolError(
                f"batch {batch} does not follow batch {now.batch} of {self.name}: {self._other_history()}"
            )

    def _other_history(self) -> str:
        return (
            "the checkpoint belongs to another history. Restore the checkpoint that this journal was "
            "written with, "
            "or start with a new checkpoint and a new commit journal"
        )

    def _records(self, at: int) -> list[Record]:
        def content() -> bytes:
            return b"".join(chunk.data for chunk in self.journals.read(self.name, at))

        *lines, torn = self._patiently(content).split(b"\n")
        records = []
        for line in [*lines, torn] if torn else lines:
            try:
                records.append(msgspec.json.decode(line, type=Record))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Corrupt(
                    f"commit journal {self.name} holds a foreign line after {at}: {line[:80]!r}"
                ) from error
        if torn:
            raise Corrupt(f"commit journal {self.name} holds half a line after {at}: {torn[:80]!r}")
        return records

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, self.target.patience_s)


def _by_journal(record: Record) -> list[tuple[str, bytes]]:
    """One append for each journal."""
    contents: dict[str, list[bytes]] = {}
    for intent in record.intents:
        contents.setdefault(intent.journal, []).append(intent.content())
    return [(journal, b"".join(parts)) for journal, parts in contents.items()]
