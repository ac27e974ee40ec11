"""Broker: creates, opens, closes and deletes the journals of this node, and finds them by name.

A journal is ABSENT --create--> OPENING --opened--> OPEN --delete--> DELETING --> ABSENT. A restart continues
at OPENING or, if the spec key has the mark of a deletion, at DELETING. An opening is tried until it succeeds;
a request waits at most `opening_wait` for it. Every step is restartable. Decisions that can race with appends
are made in the pipeline. Source: journals.1, journals.5, journals.20; node.2.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from broadsheet.base.backoff import Backoff
from broadsheet.base.checksum import crc32c
from broadsheet.base.time import MILLISECOND, Duration, Instant, in_seconds
from broadsheet.base.types import ByteOffset, JournalName, Revision
from broadsheet.errors import (
    AlreadyExists,
    BroadsheetError,
    InvalidArgument,
    NotFound,
    ShuttingDown,
    Status,
    StoreUnhealthy,
    TooLarge,
    Unknown,
)
from broadsheet.journal.alteration import put_altered
from broadsheet.journal.context import Context
from broadsheet.journal.core.pipeline_events import Fullness
from broadsheet.journal.core.spec import (
    SPEC_PREFIX,
    JournalSpec,
    epoch_key,
    registers_key,
    spec_key,
    validate_name,
    validate_spec,
)
from broadsheet.journal.deletion import finish_delete, mark_deleted
from broadsheet.journal.disk_space import fullness
from broadsheet.journal.housekeeping import Housekeeping
from broadsheet.journal.keys import decode_info, encode_spec
from broadsheet.journal.listing import Listing, Page, list_page
from broadsheet.journal.loss_acceptance import LOST_SPANS_MAX, Loss, accept, report, spans_of
from broadsheet.journal.messages import JournalInfo, JournalStatus, LossReply, SpecChange
from broadsheet.journal.opening import OPEN_RETRY_MAX, OPEN_RETRY_MIN, Keys, open_journal, stream_of
from broadsheet.journal.opening_turns import OpeningTurns
from broadsheet.journal.orphans import Kept, drop_orphans
from broadsheet.journal.producer_indexing import Indexing
from broadsheet.journal.replica import Replica
from broadsheet.journal.slot import Slot
from broadsheet.journal.status import status_of, status_of_opening
from broadsheet.journal.trimming import Trimming
from broadsheet.keyspace.core.transaction import Absent, Delete, Put
from broadsheet.ports import NO_DESCRIPTOR
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.scope import OneByOne

ANSWER_TIME: Final = Duration(100 * MILLISECOND)
"""How long before a caller's deadline a refusal is sent, so that it arrives in time."""
ALTERING_LINES: Final = 4
"""So many journals are altered at a time, each by one alteration."""

T = TypeVar("T")


class Broker:
    """The journals of one node."""

    def __init__(self, context: Context) -> None:
        """Make a broker without journals; `start` finds them."""
        self._context, self.troubles = context, context.troubles
        self._slots: dict[JournalName, Slot] = {}
        self._opening = OpeningTurns(context.config.openings_max)
        self._altering = [OneByOne() for _ in range(ALTERING_LINES)]
        self._creating = 0
        """Creates under way, which may have no slot yet."""
        self._fullness = ""
        self._is_closed = False

    def start(self) -> Kept:
        """Open every journal that the Keyspace names, and drop the log streams of deleted journals.

        Returns:
            Streams that are kept though no key names them, because the Keyspace may have lost the key.
        """
        context = self._context
        known: dict[int, None] = {0: None}
        for pair in context.keyspace.range(SPEC_PREFIX):
            info = decode_info(pair)
            known[stream_of(info)] = None
            if info.spec.is_deleting:
                context.scope.spawn(finish_delete(context, info), name=f"delete.{info.name}")
            else:
                self.troubles.waits(info.name)
                self._take_up(info)
        context.scope.spawn(self._watch_space(), name="space")
        return drop_orphans(context, [*known])

    @property
    def count(self) -> int:
        """How many journals this node has."""
        return len(self._slots)

    @property
    def replicas(self) -> list[Replica]:
        """Those of the journals that are open."""
        return [slot.replica for slot in self._slots.values() if slot.replica is not None]

    @property
    def is_full(self) -> bool:
        """Whether appends are refused because the disk is too full."""
        return bool(self._fullness)

    @property
    def fullness(self) -> str:
        """Why appends are refused on a full disk, with the remedy; empty if they are accepted."""
        return self._fullness

    async def create(self, spec: JournalSpec, *, by: Instant | None = None) -> JournalInfo:
        """Create a journal; it is durable when the call returns.

        A store that `spec` names is asked first: for `listing_wait`, and not beyond the deadline `by`.

        Raises:
            AlreadyExists: a journal of that name exists. InvalidArgument, TooLarge: nothing changed.
            StoreUnhealthy: the store that `spec` names cannot be used now. Nothing changed.
        """
        validate_spec(spec)
        if spec.fragment.store:
            await self._try_store(spec, by)
        return await self._carried(partial(self._create, spec), f"create.{spec.name}")

    async def _try_store(self, spec: JournalSpec, by: Instant | None) -> None:
        """Refuse a store that no journal may name, or that a new one could not use."""
        config, store = self._context.config, spec.fragment.store
        if store not in config.stores:
            raise InvalidArgument(
                f"fragment.store {store!r} is not among this node's journals.stores:"
                f" {', '.join(config.stores) or 'none'}"
            )
        if self._context.keyspace.get(spec_key(spec.name)) is not None:
            return  # The journal exists, and `_create` says so: its store may be down.
        if fault := await self._context.health(store).trial(self._patience(config.listing_wait, by)):
            raise StoreUnhealthy(
                f"fragment.store {store!r} cannot be used now: {fault}; no journal was made: mend the store,"
                " or name another"
            )

    def _patience(self, wait: Duration, by: Instant | None) -> Duration:
        """`wait`, or less: a refusal in time says that nothing was done, and a deadline leaves a doubt."""
        if by is None:
            return wait
        return Duration(max(0, min(wait, by - self._context.time.now() - ANSWER_TIME)))

    async def _create(self, spec: JournalSpec) -> JournalInfo:
        if spec.name in self._slots:  # First: callers who want it made if it is absent ask at each start.
            raise AlreadyExists(f"journal {spec.name} exists")
        count, count_max = len(self._slots) + self._creating, self._context.config.journals_max
        if count >= count_max:
            raise TooLarge(f"{count} journals, and journals_max is {count_max}: delete some, or raise it")
        self._creating += 1
        try:
            return await self._put(spec)
        finally:
            self._creating -= 1

    async def _put(self, spec: JournalSpec) -> JournalInfo:
        passed("journal.create.before_put")
        key = spec_key(spec.name)
        # A key space that lost records may have these of a former journal of the name.
        left = [Delete(epoch_key(spec.name)), Delete(registers_key(spec.name))]
        outcome = await self._context.keyspace.transact([Absent(key)], [Put(key, encode_spec(spec)), *left])
        passed("journal.create.after_put")
        pair = self._context.keyspace.get(key)
        if not outcome.succeeded:
            is_deleting = pair is not None and decode_info(pair).spec.is_deleting
            state = "is being deleted: its store has not answered yet; try again" if is_deleting else "exists"
            raise AlreadyExists(f"journal {spec.name} {state}")
        if pair is None or pair.create_revision != outcome.revision:
            raise Unknown(f"journal {spec.name} was made, and deleted at once")
        info = decode_info(pair)
        if spec.name not in self._slots:
            self._take_up(info)
        return info

    async def alter(
        self, name: JournalName, create_revision: Revision | None, change: SpecChange
    ) -> JournalInfo:
        """Change a journal's spec, durably, and have it act by that from now on.

        Those of one journal are made one at a time: thousands that read one spec would be made anew, all in
        one turn, after each of them. All others stand in a few lines: each takes milliseconds of the loop if
        there are many labels, and waits for a sync.

        Raises:
            InvalidArgument: a field cannot be changed, or its new value is not legal. Nothing changed.
            NotFound: there is no such journal, or the name belongs to another one. Nothing changed.
        """
        slot = self._slot(name, create_revision)
        async with slot.altering:  # Those of one journal wait for one another first, and hold up no others.
            work = partial(self._alter, slot, change)
            line = self._altering[crc32c(name.encode()) % ALTERING_LINES]  # Revisions may all be odd.
            return await self._carried(work, f"alter.{name}", line=line)

    async def _alter(self, slot: Slot, change: SpecChange) -> JournalInfo:
        found = await put_altered(self._context.keyspace, slot.info, change)
        slot.info = found
        if slot.housekeeping is not None and slot.replica is not None:
            slot.housekeeping.on_spec(found)
        return found

    async def delete(self, name: JournalName, create_revision: Revision | None) -> None:
        """Take a journal out of its slot, and have `deletion` mark it and remove its content.

        If the store does not answer within `removal_wait`, the call returns, and the content goes later.

        Raises:
            NotFound: there is no such journal, or the name belongs to another one.
            Throttled: others alter it all the time. Nothing changed.
        """
        slot = self._slot(name, create_revision)
        work = partial(self._delete, slot)
        removing = await self._carried(work, f"delete.{name}", line=slot.deleting)
        await asyncio.wait((removing,), timeout=in_seconds(self._context.config.removal_wait))

    async def _delete(self, slot: Slot) -> asyncio.Task[None]:
        """Mark the journal as deleted; returns the task that removes its content."""
        name = slot.info.name
        if self._slots.get(name) is not slot:
            raise NotFound(f"journal {name} was deleted meanwhile")
        marked = await mark_deleted(self._context, slot.info)
        del self._slots[name]
        self.troubles.tried(name, is_failed=False)
        slot.opened.cancel()
        if slot.replica is not None:
            slot.replica.close(Status.NOT_FOUND)
        return self._context.scope.spawn(self._remove(slot, marked), name=f"remove.{name}")

    async def _remove(self, slot: Slot, marked: JournalInfo) -> None:
        """Wait for work that may still create a file of the journal, then remove its content and keys."""
        if slot.housekeeping is not None:
            await slot.housekeeping.finish()
        async with slot.attempt:
            pass
        while slot.tasks:  # What was begun before a loss was accepted may still store a fragment.
            await asyncio.wait(list(slot.tasks))
        await finish_delete(self._context, marked)

    async def _carried(
        self, work: Callable[[], Coroutine[Any, Any, T]], name: str, *, line: OneByOne | None = None
    ) -> T:
        """Run `work` on a journal to its end, even if the caller leaves, when those of `line` have ended.

        Raises:
            ShuttingDown: nothing was done. Unknown: the node shut down meanwhile.
        """

        def begin() -> Coroutine[Any, Any, T]:
            if self._is_closed:
                raise ShuttingDown(f"{name}: the node shuts down")
            return work()

        return await (line or OneByOne()).carried(
            begin,
            partial(self._context.scope.spawn, name=name),
            cut_off=lambda: Unknown(f"{name}: the node shut down before it was done"),
        )

    def info(self, name: str, create_revision: Revision | None = None) -> JournalInfo:
        """The journal of that name, created at `create_revision` if that is given.

        Raises:
            NotFound: there is no such journal.
        """
        slot = self._slots.get(JournalName(name))
        if slot is not None:
            info = slot.info
        else:
            pair = self._context.keyspace.get(spec_key(validate_name(name)))
            if pair is None:
                raise NotFound(f"journal {name} does not exist")
            info = decode_info(pair)
            if info.spec.is_deleting:
                raise NotFound(f"journal {name} is being deleted")
        if create_revision is not None and info.create_revision != create_revision:
            raise NotFound(
                f"journal {name} was created at revision {info.create_revision}, not at {create_revision}:"
                " it was deleted and made again"
            )
        return info

    def _slot(self, name: str, create_revision: Revision | None) -> Slot:
        slot = self._slots.get(self.info(name, create_revision).name)
        if slot is None:
            raise NotFound(f"journal {name} does not exist")
        return slot

    async def replica(
        self, name: str, create_revision: Revision | None = None, *, by: Instant | None = None
    ) -> Replica:
        """The open journal of that name; waits at most `opening_wait` until it is open.

        A refusal comes a little before the caller's deadline `by`.

        Raises:
            NotFound: there is no such journal. ShuttingDown: the node shuts down.
            StoreUnhealthy: the journal was not open in time. Nothing was done.
        """
        slot = self._slot(name, create_revision)
        if slot.replica is not None:
            return slot.replica
        self._opening.hasten(slot.info.create_revision)
        opened, patience = slot.opened, self._patience(self._context.config.opening_wait, by)
        try:
            async with asyncio.timeout(in_seconds(patience)):
                while not opened.done():
                    await slot.callers.wait()
        except TimeoutError:
            raise StoreUnhealthy(
                f"journal {name} is being opened for {patience // MILLISECOND} ms and more:"
                f" {slot.opening_error or 'its turn has not come'}; nothing was done; try again later"
            ) from None
        replica = None if opened.cancelled() else opened.result()
        if replica is None or replica.is_closed:  # It may have been closed before this task went on.
            if self._is_closed:
                raise ShuttingDown(f"journal {name}: the node shuts down")
            if slot.opened is not opened:  # A loss was accepted, so it is being opened again.
                return await self.replica(name, create_revision, by=by)
            raise NotFound(f"journal {name} was deleted")
        return replica

    async def indexing(
        self, name: str, create_revision: Revision | None = None, *, by: Instant | None = None
    ) -> Indexing:
        """A journal's producer index; waits until the journal is open.

        Raises:
            NotFound, ShuttingDown, StoreUnhealthy: as `replica`.
        """
        return (await self._housekeeping(name, create_revision, by)).indexing

    async def trimming(
        self, name: str, create_revision: Revision | None = None, *, by: Instant | None = None
    ) -> Trimming:
        """The remover of a journal's oldest fragments; waits until the journal is open.

        Raises:
            NotFound, ShuttingDown, StoreUnhealthy: as `replica`.
        """
        return (await self._housekeeping(name, create_revision, by)).trimming

    async def _housekeeping(
        self, name: str, create_revision: Revision | None, by: Instant | None
    ) -> Housekeeping:
        replica = await self.replica(name, create_revision, by=by)
        slot = self._slots.get(replica.name)
        if slot is None or slot.housekeeping is None:
            raise NotFound(f"journal {name} was deleted")
        return slot.housekeeping

    def list(self, listing: Listing) -> Page:
        """One page of the journals, in order of name."""
        return list_page(self._context.keyspace, listing)

    def status(self, name: str, create_revision: Revision | None = None) -> JournalStatus:
        """The state of a journal, with its offsets and the reason for any trouble."""
        info = self.info(name, create_revision)
        slot = self._slots.get(info.name)
        if slot is None or slot.replica is None:
            return status_of_opening(info, slot.opening_error if slot is not None else "")
        return status_of(slot.replica)

    async def accept_loss(
        self,
        name: str,
        create_revision: Revision | None,
        *,
        head: ByteOffset | None,
        may_act: bool,
        is_head_only: bool,
    ) -> LossReply:
        """The report of `loss_acceptance`; if `may_act`, close the journal for it to act, and open it again.

        Args:
            is_head_only: only move the head; refuse if damaged content would have to be given up, too.

        Raises:
            InvalidArgument: it accepts appends, `head` is too low, or more than the head is in doubt.
            NotFound, StoreUnhealthy: as `replica`.
        """
        replica = await self.replica(name, create_revision)
        reason, doubted, loss = await report(
            replica, self._keys(replica.info), head=head, is_head_only=is_head_only
        )
        if may_act:
            work = partial(self._accept, replica, head=head, doubted=doubted)
            loss = await self._carried(work, f"accept.{name}")
        return LossReply(
            journal=replica.name,
            reason=reason,
            head=loss.head,
            lost=spans_of(loss.lost),
            are_registers_lost=loss.are_registers_lost,
            kept_aside=[*loss.kept_aside[:LOST_SPANS_MAX]],
            is_done=may_act,
        )

    def _keys(self, info: JournalInfo) -> Keys:
        get = self._context.keyspace.get
        return Keys(get(epoch_key(info.name)), get(registers_key(info.name)))

    async def _accept(
        self, replica: Replica, *, head: ByteOffset | None, doubted: Mapping[ByteOffset, None]
    ) -> Loss:
        """Close the journal, write the accepted loss to its seal, and open it again."""
        slot = self._slots.get(replica.name)
        if slot is None or slot.replica is not replica:
            raise NotFound(f"journal {replica.name} changed meanwhile: look again")
        slot.begin_opening()
        slot.settled = replica.pipeline.attempts.settled()
        replica.close(Status.SHUTTING_DOWN)
        try:
            async with slot.attempt:  # A deletion waits for the lock.
                if slot.housekeeping is not None:
                    await slot.housekeeping.finish(self._context.config.removal_wait)
                    slot.housekeeping = None
                return await accept(replica, self._keys(replica.info), head=head, doubted=doubted)
        finally:
            if not self._context.scope.is_closed:  # The node shuts down: the next start opens it.
                self._context.scope.spawn(self._open(slot), name=f"open.{replica.name}")

    async def close(self) -> None:
        """Answer every caller and close every journal. The role closes the log after this."""
        self._is_closed = True
        for slot in self._slots.values():
            slot.opened.cancel()
            if slot.replica is not None:
                slot.replica.close(Status.SHUTTING_DOWN)
        self._context.close()

    def check(self) -> None:
        """Assert that the counts of stopped and unstored journals are right."""
        self.troubles.check([each for each in self.replicas if not each.is_closed])

    def _take_up(self, info: JournalInfo) -> None:
        slot = self._slots[info.name] = Slot(info)
        self._context.scope.spawn(self._open(slot), name=f"open.{info.name}")

    async def _open(self, slot: Slot) -> None:
        """Try to open a journal until that succeeds or the journal is deleted."""
        backoff = Backoff(OPEN_RETRY_MIN, OPEN_RETRY_MAX)
        while not slot.opened.done():
            try:
                async with self._opening.turn(slot.info.create_revision), slot.attempt:
                    if slot.opened.done():
                        return  # It was deleted meanwhile.
                    opened = await open_journal(self._context, slot.info)
            except (OSError, BroadsheetError) as error:
                if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
                    self._context.spools.relieve()
                    backoff.reset()  # Descriptors are free again as soon as other files are synced.
                slot.opening_error = str(error)
                if not slot.opened.done():
                    self.troubles.tried(slot.info.name, is_failed=True)
                await asyncio.sleep(in_seconds(backoff.next()))
                continue
            for attempt, when in slot.settled.items():
                opened.attempts.settle(attempt, when)
            replica = Replica(self._context, opened._replace(info=slot.info))  # It may be altered meanwhile.
            if slot.opened.done():
                replica.close(Status.NOT_FOUND)  # It was deleted meanwhile.
                return
            self._tell_space(replica)
            replica.host.start()
            uploading = self._context.uploading_to(replica.store)
            slot.housekeeping = Housekeeping(replica, uploading=uploading, tasks=slot.tasks)
            slot.housekeeping.start()
            slot.replica = replica
            self.troubles.tried(slot.info.name, is_failed=False)
            slot.opened.set_result(replica)

    async def _watch_space(self) -> None:
        """Refuse appends before the disk is full (journals.20)."""
        config, disk = self._context.config, self._context.disk
        while True:
            found = await disk.run(partial(fullness, config, disk))
            if found != self._fullness:
                self._fullness = found
                for each in self.replicas:
                    self._tell_space(each)
            await asyncio.sleep(in_seconds(config.free_check_interval))

    def _tell_space(self, replica: Replica) -> None:
        replica.fullness = self._fullness
        if replica.pipeline.is_full != self.is_full:
            replica.deliver(Fullness(is_full=self.is_full))
