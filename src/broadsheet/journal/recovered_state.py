"""Recovered state: where a journal stands when it is opened, by its log, its seal and its spool files.

Offsets are bytes. Damage that the log reports is dealt with here, once: repaired from the spools where the
sums of records prove their bytes, else written down in a seal with the reason, which stops appends until an
operator accepts the loss. Either way the log's stream begins anew with one checkpoint. A tail that a power
cut tore was never acknowledged: it is settled and forgotten. After kill -9 the page cache still has what the
spool got, and no sum may prove it: it is moved aside, not cut off.
Source: journals.2, journals.3, journals.14, journals.15; W6, W7; ADR 0120.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.errors import Corrupt
from broadsheet.journal.context import Context
from broadsheet.journal.core.attempts import Attempts
from broadsheet.journal.core.fragment import Fragment
from broadsheet.journal.core.records import decode, encode_checkpoint
from broadsheet.journal.core.recovery import RecoveryPlan, replay
from broadsheet.journal.core.registers import RegisterState
from broadsheet.journal.core.seal import Lost, Seal, checkpoint_of, governs
from broadsheet.journal.core.spool_claims import Claims, claims_of, may_reach
from broadsheet.journal.messages import JournalInfo
from broadsheet.journal.remedies import accept_loss
from broadsheet.journal.seal_files import lost_of, read_seal, remove_seal, set_aside, write_seal
from broadsheet.journal.spool_repair import Witnesses, repair
from broadsheet.runtime.failpoints import passed
from broadsheet.wal.record import Recovered


class Standing(NamedTuple):
    """What the log, the seal and the spool files say of a journal, before anybody else is asked."""

    plan: RecoveryPlan
    reason: str
    """Why no content may be appended; empty where it may."""
    seal: Seal | None
    """What was decided, to be written down before the log is begun anew; None: the log stands."""
    is_sealed: bool
    """Whether the seal is in its file already."""


def stand(
    context: Context,
    info: JournalInfo,
    directory: str,
    found: Recovered,
    payloads: Sequence[bytes],
    *,
    registers: RegisterState | None,
    stored: Sequence[Fragment] | None,
) -> Standing:
    """Ask the log's records, the seal that an earlier start wrote, and the spools. Blocking.

    Where the log lost records the spools are asked: what a record's sum proves is repaired. After that the
    log's stream is begun anew, so that damage is dealt with once, and pins nothing.

    Args:
        payloads: of the log's records.
        registers: of the registers key.
        stored: what the fragment store has; None: it does not say. A head below that is not extended
            (journals.15).
    """
    disk = context.disk
    seal, reason = None, ""
    try:
        plan = replay(decode(payload) for payload in payloads)
    except Corrupt as error:
        return Standing(replay(()), str(error), seal=None, is_sealed=False)
    try:
        seal = read_seal(disk, directory)
    except Corrupt as error:
        return Standing(plan, f"{error}: {accept_loss(info.name)}", seal=None, is_sealed=False)
    if seal is not None:
        reason = seal.reason
        if governs(seal, found.record_generation):
            return Standing(replay((seal.checkpoint,)), reason, seal=seal, is_sealed=True)
    if not found.is_quarantined and not found.tail_cut:
        if seal is not None and not reason:
            remove_seal(disk, directory)  # The log holds what it says.
        return Standing(plan, reason, seal=None, is_sealed=False)
    known = plan.spools[0].begin, plan.end
    # Where its end is lost, only page cache and store tell that there was nothing behind the last record.
    is_all_here = context.log.is_same_boot and not context.log.has_lost_cache and stored is not None
    is_end_known = not found.is_end_lost or is_all_here
    is_last = bool(found.suspects) and found.suspects[-1].next_offset == found.next_offset and is_end_known
    suspects = _in_order(found)
    claims = claims_of(suspects, is_complete=is_last, is_tail=not found.is_quarantined)
    witnesses = Witnesses(claims, registers, is_based=bool(payloads), stored=stored or ())
    is_whole = repair(disk, directory, plan, witnesses)
    is_extended = (plan.spools[0].begin, plan.end) != known
    if is_extended:
        plan.attempts = _attempts(plan, claims)
    lost: tuple[Lost, ...] = ()
    if found.is_quarantined and not is_whole:
        limit = context.config.limits.append_bytes_max
        reach = may_reach(suspects, plan.end, length_max=limit)
        lost = lost_of(disk, directory, plan, claims, reach=reach, length_max=limit)
    is_behind = bool(lost) or found.next_offset > found.end_offset or bool(found.suspects)
    # The log may lack records of anybody. What was acknowledged stands in the page cache at least, or in the
    # store: of this journal nothing does, so it has lost nothing.
    is_only_suspect = not is_behind and is_all_here
    if found.is_quarantined and not is_whole and not is_only_suspect:
        reason = reason or (
            f"journal {info.name}: the log lost records of it that were durable, from {plan.end} on, and its"
            f" spool files do not prove what they were: {accept_loss(info.name)}"
        )
    elif context.log.is_same_boot and not found.is_quarantined:
        set_aside(disk, directory, plan)  # The page cache outlives kill -9: it may have been acknowledged.
    if not found.is_quarantined and not is_extended and not reason:
        return Standing(plan, reason, seal=None, is_sealed=False)
    sealed = Seal(
        journal=info.name,
        checkpoint=checkpoint_of(plan),
        generation=found.generation,
        written=context.time.wall(),
        reason=reason,
        lost=lost,
    )
    return Standing(plan, reason, seal=sealed, is_sealed=False)


def _in_order(found: Recovered) -> list[bytes]:
    """The payloads of the suspects, by offset; empty bytes where records between them are missing."""
    payloads: list[bytes] = []
    at = found.end_offset
    for record in found.suspects:
        if record.offset > at:
            payloads.append(b"")
        payloads.append(record.payload)
        at = max(at, record.next_offset)
    return payloads


def _attempts(plan: RecoveryPlan, claims: Claims) -> Attempts:
    """Whose the appends were, as far as records tell that sums prove. Others may be missing."""
    told = [*plan.attempts.remembered(), *(each for claim in claims.claims for each in claim.attempts)]
    by_begin = {each.begin: each for each in told if each.begin < each.end <= plan.end}
    attempts = Attempts([by_begin[begin] for begin in sorted(by_begin)], known_from=plan.attempts.known_from)
    attempts.lose(plan.end)
    return attempts


async def name_stream(context: Context, stream: LogStreamId) -> None:
    """Have a log that may lack streams know this one, durably: it is new, and lacks nothing."""
    named: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context.log.reset(
        stream, Offset(0), Generation(0), lambda: None if named.done() else named.set_result(None)
    )
    await named


async def begin_log(
    context: Context, stream: LogStreamId, directory: str, *, seal: Seal, is_sealed: bool = False
) -> None:
    """Write the seal, begin the log's stream anew with its checkpoint, then remove a seal that is settled.

    Args:
        is_sealed: the seal is in its file already.

    Raises:
        StoreUnhealthy: no room in the log: repeat it. The seal carries what was decided over a crash.
    """
    log = context.log
    if not is_sealed:
        await context.disk.run(lambda: write_seal(context.disk, directory, seal))
    if log.generation(stream) <= seal.generation:
        offset = log.next_offset(stream)
        log.reset(stream, offset, Generation(seal.generation + 1), done=lambda: None)
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def durable() -> None:
        if not written.done():
            written.set_result(None)

    log.append(stream, [encode_checkpoint(seal.checkpoint)], done=durable, relief=True)
    passed("journal.seal.in_log")
    await written
    if not seal.reason:
        await context.disk.run(lambda: remove_seal(context.disk, directory))
    passed("journal.seal.settled")
