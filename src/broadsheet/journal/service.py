"""Service: the handlers of the journal methods of the native door.

The table `ROWS` names each method's capability, which is checked before the handler is called. Offsets are
bytes; refusals name the journal and the values. Incoming content is bounded by the wire's frames and windows,
and by the pipeline's limits. Source: journals.1-30; `docs/protocols/journals.md`.
"""

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from broadsheet.access.capability import Capability
from broadsheet.base.labels import parse_selector
from broadsheet.base.time import SECOND, Duration, in_seconds
from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import (
    InvalidArgument,
    RegistersUnknown,
    Status,
    StoreUnhealthy,
    TooLarge,
)
from broadsheet.journal.append_ports import resolve
from broadsheet.journal.broker import Broker
from broadsheet.journal.committed_reads import read
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.attempts import NOTHING_KNOWN, validate_attempt
from broadsheet.journal.core.pipeline_events import AttemptAsked, Submitted
from broadsheet.journal.core.registers import Condition, validate_condition
from broadsheet.journal.listing import Listing, view_of
from broadsheet.journal.messages import (
    AlterRequest,
    AppendRequest,
    Commit,
    CreateRequest,
    FragmentInfo,
    FragmentsReply,
    FragmentsRequest,
    IndexPointsReply,
    IndexPointsRequest,
    ListReply,
    ListRequest,
    LossRequest,
    NameRequest,
    OffsetAtReply,
    OffsetAtRequest,
    ProducerIndexReply,
    ProducerIndexRequest,
    ReadMessage,
    ReadReply,
    ReadRequest,
    Registers,
    RunReply,
    RunRequest,
    SettleReply,
    SettleRequest,
    TrimReply,
    TrimRequest,
)
from broadsheet.journal.refusal_messages import refusal
from broadsheet.journal.replica import Replica
from broadsheet.journal.spool_file import first_above
from broadsheet.journal.staging_area import StagedBy
from broadsheet.journal.streamed_append import StreamedAppend
from broadsheet.journal.streamed_content import receive
from broadsheet.journal.trimming import offset_at
from broadsheet.ports import NO_DESCRIPTOR
from broadsheet.wire.method import EMPTY, Call, Method, Reply, RoomyStream, RunOpened, Shape, WireStream
from broadsheet.wire.run import Run

LIST_MAX: Final = 200
"""Journals of one page, so that a page costs the loop less than a millisecond."""
FRAGMENTS_MAX: Final = 200
"""Fragments of one page. 4,000 take 3 ms and more of the loop, and dozens of calls begin in a turn."""
POINTS_MAX: Final = 2_048
"""Index points of one page: some 40 us of the loop, and 10 KB for each of a thousand calls at a time."""
READ_HEAD_BYTES: Final = 128
"""Room in a message of a read for everything except the content."""
STATUS_PATIENCE: Final = Duration(SECOND // 2)
"""How long `journal.status` waits for a journal that is being opened, before it reports that."""

_NAME_OF: Final[dict[type[msgspec.Struct], Callable[[Any], str] | None]] = {
    CreateRequest: lambda request: request.spec.name,
    ListRequest: None,
    **dict.fromkeys(
        (
            NameRequest,
            LossRequest,
            AppendRequest,
            RunRequest,
            ReadRequest,
            FragmentsRequest,
            ProducerIndexRequest,
            IndexPointsRequest,
            SettleRequest,
            TrimRequest,
            OffsetAtRequest,
            AlterRequest,
        ),
        lambda request: request.journal,
    ),
}
"""The journal name in a request, which the caller's grant must include; None: the request names none."""


class Row(NamedTuple):
    """A method of journals without its handler."""

    name: str
    number: int
    shape: Shape
    capability: Capability
    request: type[msgspec.Struct]

    def method(self, handler: Callable[..., Any]) -> Method:
        """The journals' method, handled by `handler`."""
        return Method(
            self.name,
            number=self.number,
            shape=self.shape,
            capability=self.capability,
            request=self.request,
            name_of=_NAME_OF[self.request],
            handler=handler,
            is_receiving=self.capability is not Capability.READ,
        )


ROWS: Final = (
    Row("journal.create", 48, Shape.UNARY, Capability.APPLY, CreateRequest),
    Row("journal.delete", 49, Shape.UNARY, Capability.APPLY, NameRequest),
    Row("journal.list", 50, Shape.UNARY, Capability.LIST, ListRequest),
    Row("journal.get", 51, Shape.UNARY, Capability.LIST, NameRequest),
    Row("journal.status", 52, Shape.UNARY, Capability.LIST, NameRequest),
    Row("journal.append", 53, Shape.UNARY, Capability.APPEND, AppendRequest),
    Row("journal.append_stream", 54, Shape.STREAM, Capability.APPEND, AppendRequest),
    Row("journal.append_run", 55, Shape.RUN, Capability.APPEND, RunRequest),
    Row("journal.read", 56, Shape.STREAM, Capability.READ, ReadRequest),
    Row("journal.registers", 57, Shape.UNARY, Capability.READ, NameRequest),
    Row("journal.fragments", 58, Shape.UNARY, Capability.READ, FragmentsRequest),
    Row("journal.producer_index", 59, Shape.STREAM, Capability.READ, ProducerIndexRequest),
    Row("journal.index_points", 60, Shape.UNARY, Capability.READ, IndexPointsRequest),
    Row("journal.settle", 61, Shape.UNARY, Capability.APPEND, SettleRequest),
    Row("journal.reset_head", 62, Shape.UNARY, Capability.APPLY, LossRequest),
    Row("journal.accept_loss", 63, Shape.UNARY, Capability.APPLY, LossRequest),
    Row("journal.trim", 64, Shape.UNARY, Capability.APPLY, TrimRequest),
    Row("journal.offset_at", 65, Shape.UNARY, Capability.READ, OffsetAtRequest),
    Row("journal.alter", 66, Shape.UNARY, Capability.APPLY, AlterRequest),
)


class UnaryAppend:
    """One append to a journal whose whole content is in its request."""

    __slots__ = ("answered", "parts")
    count: Final = 1

    def __init__(self, content: Buffer) -> None:
        self.parts: tuple[Buffer, ...] = (content,)
        self.answered: asyncio.Future[Commit] = asyncio.get_running_loop().create_future()

    def answer(self, status: Status, begin: ByteOffset, end: ByteOffset, message: str) -> None:
        """Wake the handler, and drop the content: the pipeline's story keeps this object much longer."""
        self.parts = ()
        resolve(self.answered, status, begin, end, message)


class AppendRunSink:
    """Submits the runs of one run stream to one journal."""

    __slots__ = ("_bytes_max", "_replica")

    def __init__(self, replica: Replica) -> None:
        self._replica, self._bytes_max = replica, replica.context.config.run_bytes_max

    def on_run(self, run: Run) -> None:
        """Submit the run to the journal's pipeline as one event."""
        if self._replica.is_closed:
            status = self._replica.pipeline.closing_status
            run.answer(status, message=refusal(status, self._replica, self._replica.end))
            return
        if run.size > self._bytes_max:
            run.answer(Status.TOO_LARGE, message=f"{run.size} bytes in one run: {self._bytes_max} at most")
            return
        at = run.at
        self._replica.deliver(
            Submitted(
                run=run,
                count=run.count,
                length=run.size,
                condition=Condition(offset=ByteOffset(at)) if at is not None else None,
            )
        )

    def on_end(self) -> None:
        """Do nothing: the sink keeps no state for the stream."""


class Service:
    """The handlers of the journal methods."""

    def __init__(self, broker: Broker, config: JournalsConfig) -> None:
        """Serve the journals of `broker`."""
        self._broker, self._config = broker, config
        self._streams = 0

    def methods(self) -> Sequence[Method]:
        """The methods, each with its handler here."""
        return [row.method(getattr(self, row.name.partition(".")[2])) for row in ROWS]

    async def create(self, call: Call, request: CreateRequest, _payload: memoryview) -> Reply:
        """Create a journal."""
        return Reply(await self._broker.create(request.spec, by=call.deadline))

    async def alter(self, _call: Call, request: AlterRequest, _payload: memoryview) -> Reply:
        """Change a journal's spec."""
        return Reply(await self._broker.alter(request.journal, request.create_revision, request.change))

    async def delete(self, _call: Call, request: NameRequest, _payload: memoryview) -> Reply:
        """Delete a journal with its content."""
        await self._broker.delete(request.journal, request.create_revision)
        return Reply(EMPTY)

    async def reset_head(self, _call: Call, request: LossRequest, _payload: memoryview) -> Reply:
        """Let appends go on above every known offset."""
        return await self._accept(request, is_head_only=True)

    async def accept_loss(self, _call: Call, request: LossRequest, _payload: memoryview) -> Reply:
        """Let a journal go on without its damaged or missing content."""
        return await self._accept(request, is_head_only=False)

    async def _accept(self, request: LossRequest, *, is_head_only: bool) -> Reply:
        if request.head is not None and not 0 <= request.head < 1 << 62:
            raise InvalidArgument(f"a journal's head {request.head} is not in [0, 2**62)")
        return Reply(
            await self._broker.accept_loss(
                request.journal,
                request.create_revision,
                head=request.head,
                may_act=request.may_act,
                is_head_only=is_head_only,
            )
        )

    def list(self, call: Call, request: ListRequest, _payload: memoryview) -> Reply:
        """A page of the journals that the caller may see."""
        listing = Listing(
            prefix=request.prefix,
            after=request.after,
            count_max=min(max(1, request.count_max), LIST_MAX),
            view=view_of(call.principal),
            selector=parse_selector(request.selector),
        )
        page = self._broker.list(listing)
        return Reply(ListReply(journals=[*page.journals], has_more=page.has_more, after=page.after))

    def get(self, _call: Call, request: NameRequest, _payload: memoryview) -> Reply:
        """The spec of one journal."""
        return Reply(self._broker.info(request.journal, request.create_revision))

    async def status(self, _call: Call, request: NameRequest, _payload: memoryview) -> Reply:
        """The state of a journal; waits a short while if it is being opened."""
        with contextlib.suppress(TimeoutError, StoreUnhealthy):
            async with asyncio.timeout(in_seconds(STATUS_PATIENCE)):
                await self._broker.replica(request.journal, request.create_revision)
        return Reply(self._broker.status(request.journal, request.create_revision))

    async def append(self, call: Call, request: AppendRequest, payload: memoryview) -> Reply:
        """One append to a journal whose content is the payload."""
        if request.condition is not None:
            validate_condition(request.condition)
        if len(payload) > self._config.inline_bytes_max:
            raise TooLarge(
                f"{len(payload)} bytes in one request, above inline_bytes_max"
                f" {self._config.inline_bytes_max}: stream the content"
            )
        replica = await self._broker.replica(request.journal, request.create_revision, by=call.deadline)
        run = UnaryAppend(payload)
        replica.deliver(Submitted(run=run, count=1, length=len(payload), condition=request.condition))
        return Reply(await run.answered)

    async def append_stream(self, call: Call, request: AppendRequest, stream: WireStream) -> Reply:
        """One append to a journal whose content comes in messages; the last one says so."""
        if request.condition is not None:
            validate_condition(request.condition)
        replica = await self._broker.replica(request.journal, request.create_revision, by=call.deadline)
        self._streams += 1
        host = call.peer.rpartition(":")[0]  # Without tokens the remote host is the caller (ADR 0154).
        by = StagedBy(call.principal.account or host, call.connection)
        append = StreamedAppend(replica, self._streams, request.condition, by=by)
        return Reply(await receive(replica.context, append, stream, call.deadline))

    async def append_run(self, call: Call, request: RunRequest) -> RunOpened:
        """Open a stream of appends that arrive in runs; their one condition may be an offset."""
        replica = await self._broker.replica(request.journal, request.create_revision, by=call.deadline)
        reply = RunReply(journal=replica.info, run_bytes_max=self._config.run_bytes_max)
        return RunOpened(
            body=reply, sink=AppendRunSink(replica), joined_bytes_max=self._config.joined_bytes_max
        )

    async def read(self, call: Call, request: ReadRequest, stream: RoomyStream) -> Reply:
        """Committed bytes of a journal, chunk by chunk."""
        _require_offsets(request.offset, request.end)
        replica = await self._broker.replica(request.journal, request.create_revision, by=call.deadline)
        at = replica.end if request.offset is None else request.offset
        revision = replica.info.create_revision
        if request.offset is None or request.block:
            # Without this message a reader whose connection breaks would go on at a newer end.
            await stream.send(ReadMessage(offset=at, committed_end=replica.end, create_revision=revision))

        async def room(wanted: int) -> int:
            return await stream.room(wanted + READ_HEAD_BYTES) - READ_HEAD_BYTES

        try:
            async for chunk in read(replica, at, request.end, block=request.block, room=room):
                message = ReadMessage(
                    offset=chunk.offset, committed_end=replica.end, create_revision=revision
                )
                await stream.send(message, (chunk.data,))
                at = chunk.end
                replica.context.counts.read_bytes += len(chunk.data)
        except OSError as error:
            raise _store_down(request.journal, error) from error
        return Reply(ReadReply(offset=at, committed_end=replica.end))

    async def registers(self, call: Call, request: NameRequest, _payload: memoryview) -> Reply:
        """The journal's registers, after a barrier: every earlier append is acknowledged (journals.9)."""
        replica = await self._broker.replica(request.journal, request.create_revision, by=call.deadline)
        barrier = UnaryAppend(b"")
        replica.deliver(Submitted(run=barrier, count=1, length=0))
        await barrier.answered
        state = replica.pipeline.committed_registers
        if state is None:
            raise RegistersUnknown(refusal(Status.REGISTERS_UNKNOWN, replica, replica.end))
        return Reply(Registers(values=state.values, version=state.version, at=state.at))

    async def settle(self, call: Call, request: SettleRequest, _payload: memoryview) -> Reply:
        """The outcome of an append's attempt, after a barrier: if it has no effect by then, it never will."""
        validate_attempt(request.attempt)
        replica = await self._broker.replica(request.journal, request.create_revision, by=call.deadline)
        barrier = UnaryAppend(b"")
        replica.deliver(AttemptAsked(run=barrier, attempt=request.attempt))
        await barrier.answered
        attempts = replica.pipeline.attempts
        found = attempts.find(request.attempt)
        commit = Commit(begin=found.begin, end=found.end) if found is not None else None
        is_certain = commit is not None or attempts.is_settled(request.attempt)
        return Reply(SettleReply(commit, attempts.known_from if is_certain else NOTHING_KNOWN))

    async def fragments(self, call: Call, request: FragmentsRequest, _payload: memoryview) -> Reply:
        """A page of a journal's closed fragments."""
        _require_offsets(request.beyond)
        replica = await self._broker.replica(request.journal, request.create_revision, by=call.deadline)
        most = min(max(1, request.count_max), FRAGMENTS_MAX)
        try:
            replica.require_listed()
        except OSError as error:
            raise _store_down(request.journal, error) from error
        found, has_more = _fragments_of(replica, request.beyond, most)
        return Reply(FragmentsReply(fragments=found, has_more=has_more))

    async def trim(self, call: Call, request: TrimRequest, _payload: memoryview) -> Reply:
        """Remove a journal's stored fragments below an offset."""
        _require_offsets(request.below)
        trimming = await self._broker.trimming(request.journal, request.create_revision, by=call.deadline)
        found = await trimming.trim(request.below)
        return Reply(TrimReply(begin=found.begin, kept=found.kept))

    async def offset_at(self, call: Call, request: OffsetAtRequest, _payload: memoryview) -> Reply:
        """From which offset on a journal was appended at or after a time."""
        replica = await self._broker.replica(request.journal, request.create_revision, by=call.deadline)
        try:
            replica.require_listed()
            stored = await replica.store.stored_times(replica.name)
        except OSError as error:
            raise _store_down(request.journal, error) from error
        return Reply(OffsetAtReply(offset_at(replica, stored, request.time)))

    async def producer_index(self, call: Call, request: ProducerIndexRequest, stream: RoomyStream) -> Reply:
        """The producer index at or below an offset (journals.29), part by part as the caller takes them."""
        _require_offsets(request.offset)
        indexing = await self._broker.indexing(request.journal, request.create_revision, by=call.deadline)
        try:
            found = await indexing.at(request.offset)
            sent = 0
            while sent < found.size:
                most = await stream.room(min(found.size - sent, self._config.read_bytes_max))
                part = await indexing.part(found, sent, sent + most)
                await stream.send(None, (part,))
                sent += len(part)
        except OSError as error:
            raise _store_down(request.journal, error) from error
        return Reply(ProducerIndexReply(offset=found.offset, previous=found.previous))

    async def index_points(self, call: Call, request: IndexPointsRequest, _payload: memoryview) -> Reply:
        """A page of the index points, at which a reader may cut the journal."""
        _require_offsets(request.beyond)
        indexing = await self._broker.indexing(request.journal, request.create_revision, by=call.deadline)
        try:
            points = await indexing.points()
        except OSError as error:
            raise _store_down(request.journal, error) from error
        at = bisect_right(points, request.beyond)
        page = [*points[at : at + POINTS_MAX]]
        return Reply(IndexPointsReply(offsets=page, has_more=at + len(page) < len(points)))


def _require_offsets(*offsets: ByteOffset | None) -> None:
    for offset in offsets:
        if offset is not None and not 0 <= offset < 1 << 63:
            raise InvalidArgument(f"offset {offset} is not in [0, 2**63)")


def _fragments_of(replica: Replica, beyond: ByteOffset, count: int) -> tuple[list[FragmentInfo], bool]:
    """A journal's closed fragments that end above `beyond`, `count` at most; and whether there are more."""
    at = first_above(replica.closed, beyond)
    waiting = {each.begin: each for each in replica.closed[at : at + count + 1]}
    codec = replica.info.spec.fragment.codec
    found = [
        FragmentInfo(name=each.name, begin=each.begin, end=each.end, is_stored=True)
        for each in replica.index.page(beyond, count + 1)
        if each.begin not in waiting
    ]
    found += [
        FragmentInfo(name=each.fragment(codec).name, begin=each.begin, end=each.end, is_stored=False)
        for each in waiting.values()
    ]
    found.sort(key=lambda each: each.begin)
    return found[:count], len(found) > count


def _store_down(journal: str, error: OSError) -> StoreUnhealthy:
    if error.errno in NO_DESCRIPTOR:
        return StoreUnhealthy(
            f"journal {journal}: the process may open no more files: {error.strerror}; try again later, or"
            " raise the limit of open files (ulimit -n)"
        )
    return StoreUnhealthy(f"journal {journal}: its store does not answer: {error}; try again later")
