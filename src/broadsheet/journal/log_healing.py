"""Log healing: a live journal begins its damaged log stream anew with a checkpoint.

SOUND --the log quarantines the stream--> HEALING --a checkpoint in a new generation is durable--> SOUND
                                          HEALING --a spool is damaged too--> SEALED (until an operator acts)

While it lasts, content is refused, and reads go on. Memory has the sums of every spool file, so the files can
be checked without the lost records. It is a restartable to-do list: after a crash the next start finds the
seal or the damaged log. Healing never ends the node. Source: journals.3; W6; ADR 0121.
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
from broadsheet.journal.replica import Replica
from broadsheet.journal.seal_file import write_seal
from broadsheet.journal.spool_file import SpoolFile, keep_sums
from broadsheet.ports import NO_ROOM

HEAL_RETRY: Final = Duration(100 * MILLISECOND)
"""Pause before another attempt, while an append is not durable yet or the log is full."""
PIECE_BYTES: Final = 1 << 20


class Healing:
    """The healing of one replica's log stream."""

    def __init__(self, replica: Replica) -> None:
        """Prepare for `replica`; `begin` starts it."""
        self._replica, self._context = replica, replica.context
        self.is_active = False
        self._seal: Seal | None = None
        """The seal with which the stream is begun anew, while its checkpoint is not in the log yet."""

    def begin(self) -> bool:
        """Refuse a journal's content from now on; returns whether to call `attempt` until it is over."""
        if self.is_active or self._replica.is_closed or self._replica.stop_reason:
            return False
        hit("journal.healing")
        self.is_active = True
        self._replica.log_fault = "the log lost an old record of it; it is being written anew: try again soon"
        self._context.troubles.judge(self._replica)
        return True

    async def attempt(self) -> bool:
        """Try once to heal the journal's log; returns whether the healing is over.

        It is over if the log holds the journal again, or if the journal is sealed or closed. The caller sees
        to it that no checkpoint is under way.
        """
        is_done = self._replica.is_closed
        try:
            is_done = is_done or await self._is_done()
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._context.crash(error)
                is_done = True
        self.is_active = not is_done
        self._context.troubles.judge(self._replica)
        return is_done

    async def _is_done(self) -> bool:
        replica, context = self._replica, self._context
        if not context.log.is_quarantined(replica.stream):
            if self._seal is not None and not await self._begun(self._seal, is_sealed=True):
                return False  # The stream was reset, and its checkpoint is not in it yet.
            replica.log_fault = ""
            return True
        if replica.pipeline.is_busy or any(each.is_placing for each in replica.streamed_appends.values()):
            return False  # Appends that were adopted before the damage was found will be durable soon.
        spools = [*replica.closed, replica.spool]
        checkpoint = replica.checkpoint()
        for spool in spools:
            if replica.is_closed:
                return True  # The journal was deleted or the node shuts down: its files are closed.
            if not spool.is_released:
                await spool.file.flush()
                await keep_sums(context.disk, replica.directory, spool, spool.wanted_sums())
        await context.disk.run(lambda: context.disk.sync_dir(replica.directory))
        try:
            damaged = await context.disk.run(lambda: _damaged(spools))
        except OSError:
            return False  # A spool was stored and its file closed meanwhile, or a file cannot be read now.
        if replica.is_closed:
            return True
        seal = self._sealed(checkpoint, damaged)
        if not damaged:
            return await self._begun(seal, is_sealed=False)
        await context.disk.run(lambda: write_seal(context.disk, replica.directory, seal))
        for spool, damage in damaged:
            spool.damage = damage  # `accept-loss` moves damaged files aside.
        replica.log_fault = seal.reason
        replica.stop(seal.reason)
        return True

    async def _begun(self, seal: Seal, *, is_sealed: bool) -> bool:
        """Write the seal, begin the journal's stream anew; False: no room in the log, use the seal again."""
        replica, context = self._replica, self._context
        if not is_sealed:
            await context.disk.run(lambda: write_seal(context.disk, replica.directory, seal))
        self._seal = seal
        try:
            await begin_log(context, replica.stream, replica.directory, seal=seal, is_sealed=True)
        except BroadsheetError:
            return False
        self._seal, replica.log_fault = None, ""
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
    """Each spool whose content fails its checksums, with the reason. Blocking."""
    found: list[tuple[SpoolFile, str]] = []
    for spool in spools:
        try:
            for at in range(spool.begin, spool.end, PIECE_BYTES):
                spool.read(ByteOffset(at), min(PIECE_BYTES, spool.end - at))
        except Corrupt as error:
            found.append((spool, str(error)))
    return found
