"""Log healing: a live journal whose log stream turned out damaged writes anew what the log lost.

SOUND --the log quarantines the stream--> HEALING --a checkpoint in a new generation is durable--> SOUND
                                          HEALING --a spool is damaged too--> SEALED (until an operator acts)

While it lasts content is refused, and reads go on: memory has the sums of every spool, so the files prove
themselves. It is a restartable to-do list: what a crash cuts short the next start finds in the seal, or in
the log. It never ends the node. Source: journals.3; W6; ADR 0121.
"""

from collections.abc import Sequence
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import ByteOffset
from broadsheet.errors import BroadsheetError, Corrupt
from broadsheet.journal.core.records import Checkpoint
from broadsheet.journal.core.seal import Lost, Seal
from broadsheet.journal.recovered_state import begin_log
from broadsheet.journal.remedies import accept_loss
from broadsheet.journal.replica import NO_SPACE, Replica
from broadsheet.journal.seal_files import write_seal
from broadsheet.journal.spool_file import SpoolFile

HEAL_RETRY: Final = Duration(100 * MILLISECOND)
"""Pause before another attempt, while an append is on its way or the log is full."""
PIECE_BYTES: Final = 1 << 20


class Healing:
    """What one replica does when the log lost an old record of it."""

    def __init__(self, replica: Replica) -> None:
        """Heal `replica`, when it is asked to."""
        self._replica, self._context = replica, replica.context
        self.is_active = False
        self._seal: Seal | None = None
        """What the log is being begun anew with: until it has that, nothing else is in it."""

    def begin(self) -> bool:
        """Refuse content from now on; whether somebody must `run`."""
        if self.is_active or self._replica.is_closed or self._replica.reason:
            return False
        hit("journal.healing")
        self.is_active = True
        self._replica.trouble = "the log lost an old record of it, which is written anew from its spool file"
        return True

    async def attempt(self) -> bool:
        """Whether it is over: the log holds the journal again, or it is sealed, or closed. Else try later.

        No checkpoint may be on its way.
        """
        is_done = self._replica.is_closed
        try:
            is_done = is_done or await self._is_done()
        except OSError as error:
            if error.errno not in NO_SPACE:
                self._context.crash(error)
                is_done = True
        self.is_active = not is_done
        return is_done

    async def _is_done(self) -> bool:
        replica, context = self._replica, self._context
        if not context.log.is_quarantined(replica.stream):
            if self._seal is not None and not await self._begun(self._seal, is_sealed=True):
                return False  # The stream is reset: it holds nothing yet.
            replica.trouble = ""
            return True
        if replica.pipeline.is_busy or any(upload.is_placing for upload in replica.streamed_appends.values()):
            return False  # What was adopted before the damage was found is durable soon.
        spools = [*replica.closed, replica.spool]
        checkpoint = replica.checkpoint()
        for spool in spools:
            if replica.is_closed:
                return True  # It was deleted, or the node shuts down, and its files are closed.
            if spool is replica.spool or spool in replica.closed:
                await spool.file.flush()
        await context.disk.run(lambda: context.disk.sync_dir(replica.directory))
        try:
            damaged = await context.disk.run(lambda: _damaged(spools))
        except OSError:
            return False  # It was stored meanwhile and its file closed, or it cannot be read just now.
        if replica.is_closed:
            return True
        seal = self._sealed(checkpoint, damaged)
        if not damaged:
            return await self._begun(seal, is_sealed=False)
        await context.disk.run(lambda: write_seal(context.disk, replica.directory, seal))
        for spool, damage in damaged:
            spool.damage = damage  # So that it is what `accept-loss` moves aside.
        replica.reason = replica.trouble = seal.reason
        return True

    async def _begun(self, seal: Seal, *, is_sealed: bool) -> bool:
        """Whether the log holds the journal again. Else the next attempt goes on with this very seal."""
        replica, context = self._replica, self._context
        if not is_sealed:
            await context.disk.run(lambda: write_seal(context.disk, replica.directory, seal))
        self._seal = seal
        try:
            await begin_log(context, replica.stream, replica.directory, seal=seal, is_sealed=True)
        except BroadsheetError:
            return False  # No room in the log.
        self._seal, replica.trouble = None, ""
        return True

    def _sealed(self, checkpoint: Checkpoint, damaged: Sequence[tuple[SpoolFile, str]]) -> Seal:
        replica, context = self._replica, self._context
        reason = ""
        if damaged:
            remedy = accept_loss(replica.name)
            reason = f"journal {replica.name}: the log lost a record of it, and {damaged[0][1]}; {remedy}"
        return Seal(
            journal=replica.name,
            checkpoint=checkpoint,
            generation=context.log.generation(replica.stream),
            written=context.time.wall(),
            reason=reason,
            lost=tuple(Lost(spool.begin, spool.end, damage, spool.digest()) for spool, damage in damaged),
        )


def _damaged(spools: Sequence[SpoolFile]) -> list[tuple[SpoolFile, str]]:
    """Each file that does not have its sums, and what is wrong with it. Blocking."""
    found: list[tuple[SpoolFile, str]] = []
    for spool in spools:
        try:
            for at in range(spool.begin, spool.end, PIECE_BYTES):
                spool.read(ByteOffset(at), min(PIECE_BYTES, spool.end - at))
        except Corrupt as error:
            found.append((spool, str(error)))
    return found
