"""Client: the calls by which users and Spark workers create, append to, read and inspect journals.

Offsets are bytes, timeouts seconds. The client decides only which append may be tried again (journals.21);
the node decides everything else. A failed call raises an error of `broadsheet.errors`; `Unknown` means that
the append may or may not have happened. Source: journals.21, journals.24.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import SECOND, Duration, in_seconds
from broadsheet.base.types import Buffer, ByteOffset, JournalName
from broadsheet.errors import AlreadyExists, NotAllowed, NotFound
from broadsheet.journal.client_appends import Appending, AppendWriter
from broadsheet.journal.client_batches import BatchesByJournal
from broadsheet.journal.client_reads import EncodedIndex, Reader, read_index
from broadsheet.journal.client_requests import (
    PATIENCE,
    RETRY_MAX,
    RETRY_MIN,
    change_of,
    condition_of,
    contents_of,
    is_repeatable,
    name_of,
    offset_of,
    pieces_of,
    require_progress,
    revision_of,
    seconds_of,
    spec_of,
    wall_of,
)
from broadsheet.journal.core.attempts import ATTEMPT_BYTES
from broadsheet.journal.messages import (
    AlterRequest,
    AppendRequest,
    Chunk,
    Commit,
    CreateRequest,
    FragmentInfo,
    FragmentsReply,
    FragmentsRequest,
    IndexPointsReply,
    IndexPointsRequest,
    JournalInfo,
    JournalStatus,
    ListReply,
    ListRequest,
    LossReply,
    LossRequest,
    NameRequest,
    OffsetAtReply,
    OffsetAtRequest,
    ProducerIndexRequest,
    Registers,
    TrimReply,
    TrimRequest,
)
from broadsheet.ports import Random
from broadsheet.wire.client import Caller
from broadsheet.wire.method import Empty

Content = Buffer | Iterable[Buffer] | AsyncIterable[Buffer]
"""What to append: one buffer, or buffers that are streamed as they come."""

INLINE_BYTES_MAX: Final = 64 << 10
"""Content up to this length goes in one request. A node may accept more, never less."""
TIMEOUT_SECONDS: Final = 30.0
STATUS_SECONDS: Final = 5.0
"""How long `end` waits for a status at least: if the journal is being opened, a node tells why after half a
second."""
TRIM_SECONDS: Final = 600.0
"""A trim may remove a hundred thousand objects, one by one."""

S = TypeVar("S", bound=msgspec.Struct)


def _offset(offset: int | None) -> ByteOffset | None:
    return None if offset is None else ByteOffset(offset)


class Journals:
    """The journals of a node."""

    def __init__(self, caller: Caller, *, random: Random, inline_bytes_max: int = INLINE_BYTES_MAX) -> None:
        """Send the calls of a journals' client through `caller`, which reconnects when it must.

        Args:
            random: for attempt ids, which must be unique among all clients.
            inline_bytes_max: content above this length is streamed.
        """
        self._caller, self._random, self._inline_bytes_max = caller, random, inline_bytes_max
        self._appending = Appending(caller, inline_bytes_max=inline_bytes_max, read_span=self._read_span)
        self._batches = BatchesByJournal(caller)

    async def close(self) -> None:
        """End the run streams when nobody waits for an append any more. Idempotent."""
        await self._batches.close()

    async def create(
        self,
        name: str,
        *,
        fragment_length: int | None = None,
        codec: str | None = None,
        store: str | None = None,
        flush_interval: float | None = None,
        retention: float | None = None,
        retained_bytes: int | None = None,
        labels: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> JournalInfo:
        """Create a journal.

        Args:
            fragment_length: bytes after which a fragment is closed; by default 64 MiB.
            codec: `none`, `gzip`, `zstandard` or `snappy`; by default `none`.
            store: URL of the fragment store; by default the node's own.
            flush_interval: seconds, at least 60: fragments are closed at its multiples, too; by default
                never.
            retention: seconds, at least 60: what was stored longer ago is removed; by default nothing.
            retained_bytes: what lies further below the end is removed; by default nothing.
            labels: names and values by which `list` selects journals; some tell the node how the content is
                framed.
            if_absent: return an existing journal of that name instead of raising, also to a caller who may
                not create one.

        Raises:
            AlreadyExists: a journal of that name exists.
            InvalidArgument: the message says which field is wrong and why.
            StoreUnhealthy: `store` cannot be used now. No journal was made.
        """
        change = change_of(fragment_length, codec, store, flush_interval, retention, retained_bytes, labels)
        spec = spec_of(name, change)
        try:
            return await self._call("journal.create", CreateRequest(spec), JournalInfo)
        except AlreadyExists:
            if not if_absent:
                raise
            return await self.get(name)
        except NotAllowed as refused:
            if not if_absent:
                raise
            try:
                return await self.get(name)
            except (NotFound, NotAllowed):
                raise refused from None

    async def alter(
        self,
        name: str,
        *,
        fragment_length: int | None = None,
        codec: str | None = None,
        store: str | None = None,
        flush_interval: float | None = None,
        retention: float | None = None,
        retained_bytes: int | None = None,
        labels: Mapping[str, str | None] | None = None,
        create_revision: int | None = None,
    ) -> JournalInfo:
        """Change the spec of a journal that lives; None: as it is. What is stored already stays as it is.

        The store, and labels that say how messages are framed, do not change. Other arguments as `create` has
        them, in bytes and seconds; 0 ends a flush interval or a retention.

        Args:
            labels: new values; None as a value removes the label.
            create_revision: of the journal that is meant (`get`); a later one of that name is `NotFound`.

        Raises:
            InvalidArgument: the message says which field is wrong, or cannot be changed, and why. Nothing
                changed.
            NotFound: there is no such journal. Nothing changed.
            Unknown: it may be changed. A repetition does no harm.
        """
        change = change_of(fragment_length, codec, store, flush_interval, retention, retained_bytes, labels)
        request = AlterRequest(name_of(name), change, create_revision=revision_of(create_revision))
        return await self._call("journal.alter", request, JournalInfo)

    async def delete(self, name: str) -> None:
        """Delete a journal with its content.

        Raises:
            NotFound: there is no such journal.
        """
        await self._call("journal.delete", NameRequest(JournalName(name)), Empty)

    async def list(
        self, prefix: str = "", *, selector: str = "", limit: int | None = None
    ) -> Sequence[JournalInfo]:
        """Every journal whose name starts with `prefix`, by name.

        Args:
            selector: a condition on labels, such as `topic=clicks,env in (eu, us),!draft`. The label `name`
                is the journal's name; `LABEL:prefix=VALUE` compares the beginning of a value.
            limit: at most so many, the first ones; by default all.

        Raises:
            InvalidArgument: the selector is malformed; the message says from which character on.
        """
        found: list[JournalInfo] = []
        after = ""
        while True:
            most = 1_000 if limit is None else max(1, limit - len(found))
            request = ListRequest(prefix=prefix, after=after, selector=selector, count_max=most)
            page = await self._ask("journal.list", request, ListReply)
            found += page.journals
            if not page.has_more or (limit is not None and len(found) >= limit):
                return found
            require_progress("journal.list", after, page.after)
            after = page.after

    async def get(self, name: str, *, timeout: float | None = None) -> JournalInfo:
        """The spec of a journal, with its revisions.

        Args:
            timeout: seconds for which the node may be away or owe an answer; by default 30.

        Raises:
            NotFound: there is no such journal.
        """
        return await self._ask("journal.get", NameRequest(JournalName(name)), JournalInfo, timeout)

    async def reset_head(self, name: str, *, head: int | None = None, may_act: bool = False) -> LossReply:
        """Report what is lost below the known head, or (`may_act`) let appends go on above it.

        Raises:
            InvalidArgument: the journal accepts appends, or content is damaged: use `accept_loss`.
        """
        request = LossRequest(JournalName(name), may_act=may_act, head=_offset(head))
        return await self._call("journal.reset_head", request, LossReply)

    async def accept_loss(self, name: str, *, head: int | None = None, may_act: bool = False) -> LossReply:
        """Report what a journal lost, or (`may_act`) let it go on without that. Nothing is deleted.

        Raises:
            InvalidArgument: the journal accepts appends, so there is no loss to accept.
        """
        request = LossRequest(JournalName(name), may_act=may_act, head=_offset(head))
        return await self._call("journal.accept_loss", request, LossReply)

    async def trim(
        self, name: str, below: int, *, create_revision: int | None = None, timeout: float = TRIM_SECONDS
    ) -> TrimReply:
        """Remove the stored fragments of a journal that end at or below offset `below`, for ever.

        Whole fragments go, from the journal's begin on. What is not stored yet stays, the newest stored
        fragment too, and all that a commit journal's author or readers of committed messages may still need.
        A later call removes more. The answer says where the journal begins now, and why more is kept.

        Args:
            create_revision: of the journal that is meant (`get`); a later one of that name is `NotFound`.
            timeout: seconds for the removal; by default 600. A refusal is repeated for 30 s at most.

        Raises:
            StoreUnhealthy: the journal is stopped, or its store does not answer. Some fragments may be
                removed, each of them whole: repeat the call.
            RegistersUnknown: the journal's registers are lost. Nothing was removed.
            Unknown: the answer did not come in time. A repetition does no harm.
        """
        request = TrimRequest(
            name_of(name), below=offset_of(below), create_revision=revision_of(create_revision)
        )
        within = Duration(int(seconds_of(timeout, TRIM_SECONDS) * SECOND))
        body, _ = await self._caller.call(
            "journal.trim", request, reply=TrimReply, timeout=within, patience=PATIENCE
        )
        return body

    async def offset_at(self, name: str, when: float, *, create_revision: int | None = None) -> int:
        """An offset of a journal at or above which all lies that was appended at or after a time.

        It is as near as fragments tell: some older content of the same fragment may lie at or above it, too.

        Args:
            when: seconds since 1970, by the clocks of the node and its store.
            create_revision: of the journal that is meant (`get`); a later one of that name is `NotFound`.

        Raises:
            StoreUnhealthy: the journal is being opened, or its store does not answer.
        """
        request = OffsetAtRequest(
            name_of(name), time=wall_of(when), create_revision=revision_of(create_revision)
        )
        return (await self._ask("journal.offset_at", request, OffsetAtReply, None)).offset

    async def status(self, name: str, *, timeout: float | None = None) -> JournalStatus:
        """The state of a journal: its begin, its committed end, its fragments, and any trouble.

        Args:
            timeout: as in `get`.
        """
        return await self._ask("journal.status", NameRequest(JournalName(name)), JournalStatus, timeout)

    async def append(
        self,
        name: str,
        content: Content = b"",
        *,
        offset: int | None = None,
        check: Mapping[str, str | None] | None = None,
        union: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        create_revision: int | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Append `content` to a journal, whole or not at all, and durably.

        An append without a condition is sent once. If its answer is lost, an append is sent again only if it
        cannot take effect twice: it has an explicit offset, or it changes a register that it checks. Each try
        carries the same attempt id, by which the node tells it from another writer's append of equal bytes.
        Content from an iterator cannot be sent twice. Empty content is a barrier: it returns the committed
        end as an empty span.

        Args:
            offset: the append must begin exactly here; None: at the head.
            check: each register must have this value; None: the register must be absent.
            union: registers to set with the append, after `subtract`. Needs content.
            subtract: registers to remove if they have exactly this value. Needs content.
            create_revision: of the journal that is meant (`get`); a later one of that name is `NotFound`.
            timeout: seconds; by default 30.

        Raises:
            WrongAppendOffset: the head is not at `offset`. Nothing changed.
            RegisterMismatch: `check` failed. Nothing changed.
            InvalidArgument: `content`, or a piece of it, is not bytes. Nothing changed.
            TooSlow, Cancelled: the content was not whole in time. Nothing changed.
            Unknown: the content may or may not have been appended.
            StoreUnhealthy: the disk or the log takes nothing now; the message says why. Nothing changed;
                reads go on.
            NotFound, Throttled, Unreachable: there is no such journal; too many appends are unanswered; the
                content was not sent in time. Nothing changed.
        """
        within = seconds_of(timeout, TIMEOUT_SECONDS)
        request = self._request(name, offset, check, union, subtract, create_revision)
        pieces = pieces_of(content)
        if pieces is None:
            assert not isinstance(content, Buffer)
            return await self._appending.append_source(request, content, within)
        is_any = request.condition is None and create_revision is None
        if is_any and len(pieces) == 1 and 0 < len(pieces[0]) <= self._inline_bytes_max:
            return await self._batches.of(name).append(pieces[0], within)
        return await self._appending.append_pieces(request, pieces, within)

    async def begin_append(
        self,
        name: str,
        *,
        offset: int | None = None,
        check: Mapping[str, str | None] | None = None,
        union: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        create_revision: int | None = None,
        timeout: float | None = None,
    ) -> AppendWriter:
        """Begin an append to a journal whose content the caller sends in pieces; else as `append`."""
        request = self._request(name, offset, check, union, subtract, create_revision)
        return AppendWriter(self._appending, request, seconds_of(timeout, TIMEOUT_SECONDS))

    def _request(  # noqa: PLR0917 - as `append` has them.
        self,
        name: str,
        offset: int | None,
        check: Mapping[str, str | None] | None,
        union: Mapping[str, str] | None,
        subtract: Mapping[str, str] | None,
        create_revision: int | None,
    ) -> AppendRequest:
        condition = condition_of(offset, check, union, subtract)
        if condition is not None and is_repeatable(condition):
            attempt = self._random.randbytes(ATTEMPT_BYTES)
            condition = msgspec.structs.replace(condition, attempt=attempt)
        return AppendRequest(
            journal=name_of(name), condition=condition, create_revision=revision_of(create_revision)
        )

    async def _read_span(self, name: str, begin: int, end: int) -> bytes:
        return b"".join([chunk.data async for chunk in self.read(name, begin, end=end)])

    async def append_many(
        self, name: str, contents: Sequence[Buffer], *, timeout: float | None = None
    ) -> Sequence[Commit]:
        """Append each of `contents` to a journal, in order and atomic by itself, in few frames.

        Args:
            contents: each at most 64 KiB.

        Raises:
            Refused: none was appended. Unknown: some were or may have been appended.
        """
        within, journal = seconds_of(timeout, TIMEOUT_SECONDS), name_of(name)
        return await self._batches.of(journal).append_many(contents_of(contents, INLINE_BYTES_MAX), within)

    async def end(self, name: str, *, timeout: float = TIMEOUT_SECONDS) -> int:
        """The committed end of a journal; waits until the journal is open.

        Args:
            timeout: seconds.

        Raises:
            StoreUnhealthy: the journal was not open in time; the message says what its opening waits for.
        """
        loop = asyncio.get_running_loop()
        give_up, backoff = loop.time() + timeout, Backoff(RETRY_MIN, RETRY_MAX)
        while True:
            found = await self.status(name, timeout=max(STATUS_SECONDS, give_up - loop.time()))
            if found.end is not None or loop.time() + in_seconds(backoff.pause) >= give_up:
                return found.require_end()
            await asyncio.sleep(in_seconds(backoff.next()))

    def read(
        self,
        name: str,
        offset: int | None = 0,
        *,
        end: int | None = None,
        block: bool = False,
        is_whole: bool = False,
        patience: float = TIMEOUT_SECONDS,
        create_revision: int | None = None,
    ) -> AsyncGenerator[Chunk]:
        """Read committed bytes of `[offset, end)` of a journal in order.

        The read ends at the committed end, or with `block` waits there for more, until `end` if that is
        given. After a lost connection it goes on where it broke off, in the same journal: if the journal was
        deleted and created again meanwhile, it raises `NotFound`. Nobody needs to repeat a read.

        Args:
            offset: None: from the committed end on, as it is when the read begins.
            is_whole: the caller knows that all of `[offset, end)` was committed. A node whose journal ends
                below `end`, or which cannot serve it now, is asked again within `patience`.
            patience: seconds without a byte for which the node may be unreachable or owe an answer. Time
                that the caller spends between two chunks does not count.
            create_revision: of the journal that is meant (`get`); a later one of that name is `NotFound`.

        Raises:
            OffsetNotYetAvailable: `offset` is above the committed end, and `block` is false; with `is_whole`,
                the journal still ends below `end` after `patience`.
            StoreUnhealthy: the journal, or its store, cannot be read now; with `is_whole` after `patience`.
            Trimmed: no fragment has the bytes at `offset`. Corrupt: they are damaged, and not served.
            DeadlineExceeded: nothing came for `patience` seconds.
        """
        reader = Reader(
            self._caller,
            name,
            offset=offset,
            end=end,
            block=block,
            is_whole=is_whole,
            patience=patience,
            create_revision=revision_of(create_revision),
        )
        return reader.chunks()

    async def registers(self, name: str, *, timeout: float | None = None) -> Registers:
        """The registers after every append that was acknowledged before the call.

        Args:
            timeout: as in `get`.
        """
        return await self._ask("journal.registers", NameRequest(JournalName(name)), Registers, timeout)

    async def fragments(self, name: str) -> Sequence[FragmentInfo]:
        """The closed fragments of a journal, by offset."""
        found: list[FragmentInfo] = []
        while True:
            beyond = found[-1].end if found else ByteOffset(0)
            request = FragmentsRequest(journal=JournalName(name), beyond=beyond)
            page = await self._ask("journal.fragments", request, FragmentsReply)
            found += page.fragments
            if not page.has_more:
                return found
            require_progress(f"journal.fragments of {name}", beyond, found[-1].end if found else beyond)

    async def producer_index(
        self, name: str, offset: int, *, patience: float = TIMEOUT_SECONDS
    ) -> EncodedIndex:
        """The producer index at the last index point at or below `offset`, made anew if it is missing.

        Args:
            patience: seconds for which the node may be away or owe an answer.

        Raises:
            OffsetNotYetAvailable: `offset` is above the committed end.
            Corrupt: the index is missing or damaged, and cannot be built again because the bytes are gone.
        """
        request = ProducerIndexRequest(journal=JournalName(name), offset=ByteOffset(offset))
        found, encoded = await read_index(self._caller, request, patience=patience)
        return EncodedIndex(offset=found.offset, encoded=encoded)

    async def index_points(self, name: str) -> Sequence[int]:
        """Every index point of the journal, ascending: frame boundaries at which readers may cut."""
        found: list[int] = []
        while True:
            beyond = ByteOffset(found[-1] if found else 0)
            request = IndexPointsRequest(JournalName(name), beyond=beyond)
            page = await self._ask("journal.index_points", request, IndexPointsReply)
            found += page.offsets
            if not page.has_more:
                return found
            require_progress(f"journal.index_points of {name}", beyond, found[-1] if found else beyond)

    async def _call(self, method: str, request: msgspec.Struct, reply: type[S]) -> S:
        """A call that must not be repeated after a lost answer."""
        body, _ = await self._caller.call(method, request, reply=reply)
        return body

    async def _ask(
        self, method: str, request: msgspec.Struct, reply: type[S], timeout: float | None = None
    ) -> S:
        """A call that changes nothing, so that it may be repeated, for `timeout` seconds in all."""
        within = Duration(round(seconds_of(timeout, TIMEOUT_SECONDS) * SECOND))
        body, _ = await self._caller.call(method, request, reply=reply, timeout=within, is_idempotent=True)
        return body
