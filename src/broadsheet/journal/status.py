"""Status: the state of one journal, with its offsets and the reason for any trouble, as callers see it."""

from broadsheet.journal.core.pipeline_events import State
from broadsheet.journal.keys import is_retention_doubtful
from broadsheet.journal.messages import JournalInfo, JournalStatus
from broadsheet.journal.remedies import disagreement, registers_lost, retention_rests, silent
from broadsheet.journal.replica import Replica


def status_of_opening(info: JournalInfo, why: str) -> JournalStatus:
    """The status of a journal that is not open yet; `why` tells what its opening waits for, if known."""
    return JournalStatus(info.name, "opening", create_revision=info.create_revision, reason=why)


def status_of(replica: Replica) -> JournalStatus:
    """The status of an open journal."""
    state, pipeline, troubles = replica.pipeline.state.value, replica.pipeline, replica.context.troubles
    damage = unstored = ""
    if troubles.has_stopped(replica):  # Otherwise each closed file would be looked at in vain.
        damage = replica.damage
    if troubles.is_unstored(replica):
        unstored = next((found for each in replica.closed if (found := each.store_fault)), "")
    conflict = disagreement(replica.index.first_conflict())
    reason = replica.stop_reason or damage or unstored or conflict
    if pipeline.state is State.OPEN and pipeline.is_full:
        state, reason = "full", "; ".join(each for each in (replica.fullness, reason) if each)
    if not replica.is_listed:
        reason = reason or silent(replica.store.silence)
    if replica.log_fault:
        state, reason = "damaged" if replica.stop_reason else "healing", replica.log_fault
    registers = pipeline.committed_registers
    lost = registers_lost(replica.name) if registers is None else ""
    is_doubtful = is_retention_doubtful(replica.context.keyspace, replica.info)
    rests = retention_rests(replica.name) if is_doubtful else ""
    return JournalStatus(
        name=replica.name,
        state=state,
        begin=replica.begin if replica.is_listed else None,
        end=replica.end,
        epoch=replica.epoch,
        create_revision=replica.info.create_revision,
        registers_version=registers.version if registers is not None else -1,
        fragment_count=len(replica.index) + len(replica.closed),
        spool_bytes=replica.spool.length,
        reason="; ".join(each for each in (reason, lost, rests, replica.notice) if each),
    )
