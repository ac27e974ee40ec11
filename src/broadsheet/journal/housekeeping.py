"""Housekeeping: the background work of a replica: checkpoints, uploads, producer index, rolls by the clock.

Offsets are bytes. The first three are restartable procedures, and so are the first listing of the store and
the healing of the log; of each at most one is under way for an open journal. The pipeline hears three things
from here: `RollAsked`, at a multiple of `flush_interval`; `LengthChanged`, if the spec was altered; and
`FellBehind`, if the store knows what the journal lacks (`Replica.stop`). The log is trimmed only below the
records that a checkpoint covers, and a spool file is removed only after its fragment was read back from the
store (journals.14, J10). A fragment is uploaded only up to the committed end (journals.8).
Source: journals.8, journals.14.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import MILLISECOND, SECOND, Duration, in_seconds
from broadsheet.base.types import ByteOffset, Offset
from broadsheet.errors import BroadsheetError, Corrupt, StoreUnhealthy, Throttled, TooLarge
from broadsheet.journal.config import MIB
from broadsheet.journal.contradiction import contradiction
from broadsheet.journal.core.block_sums import BlockSums
from broadsheet.journal.core.fragment_index import Index
from broadsheet.journal.core.pipeline_events import LengthChanged, RollAsked
from broadsheet.journal.core.records import Checkpoint, encode_checkpoint
from broadsheet.journal.log_healing import HEAL_RETRY, Healing
from broadsheet.journal.messages import JournalInfo
from broadsheet.journal.producer_indexing import Indexing
from broadsheet.journal.replica import Replica
from broadsheet.journal.set_aside import sync_files
from broadsheet.journal.spool_file import SpoolFile, keep_sums, spool_name
from broadsheet.journal.spool_mending import mend
from broadsheet.journal.spool_sums import sums_name
from broadsheet.journal.trimming import Trimming
from broadsheet.ports import NO_DESCRIPTOR, Timer
from broadsheet.runtime.failpoints import passed
from broadsheet.wal.record import StreamQuarantined

RELIEF_RETRY: Final = Duration(200 * MILLISECOND)
"""Pause before a checkpoint is tried again after the log had no room for it."""
REST: Final = Duration(5 * SECOND)
"""After so long without an append, or twice that, a checkpoint keeps the sums of blocks (ADR 0200)."""
WRITE_BACK_BYTES: Final = MIB
"""The disk is asked to begin writing a spool at multiples of this (ADR 0194)."""
FLUSHED_MAX: Final = 256
"""Files of a checkpoint in one turn of the loop. A store that is down leaves tens of thousands."""
REMOVED_SHARE: Final = 64
"""A checkpoint names every closed fragment. So while many are being uploaded, none is made after each upload,
but only when the stored ones are more than such a part of those that are left, or when an upload failed."""
FLUSH_RETRY: Final = Duration(1 * SECOND)
"""Pause before the next try to close a fragment that could not be closed at its interval."""


class Housekeeping:
    """Checkpoints and uploads of one replica."""

    def __init__(
        self, replica: Replica, *, uploading: asyncio.Semaphore, tasks: dict[asyncio.Task[None], None]
    ) -> None:
        """Look after `replica` until it is closed.

        Args:
            uploading: bounds the uploads of the node to this store.
            tasks: has the work under way, and that which replicas before this one have left.
        """
        self._replica, self._context = replica, replica.context
        self._uploading, self._tasks = uploading, tasks
        self._is_uploading = self._is_checkpointing = self._is_indexing = self._is_writing_back = False
        self._is_watched = False  # Whether `_rest` looks again.
        self.indexing = Indexing(replica, spawn=self._spawn)
        self._stored: dict[str, ByteOffset] = {}  # Begins of files that are stored, and the log may name.
        self.trimming = Trimming(
            replica, self.indexing, named_from=self._named_from, uploading=uploading, spawn=self._spawn
        )
        self._old_sums: dict[str, None] = {}  # Files of block sums that only older checkpoints are about.
        replica.on_persisted = self._on_persisted
        replica.on_advance = self._on_advance
        self._timer: Timer | None = None
        self._listing: asyncio.Task[None] | None = None
        self.healing = Healing(replica)
        replica.on_log_damaged = self.heal
        log = self._context.log
        log.on_flush_request(replica.stream, lambda _stream: self.checkpoint())
        log.on_quarantine(replica.stream, lambda _stream: self.heal())

    async def finish(self, within: Duration | None = None) -> None:
        """Return once all background work of a closed replica has ended.

        Args:
            within: after this time work that still waits for the store is cancelled, and goes on until the
                store answers. That is safe while the journal lives: a fragment has the content of its name.
        """
        assert self._replica.is_closed, "a live replica has more work to come"
        if self._timer is not None:
            self._timer.cancel()
        self.trimming.close()
        if self._listing is not None:
            self._listing.cancel()  # By itself it would end only when the store answers.
        try:
            async with asyncio.timeout(None if within is None else in_seconds(within)):
                while self._tasks:
                    await asyncio.wait(list(self._tasks))
        except TimeoutError:
            for task in list(self._tasks):
                task.cancel()
        self.indexing.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._context.scope.spawn(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def start(self) -> None:
        """Begin with the work that an earlier opening left: a long log, closed spools."""
        if not self._replica.stop_reason:
            self.consider_checkpoint()  # A short log needs none: the next start can read it again.
            self._flush_later()
        if self._replica.is_listed:
            self._on_listed()
        else:
            self._listing = self._spawn(self._list(), f"list.{self._replica.name}")
            self._on_advance()
        self._rest(self._replica.spool.end)

    async def _list(self) -> None:
        """Tell the replica which fragments the store has, as soon as the store answers."""
        replica = self._replica
        fragments = await replica.store.list_when_it_answers(replica.name, wanted=replica.listing_wanted)
        while not replica.is_closed:
            try:
                index = await self._context.disk.run(lambda: Index(fragments))
                found = await contradiction(
                    self._context.disk, replica.name, [*replica.closed, replica.spool], fragments
                )
            except OSError:
                self._context.spools.relieve()
                await asyncio.sleep(in_seconds(RELIEF_RETRY))
                continue
            if not replica.is_closed:
                replica.on_listed(index, fragments, found.reason, found.spools)
                self._on_listed()
            return

    def _on_listed(self) -> None:
        """Have the log name no more what only the store has; then store, and trim, what may be."""
        replica = self._replica
        self._stored |= {spool_name(replica.directory, each.begin): each.begin for each in replica.awaited}
        if self._stored:
            self.checkpoint()
        self._on_advance()
        self.trimming.consider()

    @property
    def _flush_interval(self) -> Duration:
        """At whose multiples old content is closed: otherwise a slow journal's would never be too old."""
        spec = self._replica.info.spec.fragment
        return spec.flush_interval or spec.retention

    def _flush_later(self) -> None:
        """Look again at the next multiple of the journal's `flush_interval`."""
        if interval := self._flush_interval:
            self._flush_after(Duration(interval - self._context.time.wall() % interval))

    def _flush_after(self, wait: Duration) -> None:
        if self._timer is not None:
            self._timer.cancel()
        struck = partial(self._context.closing.add, (self._flush,))
        self._timer = self._context.timers.call_after(wait, struck)

    def _flush(self) -> None:
        """Close the journal's open fragment if its first byte came in an earlier interval."""
        replica, spool = self._replica, self._replica.spool
        if replica.is_closed or replica.stop_reason:
            return  # A stopped journal gets no content, and rolls no more.
        if not (interval := self._flush_interval):
            return  # It was altered while this waited for its turn.
        this = self._context.time.wall() // interval
        if spool.length and spool.first_append // interval != this:
            replica.deliver(RollAsked())
            if replica.spool is spool:  # A stream owns the tail, or there is no room for another file.
                self._flush_after(FLUSH_RETRY)
                return
        self._flush_later()

    def _on_advance(self) -> None:
        if self._replica.closed:
            self.consider_upload()
        self.consider_index()

    def consider_index(self) -> None:
        """Extend the producer index if an index point was passed."""
        if not self._is_indexing and not self._replica.is_closed and self.indexing.is_behind():
            self._is_indexing = True
            self._spawn(self._index(), f"index.{self._replica.name}")

    async def _index(self) -> None:
        try:
            await self.indexing.catch_up()
        except (BroadsheetError, OSError):
            return  # The store does not answer, or no descriptor is free. The next append or roll retries.
        finally:
            self._is_indexing = False

    def _on_persisted(self) -> None:
        """Have the disk begin with what the spool has grown by; then see whether a checkpoint is due."""
        spool = self._replica.spool
        if spool.length - spool.hinted_bytes >= WRITE_BACK_BYTES and not self._is_writing_back:
            self._is_writing_back = True
            self._spawn(self._write_back(spool), f"write_back.{self._replica.name}")
        self.consider_checkpoint()
        if self._replica.is_unsummed and not self._is_watched:
            self._rest(None)

    def _rest(self, end: ByteOffset | None) -> None:
        """Make a checkpoint if the journal lacks sums of blocks, and still ends there; or look later."""
        replica = self._replica
        if replica.is_unsummed and replica.spool.end == end:
            self.checkpoint()
        self._is_watched = replica.is_unsummed and not (replica.is_closed or replica.stop_reason)
        if self._is_watched:
            self._context.timers.call_after(REST, partial(self._rest, replica.spool.end))

    async def _write_back(self, spool: SpoolFile) -> None:
        try:
            begin, end = spool.hinted_bytes, spool.length - spool.length % WRITE_BACK_BYTES
            if end > begin and not self._replica.is_closed:
                spool.hinted_bytes = end  # The page that grows now is left out: a write would wait for it.
                await spool.file.write_back(begin, end)
        finally:
            self._is_writing_back = False

    def consider_checkpoint(self) -> None:
        """Make a checkpoint if the log of this journal has grown by `checkpoint_bytes`."""
        if self._replica.log_bytes >= self._context.config.checkpoint_bytes:
            self.checkpoint()

    def consider_upload(self) -> None:
        """Upload the closed fragments that are committed."""
        if not self._is_uploading and not self._replica.is_closed and self._next_upload() is not None:
            self._is_uploading = True
            self._spawn(self._upload_all(), f"upload.{self._replica.name}")

    def on_spec(self, info: JournalInfo) -> None:
        """Act by the journal's altered spec from now on; what was closed or stored stays as it is."""
        replica = self._replica
        if replica.is_closed:
            return
        replica.info = info
        replica.deliver(LengthChanged(length=info.spec.fragment.length))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not replica.stop_reason:
            self._flush_later()
        self.trimming.on_spec()

    def heal(self) -> None:
        """Begin the log's stream anew, because it lost an old record of this journal."""
        if self.healing.begin():
            self._spawn(self._heal(), f"heal.{self._replica.name}")

    async def _heal(self) -> None:
        while True:
            if not self._is_checkpointing and await self.healing.attempt():
                break
            await asyncio.sleep(in_seconds(HEAL_RETRY))
        self._consider_removal()  # What was stored meanwhile waits for a checkpoint that does not name it.
        self.consider_checkpoint()

    def checkpoint(self) -> None:
        """Sync the spool, write the journal's checkpoint, and trim its log. Must be called between appends.

        Does nothing while a streaming append is copied to the tail, because the spool then holds bytes that
        the log does not have. What is stored meanwhile is looked at again: the append may be given up.
        """
        replica, spool = self._replica, self._replica.spool
        if self._is_checkpointing or self.healing.is_active or replica.is_closed or replica.stop_reason:
            return
        if any(each.is_placing for each in replica.streamed_appends.values()):
            self._context.timers.call_after(RELIEF_RETRY, self._consider_removal)
            return
        self._is_checkpointing = True
        replica.log_bytes, replica.is_unsummed = 0, False
        closed = [each for each in replica.closed if not each.is_synced]
        checkpoint, wanted = replica.checkpoint(), spool.wanted_sums()
        for each in (*closed, spool):
            if each.begin < each.summed_end < each.end:
                self._old_sums[sums_name(replica.directory, each.begin, each.summed_end)] = None
        below = self._context.log.next_offset(replica.stream)
        stored = (*self._stored, *self._old_sums)
        work = self._checkpoint(
            [*closed, spool], closed=closed, checkpoint=checkpoint, wanted=wanted, below=below, stored=stored
        )
        self._spawn(work, f"checkpoint.{replica.name}")

    async def _uncache(self, spool: SpoolFile, synced_bytes: int) -> None:
        """Free the page cache of synced bytes far before the end of a large spool (ADR 0145)."""
        begin, end = spool.uncached_bytes, synced_bytes - self._replica.context.config.spool_cached_bytes
        if end > begin and not self._replica.is_closed:
            spool.uncached_bytes = end
            await spool.file.uncache(begin, end)

    async def _checkpoint(
        self,
        files: list[SpoolFile],
        *,
        closed: list[SpoolFile],
        checkpoint: Checkpoint,
        wanted: BlockSums | None,
        below: Offset,
        stored: Sequence[str],
    ) -> None:
        """Sync the spool files, then write the journal's checkpoint to the log.

        Args:
            closed: those of `files` whose content is final. The open one may grow and roll while it is
                flushed: the flush covers only the bytes that the checkpoint names, so it does not count as
                synced, and the next checkpoint flushes it again.
            wanted: the sums of the open one's blocks, up to the end that the checkpoint names.
        """
        replica, context = self._replica, self._context
        try:
            passed("journal.checkpoint.before_sync")
            await self._sync(files, wanted)
            passed("journal.checkpoint.after_sync")
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                context.spools.relieve()
                context.timers.call_after(RELIEF_RETRY, self.checkpoint)
            else:
                context.crash(error)
            return
        finally:
            self._is_checkpointing = False
        for spool in files:
            spool.is_dir_synced = True
        for spool in closed:
            spool.is_synced = True
        if replica.is_closed:
            return
        try:
            context.log.append(
                replica.stream,
                [encode_checkpoint(checkpoint)],
                done=partial(self._trim, below, stored),
                relief=True,
            )
        except (StoreUnhealthy, Throttled):
            # The log is full, and this checkpoint is what would free it: try again soon.
            self._context.timers.call_after(RELIEF_RETRY, self.checkpoint)
        except TooLarge:
            pass  # The log took larger records once: what is stored next is named no more, and asks again.
        except StreamQuarantined:
            self.heal()
        else:
            passed("journal.checkpoint.after_log")

    async def _sync(self, files: list[SpoolFile], wanted: BlockSums | None) -> None:
        """Sync spool files and their names, also those that are stored and closed meanwhile.

        A checkpoint names those, too, and a start without the store has nothing else.
        """
        replica, disk = self._replica, self._context.disk
        released: list[str] = []
        for number, spool in enumerate(files, 1):
            if spool.is_released:
                released.append(spool.name)
            else:
                length = spool.length
                await spool.file.flush()
                sums = wanted if number == len(files) else spool.wanted_sums()
                await keep_sums(disk, replica.directory, spool, sums)
                await self._uncache(spool, length)
            if not number % FLUSHED_MAX:
                await asyncio.sleep(0)  # What is synced already takes no turn.
        if released and not replica.is_closed:
            await disk.run(partial(sync_files, disk, released))
        await disk.run(partial(disk.sync_dir, replica.directory))

    def _trim(self, below: Offset, stored: Sequence[str]) -> None:
        passed("journal.checkpoint.before_trim")
        if self._replica.is_closed:
            return
        self._context.log.trim(self._replica.stream, below)
        if gone := [name for name in stored if name in self._stored or name in self._old_sums]:
            for name in gone:
                self._stored.pop(name, None)
                self._old_sums.pop(name, None)
            self._spawn(self._remove(gone), f"remove.{self._replica.name}")
        self._consider_removal()  # More files were stored meanwhile: the log must stop naming them, too.
        self.trimming.consider()

    def _consider_removal(self) -> None:
        """Make a checkpoint if the stored files that the log still names are many, or the last ones."""
        count = len(self._stored)
        if count and (not self._is_uploading or count * REMOVED_SHARE > len(self._replica.closed)):
            self.checkpoint()

    def _named_from(self) -> ByteOffset | None:
        """The begin of the first stored fragment that the journal's log still names."""
        return min(self._stored.values(), default=None)

    def _next_upload(self) -> SpoolFile | None:
        """The first closed spool that is committed to its end and is sound; None if there is none."""
        if not self._replica.may_upload:
            return None
        for spool in self._replica.closed:
            if spool.end <= self._replica.end and not spool.fault and not spool.bad_copy:
                return spool
        return None

    async def _upload_all(self) -> None:
        config = self._context.config
        backoff = Backoff(config.upload_retry_min, config.upload_retry_max)
        try:
            while not self._replica.is_closed and (spool := self._next_upload()) is not None:
                async with self._uploading:
                    is_done = await self._upload(spool)
                if spool.store_fault or spool.fault or self._replica.index.first_conflict():
                    self._context.troubles.judge(self._replica)  # It looks at each closed file: not always.
                if is_done:
                    backoff.reset()
                    continue
                if self._stored:
                    self.checkpoint()  # Their files may have the very room that the store wants.
                await asyncio.sleep(in_seconds(backoff.next()))
        finally:
            self._is_uploading = False
        self.checkpoint()
        self.consider_index()

    async def _upload(self, spool: SpoolFile) -> bool:
        """Store one fragment, then release its spool file; False: the store did not answer, try again."""
        replica = self._replica
        try:
            fragment = await replica.store.put(replica.name, spool, replica.info.spec.fragment.codec)
        except OSError as error:
            spool.unstored = _not_stored(spool, error)
            return False
        except Corrupt as error:
            try:
                if await mend(replica, spool.begin, spool.end):
                    return False  # The log had the content: try again.
            except OSError as away:
                spool.unstored = _not_stored(spool, away)
                return False
            if spool.fault:
                return True  # The status tells it, and the file's other blocks are served.
            spool.unstored = _not_stored(spool, error)
            return False  # No descriptor or no space was free: the log may still have the content.
        try:
            await replica.store.read_back(replica.name, fragment)
        except OSError as error:
            spool.unstored = _not_stored(spool, error)
            return False
        except Corrupt as error:
            spool.bad_copy = (
                f"the fragment store did not take [{spool.begin}, {spool.end}) as it is, which stays here and"
                f" is served: {error}"
            )
            return True
        if replica.is_closed:
            return True
        passed("journal.index.before_add")
        replica.index.add(fragment)
        self._context.counts.fragments_stored += 1
        self._context.counts.fragment_bytes_stored += fragment.end - fragment.begin
        replica.closed.remove(spool)
        spool.close()
        self._stored[spool.name] = spool.begin
        if spool.summed_end > spool.begin:
            self._old_sums[sums_name(replica.directory, spool.begin, spool.summed_end)] = None
        self._consider_removal()  # The file is removed only after the log no longer names it.
        self.trimming.consider()
        return True

    async def _remove(self, names: Sequence[str]) -> None:
        """Remove stored spool files; a start removes those that are left."""
        for name in names:
            passed("journal.roll.before_remove")
            while True:
                try:
                    with suppress(FileNotFoundError):  # Moved aside before, or a deletion has removed it.
                        await self._context.disk.run(partial(self._context.disk.remove, name))
                    break
                except OSError as error:
                    if error.errno not in NO_DESCRIPTOR:
                        raise
                    await asyncio.sleep(in_seconds(RELIEF_RETRY))
            passed("journal.roll.after_remove")


def _not_stored(spool: SpoolFile, error: Exception) -> str:
    return (
        f"the fragment store did not take [{spool.begin}, {spool.end}), which stays here and is tried again:"
        f" {error}"
    )
