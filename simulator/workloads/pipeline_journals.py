"""Journals as a query sees them: a naive node in tier 1, and calls to it that are answered, refused or lost.

The node appends in the order of arrival, evaluates conditions at its head, answers when its log is synced,
and shows what is synced. A request may come late, behind others of the same caller, and in a later boot of
the node; it is applied once at most, since no transport doubles it. It does not do: fragments, streams,
indexes; those are the append workloads'. Units: byte offsets. Source: J1, J6, J7; journals.11.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from broadsheet.base.buggify import buggify
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import NodeId
from broadsheet.errors import (
    BroadsheetError,
    NotFound,
    RegisterMismatch,
    StoreUnhealthy,
    Unknown,
    WrongAppendOffset,
)
from simulator.node_context import NodeContext

Key = tuple[str, int, int]
"""Caller, its boot, its request's number."""


class Request(msgspec.Struct, frozen=True):
    """A call. Without content, offset, check, union: it asks for the end."""

    key: Key
    name: str
    """`create`, `append`, `registers`, `read`."""
    journal: str
    content: bytes = b""
    offset: int | None = None
    end: int | None = None
    check: Mapping[str, str | None] | None = None
    union: Mapping[str, str] | None = None


class Reply(msgspec.Struct, frozen=True):
    """What came of a call."""

    key: Key
    error: BroadsheetError | None = None
    end: int = 0
    values: Mapping[str, str] = {}
    content: bytes = b""
    made: int = 0
    """Which journal of that name: rises when it is made again."""


class Change(msgspec.Struct, frozen=True):
    """A record of the node's log."""

    journal: str
    content: bytes = b""
    union: Mapping[str, str] | None = None
    is_made: bool = False
    is_deleted: bool = False


class Journal:
    """One journal's bytes and registers."""

    def __init__(self, made: int) -> None:
        self.made = made
        self.content = bytearray()
        self.values: dict[str, str] = {}


class Shelf:
    """Journals by name, as a log of changes leaves them."""

    def __init__(self) -> None:
        self.journals: dict[str, Journal] = {}
        self.deleted: list[str] = []
        self._made = 0

    def apply(self, change: Change) -> None:
        """The next change."""
        if change.is_made:
            self._made += 1
            self.journals[change.journal] = Journal(self._made)
        elif change.is_deleted:
            del self.journals[change.journal]
            self.deleted.append(change.journal)
        else:
            journal = self.journals[change.journal]
            journal.content += change.content
            journal.values |= dict(change.union or {})


class JournalsNode:
    """One boot of the node."""

    def __init__(
        self,
        context: NodeContext,
        taken: dict[Key, None],
        on_durable: Callable[[Shelf], None],
        *,
        late_ppm: int,
        parked_percent: int = 0,
    ) -> None:
        """Recover.

        Args:
            parked_percent: of appends under a check that name no offset, how many come right behind the
            next one that measures their journal: between the measure and what is decided by it.
            late_ppm: in a million appends, how many come behind those that their callers ask for later.
            taken: the requests that were ever taken, across boots.
            on_durable: told of what is synced, whenever that has changed.
        """
        self.context, self.taken, self.on_durable = context, taken, on_durable
        self.late_ppm, self.draws = late_ppm, context.random("late")
        self.parked_percent, self.parking = parked_percent, context.random("parked")
        self.parked: list[tuple[NodeId, Request]] = []
        self.log = context.log()
        self.head, self.synced = Shelf(), Shelf()
        for change in self.log.records:
            self.head.apply(change)
            self.synced.apply(change)
        on_durable(self.synced)
        self.under_way = 0
        self.refused: list[tuple[NodeId, Reply]] = []
        context.on_message = self._on_message

    def delete(self, journal: str) -> bool:
        """An operator deletes; False where it is not there, or cannot be."""
        return journal in self.head.journals and self._write(Change(journal, is_deleted=True), lambda: None)

    def _on_message(self, sender: NodeId, message: object) -> None:
        assert isinstance(message, Request), "only callers write to it"
        if message.key in self.taken:
            return
        self.taken[message.key] = None
        if message.name == "append" and self.draws.randrange(1_000_000) < self.late_ppm:
            late = Duration(self.draws.randrange(20, 2_000) * MILLISECOND)
            self.context.timers.call_after(late, lambda: self._take(sender, message))
        elif self._is_parked(message):
            self.parked.append((sender, message))
        else:
            self._take(sender, message)
            if message.name == "append" and not message.content:
                behind = [each for each in self.parked if each[1].journal == message.journal]
                self.parked = [each for each in self.parked if each not in behind]
                for each in behind:
                    self._take(*each)

    def _is_parked(self, asked: Request) -> bool:
        is_anywhere = asked.name == "append" and bool(asked.check) and asked.offset is None
        return is_anywhere and self.parking.randrange(100) < self.parked_percent

    def _take(self, sender: NodeId, message: Request) -> None:
        try:
            self._serve(sender, message)
        except BroadsheetError as error:
            # In its turn: what refused it may not be synced yet.
            self.refused.append((sender, Reply(message.key, error)))
            if not self.under_way:
                self._tell_refused()

    def _serve(self, sender: NodeId, asked: Request) -> None:
        match asked.name:
            case "create":
                if asked.journal in self.head.journals:
                    self._append(sender, asked)
                else:
                    self._change(sender, asked, Change(asked.journal, is_made=True))
            case "append":
                self._append(sender, asked)
            case "registers":
                values = dict(self._synced(asked).values)
                self.context.send(sender, Reply(asked.key, values=values))
            case _:
                journal = self._synced(asked)
                content = bytes(journal.content[asked.offset or 0 : asked.end])
                self.context.send(sender, Reply(asked.key, content=content, made=journal.made))

    def _synced(self, asked: Request) -> Journal:
        found = self.synced.journals.get(asked.journal)
        if found is None:
            raise NotFound(f"journal {asked.journal}")
        return found

    def _append(self, sender: NodeId, asked: Request) -> None:
        journal = self.head.journals.get(asked.journal)
        if journal is None:
            raise NotFound(f"journal {asked.journal}")
        if asked.offset is not None and asked.offset != len(journal.content):
            raise WrongAppendOffset(f"{asked.journal} ends at {len(journal.content)}")
        if any(journal.values.get(name) != value for name, value in (asked.check or {}).items()):
            raise RegisterMismatch(str(journal.values))
        self._change(sender, asked, Change(asked.journal, asked.content, asked.union))

    def _change(self, sender: NodeId, asked: Request, change: Change) -> None:
        """Make it durable, then answer, unless the answer is lost."""
        end = 0

        def done() -> None:
            if not buggify("pipeline.answer_lost"):
                self.context.send(sender, Reply(asked.key, end=end))

        if not self._write(change, done):
            raise StoreUnhealthy("the disk is full")
        end = len(self.head.journals[change.journal].content)

    def _write(self, change: Change, done: Callable[[], None]) -> bool:
        def durable() -> None:
            self.under_way -= 1
            self.synced.apply(change)
            self.on_durable(self.synced)
            done()
            if not self.under_way:
                self._tell_refused()

        if not self.log.append(change, durable):
            return False
        self.under_way += 1
        self.head.apply(change)
        return True

    def _tell_refused(self) -> None:
        refused, self.refused = self.refused, []
        for sender, reply in refused:
            self.context.send(sender, reply)


class Caller:
    """Calls of one process to the node of journals: each ends by a reply or by time."""

    def __init__(
        self, context: NodeContext, node: NodeId, timeout: Duration, *, tells_late: bool = False
    ) -> None:
        """Call `node`.

        Args:
            tells_late: a call that time has ended is ended once more when its reply comes after all.
        """
        self.context, self.node, self.timeout, self.tells_late = context, node, timeout, tells_late
        self.number = 0
        self._waiting: dict[Key, Callable[[Reply], None]] = {}

    def ask(
        self,
        name: str,
        journal: str,
        done: Callable[[Reply], None],
        timeout: Duration | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Call, and tell `done` what came of it; `Unknown` where nothing came in time."""
        self.number += 1
        key = (str(self.context.node), self.context.boot, self.number)
        self._waiting[key] = done
        self.context.send(self.node, Request(key, name, journal, **options))
        wait = self.timeout if timeout is None else min(timeout, self.timeout)
        self.context.timers.call_after(wait, lambda: self._late(key))

    def on_reply(self, reply: Reply) -> None:
        """Doubled replies find nobody, and so do late ones, but for who wants them."""
        done = self._waiting.get(reply.key)
        if done is None:
            return
        del self._waiting[reply.key]
        done(reply)

    def _late(self, key: Key) -> None:
        done = self._waiting.get(key)
        if done is None:
            return
        if not self.tells_late:
            del self._waiting[key]
        done(Reply(key, Unknown("no answer came in time")))
