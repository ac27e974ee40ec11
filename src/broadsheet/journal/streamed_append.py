"""Streamed append: an append whose content comes in chunks, staged beside the tail until it is whole.

    OPENED --begin--> STAGING --finish--> WHOLE --grant--> PLACING --copied, synced--> PLACED --answer--> DONE

Before PLACED, an abort or the end of the client's stream drops the staged content, and reports `StreamFailed`
once. Only while PLACING, after the pipeline's grant, does the append own the journal's tail; that takes as
long as the disk needs. It returns the spool either as it was, or with its content at the end, synced. Lengths
are bytes. The pipeline decides whether the append is committed. Source: journals.14, journals.17,
journals.20; Gazette, "stateStreamContent".
"""

import asyncio
import errno
from collections.abc import Sequence
from enum import Enum
from typing import Final

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import BY_STATUS, BroadsheetError, Status, Throttled
from broadsheet.journal.append_ports import resolve
from broadsheet.journal.core.pipeline_events import (
    ChunkStaged,
    StreamEnded,
    StreamFailed,
    StreamOpened,
    StreamPlaced,
)
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.messages import Commit
from broadsheet.journal.refusal_messages import refusal
from broadsheet.journal.replica import Replica
from broadsheet.journal.spool_file import Saved, SpoolFile
from broadsheet.journal.staging_area import StagedBy
from broadsheet.ports import NO_DESCRIPTOR, NO_ROOM, NO_SPACE
from broadsheet.runtime.failpoints import passed


class Phase(Enum):
    """How far a streaming append has come."""

    OPENED = "opened"
    STAGING = "staging"
    WHOLE = "whole"
    PLACING = "placing"
    PLACED = "placed"
    DONE = "done"


_UNPLACED: Final = (Phase.OPENED, Phase.STAGING, Phase.WHOLE)


class StreamedAppend:
    """One streaming append at its journal's replica."""

    count: Final = 1

    def __init__(
        self, replica: Replica, stream: int, condition: Condition | None, *, by: StagedBy | None = None
    ) -> None:
        """Open a streaming append at the pipeline; `begun` tells whether content may come.

        Args:
            by: the caller whose share of the staging area it uses.

        Raises:
            Throttled: too many streams are staged.
        """
        loop = asyncio.get_running_loop()
        self.phase = Phase.OPENED
        self.begun: asyncio.Future[None] = loop.create_future()
        """Done once content may come; has the refusal as its exception if it may not."""
        self.aborted: asyncio.Future[Status] = loop.create_future()
        """Done, with the reason, once no more content is accepted."""
        self.answered: asyncio.Future[Commit] = loop.create_future()
        self._replica, self._stream = replica, stream
        self._staged = replica.context.staging.open(by)
        self._spool: SpoolFile | None = None
        self._saved: Saved | None = None
        self._throttled = ""
        replica.streamed_appends[stream] = self
        replica.deliver(StreamOpened(stream=stream, run=self, condition=condition))

    @property
    def is_placing(self) -> bool:
        """Whether the append owns the tail."""
        return self.phase is Phase.PLACING

    def refused(self, status: Status) -> BroadsheetError:
        """The error that tells the client why no content is accepted."""
        message = self._throttled or refusal(status, self._replica, self._replica.pipeline.adopted_end)
        return BY_STATUS[status](message)

    # What the replica calls.

    def begin(self) -> None:
        """Accept content from now on."""
        assert self.phase is Phase.OPENED, f"begun while {self.phase}"
        self.phase = Phase.STAGING
        self.begun.set_result(None)

    def grant(self, spool: SpoolFile) -> None:
        """Start to copy the content to the end of `spool`: the append owns the tail."""
        assert self.phase is Phase.WHOLE, f"granted while {self.phase}"
        self._spool, self._saved, self.phase = spool, spool.save(), Phase.PLACING
        self._replica.context.scope.spawn(self._place(spool), name=f"place.{self._replica.name}")

    def abort(self, status: Status) -> None:
        """Accept no more content, and drop the staged content."""
        if not self.aborted.done():
            self.aborted.set_result(status)
        if self.phase is not Phase.OPENED:
            # A stream that was refused when it was opened is answered in its turn instead (journals.9).
            self.fail(status)

    def expire(self) -> None:
        """Give up shortly before the client's deadline, unless the content is being copied to the tail."""
        if self.phase in _UNPLACED:
            self.abort(Status.CANCELLED)

    def undo(self) -> None:
        """Remove the content from the tail."""
        assert self._spool is not None
        assert self._saved is not None
        self._spool.restore(self._saved)
        self._saved = None

    @property
    def parts(self) -> Sequence[Buffer]:
        """Never called: the content is in the spool."""
        raise AssertionError("the content of a streamed append is in the spool")

    def answer(self, status: Status, begin: ByteOffset, end: ByteOffset, message: str) -> None:
        """Give the pipeline's answer to the waiting tasks."""
        self.phase = Phase.DONE
        self._replica.streamed_appends.pop(self._stream, None)
        self._staged.close()
        if not self.begun.done():
            self.begun.set_exception(self.refused(status))
            self.begun.exception()  # Marked as seen: perhaps no task waits for it.
        resolve(self.answered, status, begin, end, message)

    # What the service calls.

    def put(self, chunk: Buffer) -> None:
        """Stage one chunk of a streaming append, of at most `SLICE_BYTES`.

        Does nothing after `aborted` is done.
        """
        if self.phase is not Phase.STAGING:
            return
        passed("journal.stream.before_stage")
        try:
            self._staged.put(chunk)
        except Throttled as error:
            self._throttled = str(error)
            self.abort(Status.THROTTLED)
            return
        except OSError as error:
            self._refuse_or_crash(error, NO_ROOM)
            return
        passed("journal.stream.after_stage")
        self._replica.deliver(ChunkStaged(stream=self._stream, length=len(chunk)))

    def finish(self) -> None:
        """Tell the pipeline that all content is staged; it grants the tail when that is free."""
        if self.phase is Phase.STAGING:
            self.phase = Phase.WHOLE
            self._replica.deliver(StreamEnded(stream=self._stream, length=self._staged.length))

    def fail(self, status: Status) -> None:
        """Drop the append's content, also from the tail, and report it. Does nothing once it is PLACED."""
        if self.phase is Phase.PLACING:
            self.undo()
        elif self.phase not in _UNPLACED:
            return
        self.phase = Phase.DONE
        self._staged.close()
        passed("journal.stream.after_drop")
        self._replica.deliver(StreamFailed(stream=self._stream, status=status))

    async def _place(self, spool: SpoolFile) -> None:
        """Copy the append's content to the end of the spool, and sync it there."""
        context = self._replica.context
        crc = 0
        if not self.is_placing:
            return  # It was aborted in the turn in which it got the tail, before this task began.
        passed("journal.stream.before_place")
        try:
            slices = self._staged.slices()
            while True:
                async with context.placing:
                    if self.phase is not Phase.PLACING:
                        return
                    part = next(slices, None)
                    if part is None:
                        break
                    spool.append((part,), wall=context.time.wall())
                    crc = crc32c(part, crc)
                    await asyncio.sleep(0)
        except OSError as error:
            self._refuse_or_crash(error, NO_ROOM)
            return
        if crc != self._staged.crc:
            self.fail(Status.CORRUPT)
            return
        passed("journal.stream.after_place")
        passed("journal.stream.before_sync")
        try:
            await spool.file.flush()
            if not spool.is_dir_synced:
                disk, directory = context.disk, self._replica.directory
                await disk.run(lambda: disk.sync_dir(directory))
                spool.is_dir_synced = True
        except OSError as error:
            # Any other failed sync ends the process: after it a later sync that succeeds proves nothing.
            self._refuse_or_crash(error, NO_DESCRIPTOR)
            return
        passed("journal.stream.after_sync")
        if self.phase is Phase.PLACING:
            self.phase = Phase.PLACED
            self._staged.close()
            self._replica.deliver(StreamPlaced(stream=self._stream))

    def _refuse_or_crash(self, error: OSError, refusals: tuple[int, ...]) -> None:
        if self.phase is Phase.DONE and error.errno in (errno.EBADF, errno.ENOENT):
            return  # The journal was closed meanwhile, together with its files, or deleted.
        if error.errno in refusals:
            if error.errno in NO_SPACE:
                context = self._replica.context
                context.troubles.lacked_room(context.time.now())
            self.abort(Status.STORE_UNHEALTHY)
        else:
            self._replica.context.crash(OSError(errno.EIO, str(error)))
