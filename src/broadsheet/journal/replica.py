"""Replica: one open journal on this node: the host of its pipeline, its spool files, its committed end.

Offsets are bytes. OPENED --close--> CLOSED. `opening.py` puts the epoch's keys before a replica is made. The
performers below carry out the pipeline's effects in order: `Persist` writes to spool and log, `PutRegisters`
to the Keyspace, `Advance` wakes readers. When uploads and checkpoints are made is in `housekeeping.py`,
reads are in `committed_reads.py`. Source: journals.6, 8, 9, 11, 14, 20.
"""

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from broadsheet.base.buggify import buggify
from broadsheet.base.types import Buffer, ByteOffset, Epoch, LogStreamId, Token
from broadsheet.errors import BroadsheetError, Status, StoreUnhealthy, Throttled, TooLarge
from broadsheet.journal.append_ports import AppendRun, StreamingAppend
from broadsheet.journal.context import Context
from broadsheet.journal.core.attempts import Attempts, Remembered
from broadsheet.journal.core.fragment import Fragment
from broadsheet.journal.core.fragment_index import Index
from broadsheet.journal.core.pipeline import Pipeline
from broadsheet.journal.core.pipeline_events import (
    Abort,
    Advance,
    Closed,
    EpochLost,
    FellBehind,
    Grant,
    Input,
    Output,
    Persist,
    Persisted,
    PersistRefused,
    PutRegisters,
    RegistersPut,
    Reply,
    Roll,
    Rollback,
    Stage,
    StreamFailed,
)
from broadsheet.journal.core.records import NO_ORIGIN, Checkpoint, ClosedSpool, encode_proposal
from broadsheet.journal.core.registers import RegisterState
from broadsheet.journal.core.spec import epoch_key, registers_key
from broadsheet.journal.descriptor_waits import Awaiting
from broadsheet.journal.fragments import FragmentStore
from broadsheet.journal.keys import encode_registers
from broadsheet.journal.messages import JournalInfo
from broadsheet.journal.refusal_messages import refusal
from broadsheet.journal.remedies import TooManyClosed, accept_loss, require_place, shortage_of
from broadsheet.journal.spool_file import Saved, SpoolFile, create
from broadsheet.keyspace.core.transaction import ModRevisionIs, Put
from broadsheet.observe.story import Story
from broadsheet.ports import NO_DESCRIPTOR, NO_ROOM, NO_SPACE
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.host import Host
from broadsheet.runtime.waiting_line import WaitingLine
from broadsheet.wal.record import StreamQuarantined

NONE_DOUBTED: Final[Mapping[ByteOffset, None]] = MappingProxyType({})


class OpenedReplica(NamedTuple):
    """The result of an opening, from which a replica starts."""

    info: JournalInfo
    stream: LogStreamId
    directory: str
    epoch: Epoch
    head: ByteOffset
    registers: RegisterState | None
    attempts: Attempts
    spool: SpoolFile
    closed: list[SpoolFile]
    """Spools that are not yet known to be stored, by offset."""
    stored: Index
    store: FragmentStore
    stop_reason: str
    """Why no content may be appended until an operator acts; empty if it may."""
    awaited: Sequence[ClosedSpool] = ()
    """The spans that the log names, and that have no spool file: only the store can have them."""
    is_listed: bool = True
    """Whether the store has listed its fragments."""
    doubted: Mapping[ByteOffset, None] = NONE_DOUBTED
    """Begins of the spool files that contradict stored fragments."""
    log_bytes: int = 0
    """Content in the log since the last checkpoint."""
    is_unsummed: bool = False
    """Whether spool files have content since then that the log has not: no sums of its blocks are kept."""
    notice: str = ""
    """What an operator should look at although the journal takes appends; empty if nothing."""
    named_end: ByteOffset = ByteOffset(0)
    """The greatest offset of a stored producer index, as far as the store has told it."""
    origin: ByteOffset = ByteOffset(0)
    """As `Checkpoint.origin`."""
    unproven: Sequence[ClosedSpool] = ()
    """Spool files of a stopped journal that no record names: their content is neither served nor gone."""


class Replica:
    """One open journal."""

    def __init__(self, context: Context, opened: OpenedReplica) -> None:
        """Start the journal's pipeline in the epoch that the opening began."""
        self.context = context
        self.info, self.name = opened.info, opened.info.name
        self.stream, self.directory, self.epoch = opened.stream, opened.directory, opened.epoch
        self.spool, self.closed, self.unproven = opened.spool, opened.closed, opened.unproven
        self.index, self.store, self.stop_reason = opened.stored, opened.store, opened.stop_reason
        self.awaited, self.is_listed, self.missing = opened.awaited, opened.is_listed, list[ClosedSpool]()
        self.opened_head, self.named_end, self.notice = opened.head, opened.named_end, opened.notice
        self.listing_wanted, self.listed = asyncio.Event(), asyncio.Event()
        """A reader wants what only the store tells; the store has told it, or the replica is closed."""
        self.doubted = opened.doubted  # Begins of spool files that contradict stored fragments.
        self.origin = opened.origin
        self._may_upload, self.is_closed, self._is_refusing = not opened.doubted, False, False
        self.log_registers = opened.registers  # After the last record in the log, durable or not.
        self.log_attempts = opened.attempts.copy()  # Of the records in the log, durable or not.
        self.log_bytes, self.is_unsummed = opened.log_bytes, opened.is_unsummed  # Since the last checkpoint.
        self.streamed_appends: dict[int, StreamingAppend] = {}
        self.on_persisted: Callable[[], None] = lambda: None
        self.on_advance: Callable[[], None] = lambda: None
        self.on_log_damaged: Callable[[], None] = lambda: None
        self.log_fault = ""  # Why nothing may be written to the log: it is being healed, or is sealed.
        self.fullness = ""  # Why appends are refused on a full disk, with the remedy.
        self.shortage = ""  # Why the last append was refused that found no space or no descriptor.
        self._awaiting = Awaiting(self.context, perform=self._try, refuse=self._refuse_for_want)
        self._readers = WaitingLine()
        """Those that wait at the committed end."""
        self.pipeline = Pipeline(
            head=opened.head,
            fragment_begin=opened.spool.begin,
            fragment_length=opened.info.spec.fragment.length,
            registers=opened.registers,
            attempts=opened.attempts,
            is_behind=bool(opened.stop_reason),
            limits=context.config.limits,
        )
        self.host: Host[Input, Output] = Host(
            self.pipeline,
            {
                Persist: self._persist,
                PutRegisters: self._put_registers,
                Reply: self._reply,
                Advance: self._advance,
                Stage: self._stage,
                Grant: self._grant,
                Abort: self._abort,
                Rollback: self._rollback,
                Roll: self._roll,
            },
            time=context.time,
            timers=context.timers,
            crash=context.crash_of_host,
            story=Story(f"journal {self.name}"),
        )
        self.deliver = self.host.deliver
        """Delivers an event to the pipeline."""
        context.troubles.judge(self)

    @property
    def end(self) -> ByteOffset:
        """The committed end."""
        return self.pipeline.committed_end

    @property
    def has_stopped(self) -> bool:
        """Whether it refuses content, or some of its own is damaged, or its registers are lost."""
        is_damaged = any((self.stop_reason, self.log_fault, self.damage, self.index.first_conflict()))
        return is_damaged or self.log_registers is None

    @property
    def damage(self) -> str:
        """The damage of the first damaged spool file; empty if none is known."""
        return next((each.fault for each in (*self.closed, self.spool) if each.fault), "")

    @property
    def begin(self) -> ByteOffset:
        """The first byte that can still be read, or whose loss nobody has accepted."""
        here = [each.begin for each in (*self.missing[:1], *self.unproven[:1])]
        here += [each.begin for each in (*self.closed[:1], self.spool)]
        return min([*here, self.index.begin] if len(self.index) else here)

    @property
    def may_upload(self) -> bool:
        """Whether fragments may be stored: not while the store's are unknown or contradict ours (J10)."""
        return self.is_listed and self._may_upload

    def require_listed(self) -> None:
        """Raise OSError if the store has not answered since the start: its fragments are not known."""
        if not self.is_listed:
            raise OSError(errno.EAGAIN, "the fragment store has not answered since the start")

    def on_listed(
        self,
        index: Index,
        fragments: Sequence[Fragment],
        contradiction: str,
        doubted: Mapping[ByteOffset, None] = NONE_DOUBTED,
    ) -> None:
        """Judge the fragments that the journal's store listed. Nothing was uploaded before.

        Args:
            index: of `fragments`. To make it of 100,000 takes half a second, so a thread does it.
            contradiction: why the fragments contradict the spool files; empty if they do not.
            doubted: begins of the spool files whose bytes differ.
        """
        assert not self.is_listed, "the store is listed once"
        self.is_listed, self.index, self.doubted = True, index, doubted
        self.listed.set()
        begins = dict.fromkeys(each.begin for each in self.awaited)  # Few; the fragments may be 100,000.
        stored = {(each.begin, each.end, each.sum): None for each in fragments if each.begin in begins}
        missing = [each for each in self.awaited if (each.begin, each.end, each.sum) not in stored]
        reason, self.missing = contradiction, missing  # A report of the loss tells each.
        if self.index.end > self.opened_head:
            reason = (
                f"journal {self.name}: the fragment store knows offset {self.index.end}, but the head that"
                f" was found at the start was {self.opened_head}: {contradiction or accept_loss(self.name)}"
            )
        elif missing:
            reason = (
                f"journal {self.name}: neither a spool file nor the fragment store has"
                f" [{missing[0].begin}, {missing[0].end}): {contradiction or accept_loss(self.name)}"
            )
        self.stop(reason)
        self._may_upload = not reason

    def stop(self, reason: str) -> None:
        """Take no more content until an operator acts, if there is a `reason`. Reads and uploads go on."""
        if reason and not self.stop_reason:
            self.stop_reason = reason
            self.deliver(FellBehind())
        self.context.troubles.judge(self)

    def on_named(self, offset: ByteOffset) -> None:
        """A stored producer index names `offset`. One above the opened head was committed once (J11)."""
        self.named_end = max(self.named_end, offset)
        if offset > self.opened_head and not self.stop_reason:
            self._may_upload = False  # The newer data directory may have stored other bytes (J10).
            self.stop(
                f"journal {self.name}: its producer index names offset {offset}, but the head at the start"
                f" was {self.opened_head}: put the newer data directory back, or {accept_loss(self.name)}"
            )

    async def wait_beyond(self, offset: ByteOffset) -> None:
        """Return once a byte at `offset` is committed, the replica is closed, or the node begins to close."""
        while self.end <= offset and not self.is_closed and not self.context.is_leaving:
            await self._readers.wait()

    def close(self, status: Status) -> None:
        """Answer every caller of the journal, and close its files."""
        if self.is_closed:
            return
        self.host.deliver(Closed(status=status))
        self.is_closed = True
        self._awaiting.clear()
        self.listed.set()
        self.host.close()
        self.wake()
        for spool in (*self.closed, self.spool):
            spool.close()
        self.context.troubles.judge(self)

    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the journal's state, valid once the files are synced. Between appends only."""
        spool, closed = self.spool, [each.as_closed() for each in self.closed]
        missed = self.missing if self.is_listed else self.awaited  # Nothing else tells a restart of them.
        return Checkpoint(
            epoch=self.epoch,
            fragment_begin=spool.begin,
            end=spool.end,
            sum=spool.digest(),
            first_append=spool.first_append,
            registers=self.log_registers,
            closed=tuple(sorted([*missed, *closed], key=lambda each: each.begin)),
            attempts=self.log_attempts.remembered(),
            attempts_from=self.log_attempts.known_from,
            origin=self.origin or NO_ORIGIN,
        )

    def _persist(self, effect: Persist) -> None:
        if self._is_refusing:
            return  # The pipeline takes this one back together with the refused one.
        if effect.stream is None:
            self._awaiting.perform(effect, self.spool.file)
        else:
            self._write(effect)  # At once: the spool has it already, and a checkpoint must not name it first.

    def _refuse_for_want(self, effect: Persist | Grant | Roll, why: str) -> None:
        """Refuse an effect that waited too long for a descriptor. Nothing of it was written."""
        self.shortage = why
        if isinstance(effect, Persist):
            self._refuse(effect, None, Status.STORE_UNHEALTHY)
        elif isinstance(effect, Grant):
            self.host.deliver(StreamFailed(stream=effect.stream, status=Status.STORE_UNHEALTHY))

    def _try(self, effect: Persist | Grant | Roll) -> bool:
        """Perform the pipeline's `effect`; False: no descriptor is free now, and nothing changed."""
        match effect:
            case Persist():
                return self._write(effect)
            case Grant():
                return self._give_tail(effect)
            case Roll():
                return self._begin_fragment(effect)

    def _write(self, effect: Persist) -> bool:
        """Append the content to the spool and log its record; False: no descriptor is free now."""
        if self.log_fault:
            self._refuse(effect, None, Status.STORE_UNHEALTHY)
            return True
        saved: Saved | None = None
        try:
            spool = self._spool_from(effect.fragment_begin)
            parts: list[Buffer] = []
            if effect.stream is None:
                run: AppendRun = effect.run  # type: ignore[assignment]  # Its submitter passed one.
                parts += run.parts
                saved = spool.save()
                passed("journal.append.before_spool")
                spool.append(parts, wall=self.context.time.wall())
            head = self._log(effect, spool, parts)
        except (StoreUnhealthy, Throttled, TooLarge, StreamQuarantined, OSError) as error:
            return self._refused(effect, error, saved)
        self.log_bytes += effect.end - effect.begin + len(head)
        self.is_unsummed = self.is_unsummed or effect.stream is not None
        if effect.registers is not None:
            self.log_registers = effect.registers
        if effect.attempt:
            self.log_attempts.remember(Remembered(effect.attempt, effect.begin, effect.end))
        self.on_persisted()
        return True

    def _log(self, effect: Persist, spool: SpoolFile, parts: list[Buffer]) -> bytes:
        """Append the proposal to the log; returns the record's bytes before the content."""
        passed("journal.append.before_log")
        head = encode_proposal(
            epoch=self.epoch,
            fragment_begin=spool.begin,
            begin=effect.begin,
            end=effect.end,
            first_append=spool.first_append,
            digest=spool.digest(),
            registers=effect.registers,
            is_spooled=effect.stream is not None,
            attempt=effect.attempt,
        )
        parts.insert(0, head)
        if buggify("journal.log_refuses"):
            raise Throttled("simulated: the log has no room")
        self.context.log.append(self.stream, parts, done=partial(self._persisted, effect.token))
        passed("journal.append.after_log")
        return head

    def _refused(self, effect: Persist, error: BroadsheetError | OSError, saved: Saved | None) -> bool:
        """Refuse an append after an error of spool or log; False: it may wait for a descriptor instead."""
        if isinstance(error, StreamQuarantined):
            self.on_log_damaged()
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR and effect.stream is None:
            return False  # The spool could not be opened, so nothing was written.
        if isinstance(error, OSError) and error.errno not in NO_ROOM:
            self.context.crash(error)  # EIO: nobody knows which bytes reached the disk (W5).
            return True
        self._lacks(error)
        status = error.status if isinstance(error, Throttled | TooLarge) else Status.STORE_UNHEALTHY
        self._refuse(effect, saved, status)
        return True

    def _lacks(self, error: Exception) -> None:
        """Note why there was no room for an append; a full disk is a trouble of the whole node."""
        self.shortage = shortage_of(error)
        if isinstance(error, OSError) and error.errno in NO_SPACE and not isinstance(error, TooManyClosed):
            self.context.troubles.lacked_room(self.context.time.now())

    def _refuse(self, effect: Persist, saved: Saved | None, status: Status) -> None:
        """Undo the staging of an append's `effect`; perform nothing until the pipeline has rolled back."""
        self._is_refusing = True
        dropped = self._awaiting.clear()  # The pipeline takes back these later appends as well.
        if saved is not None:
            self.spool.restore(saved)
        elif effect.stream is not None:
            self.streamed_appends[effect.stream].undo()
        self.host.deliver(PersistRefused(token=effect.token, status=status))
        for each in dropped:
            if isinstance(each, Grant):  # Its stream owns the tail until the pipeline hears that it failed.
                self.host.deliver(StreamFailed(stream=each.stream, status=status))

    def _spool_from(self, begin: ByteOffset) -> SpoolFile:
        """The open spool of the fragment from `begin` on; closes the former one if the pipeline has rolled.

        Raises:
            OSError: no space for another file, or too many wait for the store. Nothing changed.
        """
        former = self.spool
        if former.begin == begin:
            return former
        assert begin == former.end, f"a fragment that begins at {begin} follows one that ends at {former.end}"
        require_place(len(self.closed) + 1, self.context.config.closed_max)
        former.finish()
        passed("journal.roll.before_create")
        self.spool = create(self.context.spools, self.directory, begin)
        self.closed.append(former)  # It has content: otherwise the next one would begin where it does.
        passed("journal.roll.after_create")
        return self.spool

    def _persisted(self, token: Token) -> None:
        passed("journal.append.persisted")
        self.host.deliver(Persisted(token=token))

    def _reply(self, effect: Reply) -> None:
        run: AppendRun = effect.run  # type: ignore[assignment]  # Its submitter passed one.
        self.context.counts.answered(effect.status, run.count, effect.end - effect.begin)
        passed("journal.append.before_reply")
        message = "" if effect.status is Status.OK else refusal(effect.status, self, effect.begin)
        run.answer(effect.status, effect.begin, effect.end, message)
        passed("journal.append.after_reply")

    def _advance(self, _effect: Advance) -> None:
        passed("journal.append.before_advance")
        self._readers.wake()
        self.on_advance()

    def wake(self) -> None:
        """Let the readers that wait go on."""
        self._readers.wake()

    def _put_registers(self, effect: PutRegisters) -> None:
        self.context.scope.spawn(self._put(effect.registers), name=f"registers.{self.name}")

    async def _put(self, registers: RegisterState) -> None:
        """Put the registers key if the epoch key is unchanged; reports the outcome as one event."""
        epoch = ModRevisionIs(epoch_key(self.name), self.context.revision_of(self.epoch))
        put = Put(registers_key(self.name), encode_registers(registers))
        passed("journal.registers.before_put")
        try:
            outcome = await self.context.keyspace.transact([epoch], [put], is_upkeep=True)
        except BroadsheetError:
            self.host.deliver(RegistersPut(version=registers.version, is_known=False))
            return
        passed("journal.registers.after_put")
        if not outcome.succeeded:
            self.host.deliver(EpochLost())
            return
        self.host.deliver(RegistersPut(version=registers.version, is_known=True))
        passed("journal.registers.after_commit")

    def _stage(self, effect: Stage) -> None:
        streamed = self.streamed_appends.get(effect.stream)
        assert streamed is not None, f"stream {effect.stream} was opened by nobody"
        streamed.begin()

    def _grant(self, effect: Grant) -> None:
        if self._is_refusing:
            self.host.deliver(StreamFailed(stream=effect.stream, status=Status.STORE_UNHEALTHY))
        else:
            self._awaiting.perform(effect, self.spool.file)

    def _give_tail(self, effect: Grant) -> bool:
        """Give the journal's tail to a streaming append; False: no descriptor is free now."""
        streamed = self.streamed_appends.get(effect.stream)
        try:
            if streamed is None or self.log_fault:
                raise OSError(errno.ENOSPC, "refused, or gone")
            spool = self._spool_from(effect.fragment_begin)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                return False
            if error.errno not in NO_ROOM:
                self.context.crash(error)
                return True
            if streamed is not None:
                self._lacks(error)
            status = Status.STORE_UNHEALTHY if streamed is not None else Status.CANCELLED
            self.host.deliver(StreamFailed(stream=effect.stream, status=status))
            return True
        streamed.grant(spool)
        return True

    def _abort(self, effect: Abort) -> None:
        if (streamed := self.streamed_appends.get(effect.stream)) is not None:
            streamed.abort(effect.status)

    def _rollback(self, effect: Rollback) -> None:
        assert self.spool.end == effect.end, "what was refused is not in the spool"
        self._is_refusing = False

    def _roll(self, effect: Roll) -> None:
        self._awaiting.perform(effect, self.spool.file)

    def _begin_fragment(self, effect: Roll) -> bool:
        """Close the open fragment and begin the next; False: no descriptor is free now."""
        try:
            self._spool_from(effect.fragment_begin)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                return False
            if error.errno not in NO_ROOM:
                self.context.crash(error)
            return True  # The next append tries again to create the file.
        self.on_advance()  # The closed fragment may be committed already, and so ready for its upload.
        return True
