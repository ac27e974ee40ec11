"""Recovered state: the state of a journal at its opening, from its log, its seal and its spool files.

Offsets are bytes. Damage that the log reports is resolved here, once. If the sums in records prove the bytes
of the spool files, the journal is repaired from them. Otherwise a seal records the reason and stops appends,
until an operator accepts the loss. In both cases the log's stream begins anew with one checkpoint. A tail
that a power cut tore was never acknowledged: it is settled. After kill -9 the page cache still has all bytes
that were written to the spool files; bytes that no sum proves are moved aside, not cut off, because they may
have been acknowledged. Source: journals.2, journals.3, journals.14, journals.15; W6, W7; ADR 0120.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from broadsheet.base.types import ByteOffset, Generation, LogStreamId, Offset
from broadsheet.errors import Corrupt
from broadsheet.journal.context import Context
from broadsheet.journal.core.attempts import Attempts
from broadsheet.journal.core.fragment import Fragment
from broadsheet.journal.core.records import CHECKPOINT, decode, encode_checkpoint
from broadsheet.journal.core.recovery import RecoveryPlan, replay
from broadsheet.journal.core.registers import RegisterState
from broadsheet.journal.core.seal import Lost, Seal, checkpoint_of, governs
from broadsheet.journal.core.spool_claims import Claims, claims_of, may_reach
from broadsheet.journal.messages import JournalInfo
from broadsheet.journal.remedies import accept_loss
from broadsheet.journal.seal_file import read_seal, remove_seal, write_seal
from broadsheet.journal.set_aside import lost_of, set_aside, spools_in
from broadsheet.journal.spool_repair import Witnesses, repair
from broadsheet.runtime.failpoints import passed
from broadsheet.wal.record import Recovered


class RecoveredState(NamedTuple):
    """The state of a journal by its log, seal and spool files, without the store and the keys."""

    plan: RecoveryPlan
    reason: str
    """Why no content may be appended; empty if it may."""
    seal: Seal | None
    """The decision with which the log's stream must begin anew; None: the stream is sound and goes on."""
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
    settled: ByteOffset | None,
    stored: Sequence[Fragment] | None,
) -> RecoveredState:
    """Combine a journal's log records, the seal of an earlier start, and the spool files. Blocking.

    If the log lost records, content that a record's sum proves is repaired from the spool files. The caller
    then begins the log's stream anew, so that the damage is resolved once and keeps no old segment in use.

    Args:
        payloads: of the log's records.
        registers: of the registers key.
        settled: where the journal's epoch began; the registers of all appends below were put. None if there
            is no epoch key.
        stored: the fragments in the store; None: the store does not answer.
    """
    disk = context.disk
    seal, reason = None, ""
    try:
        plan = replay(decode(payload) for payload in payloads)
    except Corrupt as error:
        return RecoveredState(replay(()), str(error), seal=None, is_sealed=False)
    try:
        seal = read_seal(disk, directory, is_needed=plan.is_sealed)
    except Corrupt as error:
        return RecoveredState(plan, f"{error}: {accept_loss(info.name)}", seal=None, is_sealed=False)
    if seal is not None:
        reason = seal.reason
        if governs(seal, found.record_generation):
            return RecoveredState(replay((seal.checkpoint,)), reason, seal=seal, is_sealed=True)
    found = found if settled is not None else _without_epoch(context, directory, plan, found, stored)
    if not found.is_quarantined and not found.tail_cut:
        if seal is not None and not reason:
            remove_seal(disk, directory)  # The log holds everything that the seal says.
        return RecoveredState(plan, reason, seal=None, is_sealed=False)
    known = plan.spools[0].begin, plan.end
    # If the stream's end is lost, only the page cache and the store together show that nothing followed.
    is_all_here = context.log.is_same_boot and not context.log.has_lost_cache and stored is not None
    is_end_known = not found.is_end_lost or is_all_here
    is_last = bool(found.suspects) and found.suspects[-1].next_offset == found.next_offset and is_end_known
    is_based = _is_based(plan, payloads)
    suspects = _in_order(found, () if is_based else payloads)  # Their sums include what lies below them.
    claims = claims_of(suspects, is_complete=is_last, is_tail=not found.is_quarantined)
    witnesses = Witnesses(claims, registers, settled or ByteOffset(0), is_based=is_based, stored=stored or ())
    is_whole = repair(disk, directory, plan, witnesses)
    is_extended = (plan.spools[0].begin, plan.end) != known
    if is_extended:
        plan.attempts = _attempts(plan, claims)
    lost: tuple[Lost, ...] = ()
    if found.is_quarantined and not is_whole:
        limit = context.config.limits.append_bytes_max
        reach = may_reach(suspects, plan.end, length_max=limit)
        lost = lost_of(disk, directory, plan, claims, reach=reach, length_max=limit)
    earlier = seal.lost if seal is not None and seal.reason else ()  # Nobody has accepted that loss yet.
    is_behind = bool(lost) or found.next_offset > found.end_offset or bool(found.suspects)
    # The log may lack records of any stream. On the same boot acknowledged bytes are in the page cache or in
    # the store. Neither has more of this journal than the plan, so it has lost nothing.
    is_only_suspect = not is_behind and is_all_here
    if found.is_quarantined and not is_whole and not is_only_suspect:
        reason = reason or (
            f"journal {info.name}: the log lost records of it that were durable, from {plan.end} on, and its"
            f" spool files do not prove what they were: {accept_loss(info.name)}"
        )
    elif found.is_cut_doubtful and not found.is_quarantined:
        set_aside(disk, directory, plan)  # After kill -9 these bytes may have been acknowledged: keep them.
    if not found.is_quarantined and not is_extended and not reason:
        return RecoveredState(plan, reason, seal=None, is_sealed=False)
    sealed = Seal(
        journal=info.name,
        checkpoint=checkpoint_of(plan),
        generation=found.generation,
        written=context.time.wall(),
        reason=reason,
        lost=tuple(dict.fromkeys((*earlier, *lost))),
    )
    return RecoveredState(plan, reason, seal=sealed, is_sealed=False)


def _without_epoch(
    context: Context,
    directory: str,
    plan: RecoveryPlan,
    found: Recovered,
    stored: Sequence[Fragment] | None,
) -> Recovered:
    """What the log told of a journal that has no epoch key.

    If the log has nothing of it either, it was never open, and has lost nothing. But no byte is written
    before the key is put. So if spool files have content, the key and the records were lost. Of content, also
    of stored fragments, nobody knows the registers.
    """
    log, stream = context.log, found.stream
    if log.next_offset(stream) or log.is_quarantined(stream) or found.tail_cut:
        return found
    has_content = any(size for _, _, size in spools_in(context.disk, directory))
    if has_content or stored:
        plan.registers = None
    return replace(found, is_quarantined=has_content)


def _is_based(plan: RecoveryPlan, payloads: Sequence[bytes]) -> bool:
    """Whether sound records tell where the spool files begin: a checkpoint, or the journal's first append.

    The log may begin with appends that came while a checkpoint was made. If that one is damaged, nothing
    sound tells what lies below them.
    """
    return any(each[0] == CHECKPOINT for each in payloads) or (bool(payloads) and plan.spools[0].begin == 0)


def _in_order(found: Recovered, before: Sequence[bytes]) -> list[bytes]:
    """`before`, then the payloads of the suspects by offset, with empty bytes for each gap between them."""
    payloads = [*before]
    at = found.end_offset
    for record in found.suspects:
        if record.offset > at:
            payloads.append(b"")
        payloads.append(record.payload)
        at = max(at, record.next_offset)
    return payloads


def _attempts(plan: RecoveryPlan, claims: Claims) -> Attempts:
    """The attempts that remaining records tell about the repaired content; others may be missing."""
    remembered = [*plan.attempts.remembered(), *(each for claim in claims.claims for each in claim.attempts)]
    by_begin = {each.begin: each for each in remembered if each.begin < each.end <= plan.end}
    attempts = Attempts([by_begin[begin] for begin in sorted(by_begin)], known_from=plan.attempts.known_from)
    attempts.lose(plan.end)
    return attempts


async def name_stream(context: Context, stream: LogStreamId) -> None:
    """Register a new stream, durably, in a log that may have lost streams: this one has lost nothing."""
    named: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context.log.reset(
        stream, Offset(0), Generation(0), lambda: None if named.done() else named.set_result(None)
    )
    await named


async def begin_log(
    context: Context, stream: LogStreamId, directory: str, *, seal: Seal, is_sealed: bool = False
) -> None:
    """Write the seal and begin the log's stream anew with its checkpoint.

    Afterwards the seal is removed, unless its reason is to stop appends.

    Args:
        is_sealed: the seal is in its file already.

    Raises:
        StoreUnhealthy: no room in the log: repeat the call. The seal keeps the decision over a crash.
    """
    log = context.log
    if not is_sealed:
        await context.disk.run(lambda: write_seal(context.disk, directory, seal))
    generation = log.generation(stream)
    if generation <= seal.generation or log.is_quarantined(stream):  # The last checkpoint may be damaged.
        begun = Generation(max(generation, seal.generation) + 1)
        log.reset(stream, log.next_offset(stream), begun, done=lambda: None)
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def durable() -> None:
        if not written.done():
            written.set_result(None)

    checkpoint = replace(seal.checkpoint, is_sealed=True) if seal.reason else seal.checkpoint
    log.append(stream, [encode_checkpoint(checkpoint)], done=durable, relief=True)
    passed("journal.seal.in_log")
    await written
    if not seal.reason:
        await context.disk.run(lambda: remove_seal(context.disk, directory))
    passed("journal.seal.settled")
