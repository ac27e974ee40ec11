"""Loss acceptance: an operator inspects what a journal lost, and lets it go on without that.

Offsets are bytes. `report` tells every lost span and the head at which appends would go on. `accept` moves
damaged and unproven files of the closed journal aside, and writes a seal without a reason, which tells the
next opening the decision; then it puts the epoch key. No byte is deleted. No offset that a reader may have
seen is used again: the head goes on at or above every offset that a key, the store, a record or a file names.
Source: journals.12, journals.15; `docs/protocols/journals.md` "Remedies".
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from broadsheet.base.types import ByteOffset, Revision
from broadsheet.errors import Corrupt, InvalidArgument, Refused, ShuttingDown, StoreUnhealthy, Unknown
from broadsheet.journal.context import Context
from broadsheet.journal.contradiction import contradiction
from broadsheet.journal.core.fragment import EMPTY_SUM
from broadsheet.journal.core.records import NO_ORIGIN, Checkpoint, ClosedSpool
from broadsheet.journal.core.registers import NO_REGISTERS, RegisterState
from broadsheet.journal.core.seal import Lost, Seal
from broadsheet.journal.core.spec import epoch_key, framing_of, spec_key
from broadsheet.journal.keys import EpochValue, Member, decode_epoch, decode_registers, encode_epoch
from broadsheet.journal.messages import JournalInfo, LostSpan
from broadsheet.journal.opening import Keys
from broadsheet.journal.producer_indexing import greatest_point
from broadsheet.journal.remedies import accept_loss, registers_lost
from broadsheet.journal.replica import NONE_DOUBTED, Replica
from broadsheet.journal.seal_file import read_seal, write_seal
from broadsheet.journal.set_aside import (
    copy_out,
    ends_of_given_up,
    lost_files,
    spools_in,
    sync_files,
    unused_name,
)
from broadsheet.journal.spool_file import SpoolFile
from broadsheet.keyspace.core.transaction import Compare, CreateRevisionIs, ModRevisionIs, Put


class Loss(msgspec.Struct, frozen=True):
    """What of a journal would be given up, and the sound state that is left."""

    head: ByteOffset
    """Where appends go on."""
    lost: tuple[Lost, ...]
    checkpoint: Checkpoint
    """The sound state."""
    is_damaged: bool
    """Whether content is damaged or missing; False: only the head is in doubt."""
    are_registers_lost: bool
    kept_aside: tuple[str, ...]
    """Files that were moved aside, beside the spools."""


LOOKS_MAX: Final = 5
"""How often a loss is looked for while spool files that the store has are removed."""
LOST_SPANS_MAX: Final = 1_000
"""Spans, and files, that a reply tells one by one: more may not fit into a frame."""
MISSING: Final = "neither a spool file nor the fragment store has it"
OTHER_BYTES: Final = "the fragment store has other bytes there, which are served: this file is moved aside"


async def report(
    replica: Replica, keys: Keys, *, head: ByteOffset | None, is_head_only: bool
) -> tuple[str, Mapping[ByteOffset, None], Loss]:
    """Why a journal takes no appends, the spool files that its store contradicts, and the loss.

    Args:
        is_head_only: refuse if more than the head is in doubt.

    Raises:
        InvalidArgument: it accepts appends, `head` is too low, or more than the head is in doubt.
        StoreUnhealthy: its files cannot be read, or its store cannot be asked. Nothing changed.
        ShuttingDown: the journal was closed meanwhile.
    """
    name, disk = replica.name, replica.context.disk
    if not (replica.stop_reason or replica.damage) and replica.log_registers is not None:
        raise InvalidArgument(f"journal {name} takes appends: there is no loss to accept")
    async with replica.context.reporting:
        if replica.is_closed:
            raise ShuttingDown(f"journal {name} was closed: look again")
        for looks_left in reversed(range(LOOKS_MAX)):
            here = [each for each in (*replica.closed, replica.spool) if not each.fault]
            try:
                doubted = (await contradiction(disk, name, here, replica.index.everything())).spools
                reason = replica.stop_reason or replica.damage or registers_lost(name)
                loss = await disk.run(partial(look, replica, keys, head=head, doubted=doubted))
                break
            except OSError as error:
                if isinstance(error, FileNotFoundError) and looks_left:
                    continue  # A file that the store has was removed meanwhile.
                text = f"journal {name}: its loss cannot be looked for: {error}; nothing changed: try again"
                raise StoreUnhealthy(text) from error
    if is_head_only and loss.is_damaged:
        raise InvalidArgument(f"journal {name}: more than its head is in doubt: {accept_loss(name)}")
    return reason, doubted, loss


async def accept(
    replica: Replica, keys: Keys, *, head: ByteOffset | None, doubted: Mapping[ByteOffset, None]
) -> Loss:
    """Let a journal that was closed for it go on without what it lost, from its next opening on.

    Raises:
        InvalidArgument: as `look`.
        StoreUnhealthy: as `look` and `_with_origin`, or the disk refused. Nothing is accepted.
        Unknown: as `give_up` and `move_epoch`.
    """
    context = replica.context
    within = context.config.listing_wait
    indexes = await replica.store.list_side_soon(replica.name, within=within) if replica.is_listed else None
    try:
        # Look again: a journal that lost only its registers accepted appends until it was closed.
        loss = await context.disk.run(partial(look, replica, keys, head=head, doubted=doubted))
        loss = _with_origin(replica, loss, indexes, head=head)
        await context.disk.run(partial(give_up, replica, loss))
    except OSError as error:
        raise StoreUnhealthy(
            f"journal {replica.name}: its loss was not accepted, because the disk refused: {error}; free"
            f" some space, then {accept_loss(replica.name)}"
        ) from error
    await move_epoch(context, replica.info, keys, head=loss.head)
    return loss


def _with_origin(
    replica: Replica, loss: Loss, indexes: Sequence[str] | None, *, head: ByteOffset | None
) -> Loss:
    """The loss with a new origin, if the journal began at its own, which is lost, and has no index point.

    Above its origin a journal begins if it was trimmed: then it had an index, which is lost (journals.29).

    Args:
        indexes: the names of the producer indexes; None: the store does not tell.

    Raises:
        StoreUnhealthy: the store does not tell, and the operator did not choose to go on without it.
    """
    kept = loss.checkpoint
    begins = [kept.fragment_begin, *(each.begin for each in kept.closed)]
    begin = min([*begins, replica.index.begin] if len(replica.index) else begins)
    if replica.named_end or not replica.begin <= replica.origin < begin:
        return loss
    if indexes is None and head is None and framing_of(replica.info.spec) is not None:
        raise StoreUnhealthy(
            f"journal {replica.name}: its fragment store does not answer, and may have a producer index,"
            " where readers of messages begin; nothing changed: try again when it answers, or choose a --head"
        )
    is_new = indexes is not None and not greatest_point(indexes)
    return replace(loss, checkpoint=replace(kept, origin=begin)) if is_new else loss


def look(
    replica: Replica,
    keys: Keys,
    *,
    head: ByteOffset | None,
    doubted: Mapping[ByteOffset, None] = NONE_DOUBTED,
) -> Loss:
    """The loss of a journal. Blocking; changes nothing.

    Args:
        head: where the operator wants appends to go on; None: at the lowest offset that is safe.
        doubted: begins of the spool files that the fragment store contradicts.

    Raises:
        InvalidArgument: `head` is below a known offset.
        StoreUnhealthy: `head` is None, and the store has not told yet which offsets it knows.
    """
    if head is None and not replica.is_listed:
        raise StoreUnhealthy(
            f"journal {replica.name}: its fragment store has not answered since the start, and may know a"
            " greater offset; nothing changed: try again when it answers, or choose a --head above every"
            " offset that a reader has seen"
        )
    disk, directory = replica.context.disk, replica.directory
    try:
        seal = read_seal(disk, directory)
    except Corrupt:
        seal = None
    here: list[SpoolFile] = [each for each in (*replica.closed, replica.spool) if each.length]
    other = [each for each in here if each.begin in doubted and not each.fault]
    sound = [each for each in here if not each.fault and each.begin not in doubted]
    lost = list(seal.lost if seal is not None else ())
    lost += [Lost(each.begin, each.end, each.fault, each.digest()) for each in here if each.fault]
    lost += [Lost(each.begin, each.end, OTHER_BYTES, each.digest()) for each in other]
    lost += [Lost(each.begin, each.end, MISSING, each.sum) for each in replica.missing]
    if replica.log_fault and not seal:
        lost.append(Lost(replica.begin, replica.end, replica.log_fault))
    reached = max([replica.begin, replica.index.end, *(each.end for each in sound)])
    named = [(replica.index.end, "the fragment store has it"), (replica.end, "it was the committed end")]
    named.append((replica.named_end, "the producer index in the fragment store names it"))
    named += [(each.end, each.why) for each in lost]
    if keys.epoch is not None:
        named.append((decode_epoch(keys.epoch).start, "the epoch key names it"))
    if keys.registers is not None:
        named.append((decode_registers(keys.registers).at, "the registers key names it"))
    files, aside = spools_in(disk, directory), lost_files(disk, directory)
    # A try that was cut short may have moved aside the only file that tells how far the journal reached.
    reaches = [*((ByteOffset(begin + size), name) for name, begin, size in files), *ends_of_given_up(aside)]
    named += [(end, f"{name} reaches it") for end, name in reaches]
    known, why = max(named)
    if head is not None and head < known:
        raise InvalidArgument(
            f"a journal's head {head} is below {known}, which is known: {why}; choose {known} or more"
        )
    chosen = known if head is None else head
    for each in sorted(lost, key=lambda lost: lost.begin):
        if each.begin <= reached:
            reached = max(reached, each.end)  # This span is in the report already.
    checkpoint = _checkpoint(replica, keys, sound, chosen)
    unlisted = [each for each in _moved(replica, files, checkpoint, lost) if each.begin < reached]
    if reached < chosen:
        lost.append(Lost(reached, chosen, f"no file or fragment has it, but {chosen} is known: {why}"))
    registers = replica.log_registers
    return Loss(
        head=chosen,
        lost=tuple(dict.fromkeys((*lost, *unlisted))),
        checkpoint=checkpoint,
        is_damaged=any((len(sound) < len(here), unlisted, seal is not None and seal.reason, replica.missing)),
        are_registers_lost=registers is None,
        kept_aside=tuple(aside),
    )


def _checkpoint(replica: Replica, keys: Keys, sound: Sequence[SpoolFile], head: ByteOffset) -> Checkpoint:
    known = decode_registers(keys.registers) if keys.registers is not None else NO_REGISTERS
    registers = replica.log_registers or RegisterState(values={}, version=known.version + 1, at=head)
    is_whole = bool(sound) and sound[-1] is replica.spool and replica.spool.end == head
    told = [ClosedSpool(e.begin, e.end, e.digest()) for e in (sound[:-1] if is_whole else sound)]
    awaited = () if replica.is_listed else replica.awaited  # Not told as lost: the store must still have it.
    return Checkpoint(
        epoch=replica.epoch,
        fragment_begin=replica.spool.begin if is_whole else head,
        end=head,
        sum=replica.spool.digest() if is_whole else EMPTY_SUM,
        first_append=replica.spool.first_append if is_whole else 0,
        registers=registers,
        closed=tuple(sorted([*awaited, *told], key=lambda each: each.begin)),
        attempts=replica.log_attempts.remembered(),  # Their clients may still ask for the outcome.
        origin=replica.origin or NO_ORIGIN,
    )


def _moved(
    replica: Replica,
    files: Sequence[tuple[str, ByteOffset, int]],
    checkpoint: Checkpoint,
    lost: Sequence[Lost],
) -> Iterator[Lost]:
    """The spans of spool files that `give_up` moves aside, and that neither `lost` tells nor the store has.

    If the record that named a closed file is damaged, the file may be whole, but nothing proves it.
    """
    kept, listed = _kept(checkpoint), {each.begin: each.end for each in lost}
    for name, begin, size in files:
        at, end = max(begin, kept.get(begin, begin)), ByteOffset(begin + size)
        stored = replica.index.covering(at)
        if at < end and listed.get(at, at) < end and (stored is None or stored.end < end):
            yield Lost(at, end, f"no sound record of the log names {name} there, and it is moved aside")


def _kept(checkpoint: Checkpoint) -> dict[ByteOffset, ByteOffset]:
    """The end of the sound content of each file, by its begin."""
    kept = {each.begin: each.end for each in checkpoint.closed}
    return {**kept, checkpoint.fragment_begin: checkpoint.end}


def spans_of(lost: Sequence[Lost]) -> list[LostSpan]:
    """The lost spans of a reply; above `LOST_SPANS_MAX`, one around all others takes their place."""
    others = lost[LOST_SPANS_MAX:]
    spans = [LostSpan(e.begin, e.end, e.why, e.sum.hex(), e.first_append) for e in lost[:LOST_SPANS_MAX]]
    if others:
        begin, end = min(each.begin for each in others), max(each.end for each in others)
        spans.append(LostSpan(begin, end, f"{len(others)} more spans in it"))
    return spans


def give_up(replica: Replica, loss: Loss) -> None:
    """Move aside all content of a journal that is not sound, and write its seal. Blocking; repeatable.

    The replica is closed.

    Raises:
        OSError: the disk refused. Nothing is accepted.
        Unknown: the seal may be in its file, but the disk did not make it durable.
    """
    disk, directory = replica.context.disk, replica.directory
    checkpoint = loss.checkpoint
    sound = _kept(checkpoint)
    for name, begin, size in spools_in(disk, directory):
        if begin in sound and begin + size <= sound[begin]:
            continue
        if begin in sound and sound[begin] > begin:
            _move_tail(replica, name, begin=begin, keep=sound[begin] - begin)
        elif size:
            disk.rename(f"{directory}/{name}", unused_name(disk, directory, begin=begin, size=size))
    here = [name for name, _, _ in spools_in(disk, directory)]
    # The seal's checkpoint says that the sound files are synced, so sync them first.
    sync_files(disk, [f"{directory}/{name}" for name in here])
    disk.sync_dir(directory)
    now = replica.context.time.wall()
    seal = Seal(
        journal=replica.name,
        checkpoint=checkpoint,
        generation=replica.context.log.generation(replica.stream),
        written=now,
        lost=loss.lost,
        accepted=now,
    )
    try:
        write_seal(disk, directory, seal)
    except OSError as error:
        if _may_be_written(replica, seal):
            raise Unknown(
                f"journal {replica.name}: its loss may be accepted, because the decision is written but may"
                f" not be durable: {error}; look again: {accept_loss(replica.name)}"
            ) from error
        raise


def _may_be_written(replica: Replica, seal: Seal) -> bool:
    try:
        return read_seal(replica.context.disk, replica.directory) == seal
    except (Corrupt, OSError):
        return True


def _move_tail(replica: Replica, name: str, *, begin: int, keep: int) -> None:
    disk, directory = replica.context.disk, replica.directory
    file = disk.open(f"{directory}/{name}")
    try:
        size = file.size()
        copy = copy_out(disk, directory, file, begin=begin, skip=keep, size=size)
        disk.rename(f"{directory}/{copy}", unused_name(disk, directory, begin=begin + keep, size=size - keep))
        disk.sync_dir(directory)  # Its name is what tells a second try how far it reached.
        file.truncate(keep)
        file.sync()
    finally:
        file.close()


async def move_epoch(context: Context, info: JournalInfo, keys: Keys, *, head: ByteOffset) -> None:
    """Put a journal's epoch key that names `head` and this node's data, after its loss was accepted.

    Raises:
        Unknown: the key was not put, or it changed meanwhile. The loss is accepted: look again.
    """
    name = info.name
    value = EpochValue(
        members=(Member(node=context.node, incarnation=context.incarnation),), start=head, sum=EMPTY_SUM
    )
    known = keys.epoch.mod_revision if keys.epoch is not None else Revision(0)
    compares: list[Compare] = [
        CreateRevisionIs(spec_key(name), info.create_revision),
        ModRevisionIs(epoch_key(name), known),
    ]
    put = Put(epoch_key(name), encode_epoch(value))
    try:
        outcome = await context.keyspace.transact(compares, [put], is_upkeep=True)
    except Refused as error:
        raise Unknown(
            f"journal {name}: its loss is accepted, but its epoch key was not moved: {error}; look again:"
            f" {accept_loss(name)}"
        ) from error
    if not outcome.succeeded:
        raise Unknown(f"journal {name}: its epoch key changed meanwhile; look again")
