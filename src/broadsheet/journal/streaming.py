"""Streaming: an append whose content comes in chunks, staged in the spool before anybody decides about it.

WAITING --grant--> STAGING --finish--> STAGED --answer--> DONE; WAITING or STAGING --abort, or the client's
end--> DONE. While STAGING it
owns the journal's tail, by the pipeline's grant, and whatever happens it gives the spool back as it was or
hands over
content that is synced; the pipeline hears exactly one of `StreamStaged` and `StreamFailed` for each grant.
Lengths are bytes. What is committed is not decided here.
Source: journals.14, journals.17, journals.20; papers/gazette-transactional-appends.txt "stateStreamContent".
"""

import asyncio
import errno
from enum import Enum
from typing import Final

from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import BY_STATUS, BroadsheetError, Status
from broadsheet.journal.core.pipeline_events import (
    ChunkStaged,
    StreamEnded,
    StreamFailed,
    StreamOpened,
    StreamStaged,
)
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.messages import Commit
from broadsheet.journal.refusals import refusal
from broadsheet.journal.replica import NO_SPACE, Replica
from broadsheet.journal.spool_file import Saved, SpoolFile
from broadsheet.runtime.failpoints import passed

SLICE_BYTES: Final = 1 << 20
"""Staged and summed on the loop at a time: about a millisecond."""


class Stage(Enum):
    """How far a streaming append has come."""

    WAITING = "waiting"
    STAGING = "staging"
    STAGED = "staged"
    DONE = "done"


class StreamedAppend:
    """One streaming append at its journal's replica."""

    def __init__(self, replica: Replica, stream: int, condition: Condition | None) -> None:
        """Ask for the tail."""
        loop = asyncio.get_running_loop()
        self.stage = Stage.WAITING
        self.granted: asyncio.Future[None] = loop.create_future()
        """Done once content may be staged; raises where it will not be."""
        self.aborted: asyncio.Future[Status] = loop.create_future()
        """Done with the reason once no more content is taken."""
        self.answered: asyncio.Future[tuple[Status, Commit]] = loop.create_future()
        self._replica, self._stream = replica, stream
        self._spool: SpoolFile | None = None
        self._saved: Saved | None = None
        self._length = 0
        replica.uploads[stream] = self
        replica.deliver(StreamOpened(stream=stream, run=self, condition=condition))

    @property
    def is_staging(self) -> bool:
        """Whether it owns the tail."""
        return self.stage in (Stage.STAGING, Stage.STAGED)

    def refused(self, status: Status) -> BroadsheetError:
        """What its client is told where no content is taken."""
        return BY_STATUS[status](refusal(status, self._replica, self._replica.pipeline.adopted_end))

    # What the replica calls.

    def grant(self, spool: SpoolFile) -> None:
        """The tail is ours."""
        assert self.stage is Stage.WAITING, f"granted while {self.stage}"
        self._spool, self._saved, self.stage = spool, spool.save(), Stage.STAGING
        if not self.granted.done():
            self.granted.set_result(None)
        else:
            self.fail(Status.CANCELLED)  # The client left while it waited.

    def abort(self, status: Status) -> None:
        """Take no more content."""
        if not self.aborted.done():
            self.aborted.set_result(status)
        if self.stage is Stage.STAGING:
            self.fail(status)
        elif not self.granted.done():
            self.granted.set_exception(self.refused(status))
            self.granted.exception()  # Somebody may be waiting, or nobody.

    def undo(self) -> None:
        """Take back what was staged."""
        assert self._spool is not None
        assert self._saved is not None
        self._spool.restore(self._saved)
        self._saved = None

    def content(self) -> Buffer:
        """Never asked for: it stands in the spool."""
        raise AssertionError("a streamed append has no content at hand")

    def answer(self, status: Status, begin: ByteOffset, end: ByteOffset) -> None:
        """The pipeline's last word."""
        self.stage = Stage.DONE
        self._replica.uploads.pop(self._stream, None)
        if not self.granted.done():  # The tail was ours, but there was no room for another fragment's file.
            self.granted.set_exception(self.refused(status))
            self.granted.exception()
        if not self.answered.done():
            self.answered.set_result((status, Commit(begin=begin, end=end)))

    # What the service calls.

    def put(self, chunk: Buffer) -> None:
        """Stage one chunk of at most `SLICE_BYTES`.

        After `aborted` is done it changes nothing.
        """
        if self.stage is not Stage.STAGING:
            return
        assert self._spool is not None
        passed("journal.stream.before_stage")
        try:
            self._spool.stage(chunk, wall=self._replica.context.time.wall())
        except OSError as error:
            self._refuse_or_crash(error)
            return
        self._length += len(chunk)
        passed("journal.stream.after_stage")
        self._replica.deliver(ChunkStaged(stream=self._stream, length=len(chunk)))

    async def finish(self) -> None:
        """All content has come: sync it, and hand it over."""
        spool = self._spool
        if self.stage is not Stage.STAGING or spool is None:
            return
        if self._length:
            self._replica.deliver(StreamEnded(stream=self._stream))
            passed("journal.stream.before_sync")
            try:
                await spool.file.flush()
                if not spool.is_dir_synced:
                    disk, directory = self._replica.context.disk, self._replica.directory
                    await disk.run(lambda: disk.sync_dir(directory))
                    spool.is_dir_synced = True
            except OSError as error:
                self._replica.context.crash(error)  # A sync that failed proves nothing about the next one.
                return
            passed("journal.stream.after_sync")
        if self.stage is Stage.STAGING:
            self.stage = Stage.STAGED
            self._replica.deliver(StreamStaged(stream=self._stream, length=self._length))

    def fail(self, status: Status) -> None:
        """Undo what was staged, where anything was, and say so. Harmless when it has ended."""
        if self.stage is Stage.STAGING:
            self.undo()
            self.stage = Stage.DONE
            passed("journal.stream.after_undo")
            self._replica.deliver(StreamFailed(stream=self._stream, status=status))
        elif self.stage is Stage.WAITING:
            if not self.granted.done():
                self.granted.cancel()
            self._replica.deliver(StreamFailed(stream=self._stream, status=status))

    def _refuse_or_crash(self, error: OSError) -> None:
        if error.errno in NO_SPACE:
            self.abort(Status.STORE_UNHEALTHY)
        else:
            self._replica.context.crash(OSError(errno.EIO, str(error)))
