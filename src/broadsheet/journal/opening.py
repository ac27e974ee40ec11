"""Opening: makes a journal ready for appends from its log, spool files, fragment store and two keys.

Offsets are bytes. A restartable to-do list: list the store, read both keys and the log's records, make the
spool files agree with the records, choose the head, and put both keys in one transaction. With one replica,
the lock of the data directory makes this node the primary, and the end of its own log is authoritative
(journals.2). A head below an offset that a key or a stored fragment names is never extended (journals.15):
the journal then opens for readers only, with the reason. Source: journals.1, 2, 5, 14, 15; log.15.
"""

import errno
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.base.types import ByteOffset, Epoch, LogStreamId, Revision
from broadsheet.errors import Unknown
from broadsheet.journal.context import Context
from broadsheet.journal.contradiction import contradiction
from broadsheet.journal.core.attempts import Attempts
from broadsheet.journal.core.fragment import EMPTY_SUM, Fragment
from broadsheet.journal.core.fragment_index import Index
from broadsheet.journal.core.records import ClosedSpool
from broadsheet.journal.core.recovery import RecoveryPlan, SpoolPlan
from broadsheet.journal.core.registers import RegisterState
from broadsheet.journal.core.spec import epoch_key, framing_of, registers_key, spec_key
from broadsheet.journal.keys import (
    EpochValue,
    Member,
    decode_epoch,
    decode_registers,
    encode_epoch,
    encode_registers,
)
from broadsheet.journal.messages import JournalInfo
from broadsheet.journal.producer_indexing import greatest_point
from broadsheet.journal.recovered_state import RecoveredState, begin_log, name_stream, stand
from broadsheet.journal.remedies import accept_loss, unproven, unreadable
from broadsheet.journal.replica import OpenedReplica
from broadsheet.journal.set_aside import lost_among, may_go, move_aside, spools_in, sync_files
from broadsheet.journal.spool_file import SpoolFile, create, keep_sums, rebuild, spool_name
from broadsheet.journal.spool_sums import is_sums, sums_name
from broadsheet.keyspace.core.transaction import (
    Compare,
    CreateRevisionIs,
    Delete,
    KeyValue,
    ModRevisionIs,
    Operation,
    Put,
)
from broadsheet.ports import Disk
from broadsheet.runtime.failpoints import passed

SPOOL_DIRECTORY: Final = "journals/spool"
LOG_DIRECTORY: Final = "journals/log"
IDENTITY_STREAM: Final = LogStreamId(0)
"""The log's stream that holds the incarnation of the data."""
OPEN_RETRY_MIN: Final = Duration(100 * MILLISECOND)
"""Pause before a failed opening or deletion is repeated; doubles up to `OPEN_RETRY_MAX`."""
OPEN_RETRY_MAX: Final = Duration(10 * SECOND)
"""The longest pause."""


class Keys(NamedTuple):
    """The present epoch key and registers key of a journal."""

    epoch: KeyValue | None
    registers: KeyValue | None


def stream_of(info: JournalInfo) -> LogStreamId:
    """The journal's stream of the log; a deleted journal of the same name had another one."""
    return LogStreamId(info.create_revision)


def directory_of(info: JournalInfo) -> str:
    """The directory of its spool files; no part of the path comes from a user."""
    return f"{SPOOL_DIRECTORY}/{info.create_revision:016x}"


async def open_journal(context: Context, info: JournalInfo) -> OpenedReplica:
    """Open one journal.

    It does not wait for a store that does not answer: the log and both keys bound the head (ADR 0140).

    Raises:
        OSError: the disk failed: repeat the call.
        BroadsheetError: the Keyspace or the log refused: repeat the call.
    """
    stream, directory = stream_of(info), directory_of(info)
    store = context.store(info.spec.fragment.store)
    listed = await store.list_soon(info.name, within=context.config.listing_wait)
    named = await _named_end(context, info) if listed is not None else ByteOffset(0)
    keys = Keys(context.keyspace.get(epoch_key(info.name)), context.keyspace.get(registers_key(info.name)))
    known = decode_registers(keys.registers) if keys.registers is not None else None
    payloads = [record.payload async for record in context.log.records(stream)]
    # Ask after the records were read: damage ends them early, and may be found only while they are read.
    found = context.log.recovered(stream)
    standing_of = partial(stand, context, info, directory, found, payloads, registers=known, stored=listed)
    settled = decode_epoch(keys.epoch).start if keys.epoch is not None else None
    standing, index = await context.disk.run(lambda: (standing_of(settled=settled), Index(listed or ())))
    plan = standing.plan
    reason = standing.reason or _missing(context, info, plan, index, keys=keys, named=named)
    _close_stored(plan, index.fragments())
    passed("journal.open.before_rebuild")
    aside, spools = await context.disk.run(
        lambda: _rebuild(
            context, directory, plan, index, is_doubtful=bool(reason), is_listed=listed is not None
        )
    )
    passed("journal.open.after_rebuild")
    damage = _damage(info, spools)
    registers, epoch = _registers(plan, keys), plan.epoch
    try:
        contradicted = await contradiction(context.disk, info.name, spools, listed or ())
        reason = reason or damage or contradicted.reason
        unnamed = await context.disk.run(lambda: _unnamed(context.disk, directory, spools)) if reason else ()
        await _settle(context, stream, directory, standing, spools, is_cut=found.tail_cut)
        if not reason:
            epoch = await _begin_epoch(context, info, plan, registers, keys)
    except BaseException:
        _close(spools)  # The caller repeats the opening, which opens the files again.
        raise
    context.log.forget(stream)
    closed, spool = _split(spools, index.end if reason and index.end > plan.end else None)
    return OpenedReplica(
        info=info,
        stream=stream,
        directory=directory,
        epoch=epoch,
        head=max(plan.end, index.end) if reason else plan.end,
        registers=registers,
        attempts=Attempts.nothing_known() if reason else plan.attempts,
        spool=spool,
        closed=closed,
        stored=index,
        store=store,
        stop_reason=reason,
        awaited=_awaited(plan, spools),
        is_listed=listed is not None,
        doubted=contradicted.spools,
        notice=unproven(directory, aside),
        named_end=named,
        origin=plan.origin,
        log_bytes=sum(len(content) for each in plan.spools for _, content in each.writes),
        is_unsummed=any(each.is_unsummed() for each in plan.spools),
        unproven=unnamed,
    )


def _damage(info: JournalInfo, spools: Sequence[SpoolFile]) -> str:
    """Why a file that is damaged as a whole stops the journal; empty if none is. Others tell their blocks."""
    for spool in spools:
        if spool.given_up:  # All else of it is served, and appends go on behind it.
            spool.unreadable = unreadable(info.name, spool.name, min(spool.given_up))
    damage = next((spool.damage for spool in spools if spool.damage), "")
    return damage and f"journal {info.name}: {damage}; {accept_loss(info.name)}"


async def _settle(
    context: Context,
    stream: LogStreamId,
    directory: str,
    standing: RecoveredState,
    spools: Sequence[SpoolFile],
    *,
    is_cut: bool,
) -> None:
    """Begin the journal's stream anew if it has a seal; otherwise make sure that the log knows it."""
    if standing.seal is not None:
        await _sync(context, directory, spools)  # The new stream has no content: the files are the only copy.
        await begin_log(context, stream, directory, seal=standing.seal, is_sealed=standing.is_sealed)
    elif is_cut:
        context.log.settle(stream)
    elif context.log.is_unknown(stream):
        await name_stream(context, stream)


def _split(
    spools: Sequence[SpoolFile], read_only_from: ByteOffset | None
) -> tuple[list[SpoolFile], SpoolFile]:
    """The closed spools and the open one. In a read-only journal an empty stand-in takes its place."""
    *closed, spool = spools
    if read_only_from is None:
        return closed, spool
    if spool.length:
        closed.append(spool)
    return closed, SpoolFile(spool.file, read_only_from)


def _awaited(plan: RecoveryPlan, spools: Sequence[SpoolFile]) -> list[ClosedSpool]:
    """The spans of the plan without a spool file: the store must have them, in some codec."""
    here = {spool.begin: None for spool in spools}
    return [ClosedSpool(each.begin, each.end, each.sum) for each in plan.spools if each.begin not in here]


def _unnamed(disk: Disk, directory: str, spools: Sequence[SpoolFile]) -> list[ClosedSpool]:
    """The spans of the spool files that no record names. They are kept, and not served."""
    named = {spool.begin: spool.end for spool in spools}
    found = [
        (max(begin, named.get(begin, begin)), begin + size) for _, begin, size in spools_in(disk, directory)
    ]
    return [ClosedSpool(begin, ByteOffset(end), EMPTY_SUM) for begin, end in found if begin < end]


def _rebuild(
    context: Context, directory: str, plan: RecoveryPlan, index: Index, *, is_doubtful: bool, is_listed: bool
) -> tuple[list[str], list[SpoolFile]]:
    """Make the spool files that a journal's plan asks for. Blocking.

    The directory is listed once, because a start does this for ten thousand journals (ADR 0193).

    Args:
        is_doubtful: the plan may lack acknowledged content, so nothing is cut off or removed (W7).
        is_listed: the store has listed its fragments. Otherwise a missing closed file counts as stored,
            because files are removed only after they were read back; and nothing is removed.

    Returns:
        The files that were moved aside before; and the spool files, with the open one last.

    Raises:
        OSError: the disk failed; or the open fragment's file is missing, and the store does not say whether
            it has the fragment.
    """
    disk, files = context.disk, context.spools
    names = disk.list(directory)
    if not names and not disk.exists(directory):
        _make(disk, directory)
    aside = lost_among(names)
    spools: list[SpoolFile] = []
    stored = {(each.begin, each.end, each.sum): None for each in index.fragments()}
    rested_count = 0
    try:
        for spool_plan in plan.spools[:-1]:
            is_stored = (spool_plan.begin, spool_plan.end, spool_plan.sum) in stored
            is_gone = not disk.exists(spool_name(directory, spool_plan.begin))
            if is_gone and (is_stored or not (is_listed or spool_plan.is_in_log())):
                continue
            spool = rebuild(files, directory, spool_plan, may_cut=not is_doubtful)
            if is_stored and (spool.damage or spool.given_up):
                spool.close()  # Serve the store's copy instead. It may be damaged, too, so keep this file.
                if is_listed and not is_doubtful:
                    move_aside(disk, directory, spool.name, begin=spool.begin)
                    names = disk.list(directory)
            else:
                spools.append(spool)  # Kept even if it is stored: that copy was not read back yet (J10).
            # Now, and not at the end: a journal may have more files than the process may open.
            if files.let_rest(each.file for each in spools[rested_count:]):
                rested_count = len(spools)
        spools += _rebuild_open(context, directory, plan, may_cut=not is_doubtful, is_listed=is_listed)
        _note_sums(directory, plan, names, spools)
        if is_listed and not is_doubtful:
            _remove_others(disk, directory, names, spools)
        files.let_rest(each.file for each in spools[rested_count:])
    except BaseException:
        _close(spools)
        raise
    return aside, spools


def _rebuild_open(
    context: Context, directory: str, plan: RecoveryPlan, *, may_cut: bool, is_listed: bool
) -> list[SpoolFile]:
    """The spool file of the open fragment. If blocks of it are damaged, it is closed: another one follows."""
    files, last = context.spools, plan.spools[-1]
    if last.end == last.begin:
        return [create(files, directory, last.begin, may_cut=may_cut)]
    name = spool_name(directory, last.begin)
    if not is_listed and not last.is_in_log() and not context.disk.exists(name):
        raise OSError(
            errno.EAGAIN,
            "the open fragment has no spool file, and the fragment store does not say whether it has"
            " it: the journal is opened when the store answers",
            name,
        )
    spool = rebuild(files, directory, last, may_cut=may_cut)
    if not spool.given_up:
        return [spool]
    _close_last(plan)
    try:
        return [spool, create(files, directory, last.end, may_cut=may_cut)]
    except BaseException:
        spool.close()
        raise


def _note_sums(directory: str, plan: RecoveryPlan, names: Sequence[str], spools: Sequence[SpoolFile]) -> None:
    """Note which files of block sums count: those that are of what the last checkpoint says."""
    here = {f"{directory}/{name}": None for name in names if is_sums(name)}
    known = {each.begin: each.known.end for each in plan.spools if each.known is not None}
    for spool in spools:
        end = known.get(spool.begin, spool.begin)
        if sums_name(directory, spool.begin, end) in here:
            spool.summed_end = end


def _remove_others(disk: Disk, directory: str, names: Sequence[str], spools: Sequence[SpoolFile]) -> None:
    """Remove spool files in `names` that the log does not name: their content is stored, or never adopted."""
    kept = {spool.name for spool in spools}
    kept |= {sums_name(directory, each.begin, each.summed_end) for each in spools}
    paths = [f"{directory}/{name}" for name in names if may_go(name)]
    if doomed := [path for path in paths if path not in kept]:
        for path in doomed:
            disk.remove(path)
        disk.sync_dir(directory)


def _make(disk: Disk, directory: str) -> None:
    """Make the directory durably, or not at all: a later try would not sync one that exists."""
    try:
        disk.make_dir(directory)
    except OSError:
        with suppress(OSError):
            disk.remove_dir(directory)
        raise


async def _sync(context: Context, directory: str, spools: Sequence[SpoolFile]) -> None:
    """Sync the files through new descriptors: a resting handle only syncs what it wrote itself."""
    names = [spool.name for spool in spools]
    await context.disk.run(lambda: sync_files(context.disk, names))
    for spool in spools:
        await keep_sums(context.disk, directory, spool, spool.wanted_sums())
    await context.disk.run(partial(context.disk.sync_dir, directory))


def _close(spools: Sequence[SpoolFile]) -> None:
    for spool in spools:
        spool.close()


def _close_stored(plan: RecoveryPlan, fragments: Sequence[Fragment]) -> None:
    """Begin another fragment if the store has the last one, because its file may be gone.

    The log does not tell that the fragment was closed: an aborted append, for example, leaves no record.
    """
    last = plan.spools[-1]
    if last.end > last.begin and _is_stored(last, fragments):
        _close_last(plan)


def _close_last(plan: RecoveryPlan) -> None:
    last = plan.spools[-1]
    last.is_closed = True
    plan.spools.append(SpoolPlan(last.end, last.end, EMPTY_SUM, 0))


def _is_stored(plan: SpoolPlan, fragments: Sequence[Fragment]) -> bool:
    """Whether the store has exactly this content, so that the file may have been removed."""
    return any((f.begin, f.end, f.sum) == (plan.begin, plan.end, plan.sum) for f in fragments)


async def _named_end(context: Context, info: JournalInfo) -> ByteOffset:
    """The greatest offset of a stored producer index; 0 if there is none, or the store does not tell it now.

    `Indexing` asks again. But an append before its answer might take an offset that was given before (J11).
    """
    if framing_of(info.spec) is None:
        return ByteOffset(0)
    store = context.store(info.spec.fragment.store)
    return greatest_point(await store.list_side_soon(info.name, within=context.config.listing_wait) or ())


def _missing(
    context: Context, info: JournalInfo, plan: RecoveryPlan, index: Index, *, keys: Keys, named: ByteOffset
) -> str:
    """Why the journal's head may not be extended; empty if it may (journals.15).

    Args:
        named: the greatest offset of a stored producer index.
    """
    if plan.gap:
        return f"journal {info.name}: {plan.gap}: {accept_loss(info.name)}"
    names = [(index.end, "the fragment store"), (named, "the producer index in the fragment store")]
    if keys.epoch is not None:
        epoch = decode_epoch(keys.epoch)
        names.append((epoch.start, "the epoch key"))
        if all(member.incarnation != context.incarnation for member in epoch.members):
            return (
                f"journal {info.name}: the journals' log is not the one that its epoch key names: appends"
                f" from {epoch.start} on may be lost; restore the data directory, or {accept_loss(info.name)}"
            )
    if keys.registers is not None:
        names.append((decode_registers(keys.registers).at, "the registers key"))
    known, who = max(names)
    if known <= plan.end:
        return ""
    return (
        f"journal {info.name}: {who} knows offset {known}, but the head that was found is {plan.end}:"
        f" {accept_loss(info.name)}"
    )


def _registers(plan: RecoveryPlan, keys: Keys) -> RegisterState | None:
    """The registers at the head: the newer of the log's and the key's; None if lost (journals.12)."""
    if plan.registers is None:
        return None  # A damaged record may have set others than the key has.
    if keys.registers is None:
        is_new = keys.epoch is None
        return plan.registers if is_new or plan.registers.version else None
    known = decode_registers(keys.registers)
    return plan.registers if plan.registers.version >= known.version else known


async def _begin_epoch(
    context: Context, info: JournalInfo, plan: RecoveryPlan, registers: RegisterState | None, keys: Keys
) -> Epoch:
    """Put both keys of the journal, before the first content byte of the epoch (journals.1)."""
    name = info.name
    member = Member(node=context.node, incarnation=context.incarnation)
    value = EpochValue(members=(member,), start=plan.end, sum=plan.spools[-1].sum)
    compares: list[Compare] = [CreateRevisionIs(spec_key(name), info.create_revision)]
    for key, pair in ((epoch_key(name), keys.epoch), (registers_key(name), keys.registers)):
        compares.append(ModRevisionIs(key, pair.mod_revision if pair is not None else Revision(0)))
    operations: list[Operation] = [Put(epoch_key(name), encode_epoch(value))]
    if registers is not None:
        operations.append(Put(registers_key(name), encode_registers(registers)))
    elif keys.registers is not None:
        operations.append(Delete(registers_key(name)))  # Lost stays lost, whatever becomes of the log.
    passed("journal.epoch.before_put")
    outcome = await context.keyspace.transact(compares, operations, is_upkeep=True)
    passed("journal.epoch.after_put")
    if not outcome.succeeded:
        raise Unknown(f"journal {name}: its keys changed while it was opened; open it again")
    return Epoch(outcome.revision)
