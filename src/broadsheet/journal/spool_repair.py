"""Spool repair: recovers a journal's content from its spool files after the log lost records of it.

Offsets are bytes. Blocking, for a thread; a crash may cut it short, and it is repeated. Bytes of a file are
believed if they have a sum that some record names (`core/spool_claims.py`), even if that record is damaged.
Proven bytes are written again, because a read of the page cache does not prove that the disk has them. The
repair is complete if the plan reaches the end that the stream's very last record names.

If no record before the damage is left, the first spool file may begin anywhere: the bytes below it are
stored. Source: journals.3; W7; ADR 0120, ADR 0125.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha1
from typing import NamedTuple

from msgspec.structs import replace

from broadsheet.base.marks import hit
from broadsheet.base.types import ByteOffset
from broadsheet.journal.core.fragment import EMPTY_SUM, Fragment
from broadsheet.journal.core.recovery import RecoveryPlan, SpoolPlan
from broadsheet.journal.core.registers import RegisterState
from broadsheet.journal.core.spool_claims import (
    Claim,
    Claims,
    agrees,
    is_put,
    possible_ends,
    registers_told_to,
    tells,
    tells_begin,
    tells_no_other_registers,
    tells_sum,
)
from broadsheet.journal.set_aside import PIECE_BYTES, spools_in
from broadsheet.journal.spool_file import spool_name, write_again
from broadsheet.ports import Disk, File
from broadsheet.wal.segments import read_around


class SpoolFound(NamedTuple):
    """A spool file as it was found."""

    begin: ByteOffset
    size: int

    @property
    def end(self) -> ByteOffset:
        """The end of its bytes, adopted or not."""
        return ByteOffset(self.begin + self.size)


class Witnesses(NamedTuple):
    """Evidence about the content of spool files, beside the sound records of the log."""

    claims: Claims
    registers: RegisterState | None
    """The registers key. An append that set later ones was never acknowledged: the repair ends before it."""
    settled: ByteOffset = ByteOffset(0)
    """Where the journal's epoch began: the registers of all appends below were put with its key."""
    is_based: bool = True
    """Whether the log has any sound record. If not, the begin of the plan is not known."""
    stored: Sequence[Fragment] = ()
    """The fragments in the store."""


def repair(disk: Disk, directory: str, plan: RecoveryPlan, witnesses: Witnesses) -> bool:
    """Extend the journal's `plan` by the proven content of the spool files; whether nothing is missing."""
    claims = witnesses.claims
    # A checkpoint may name an end that appends before it in the log have passed already.
    last_end = None if claims.last_end is None else max(claims.last_end, plan.end)
    later = (at for at, each in enumerate(claims.claims) if not is_put(each, witnesses.registers))
    first_later = next(later, None)
    taken = [*claims.claims[:first_later]]
    found = [SpoolFound(begin, size) for _, begin, size in spools_in(disk, directory)]
    # Behind an append whose registers were never put, the last record proves content that lacks registers.
    # In the last record itself a damaged version may look so; `tells_no_other_registers` judges that one.
    is_last_sure = (
        (first_later is None or first_later >= len(claims.claims) - claims.last_count)
        and bool(claims.last)
        and tells_no_other_registers(claims.last, witnesses.registers)
    )
    settled = max(witnesses.settled, plan.end if witnesses.is_based else witnesses.settled)
    told_to = registers_told_to(claims, witnesses.registers, settled)
    if is_last_sure:
        # A file that the log vouches for to its end needs no other witness.
        open_ended = [each for each in found if each.end > plan.end or not witnesses.is_based]
        lists = [each for each in claims.checkpoints if tells_no_other_registers(each, witnesses.registers)]
        taken += _claimed_by_bytes(disk, directory, open_ended, claims.last, [*lists, claims.last])
    if told_to is not None and claims.is_tail:
        # A missing record may be of an append whose registers were never put.
        taken = [each for each in taken if each.end <= told_to]
    bases = (
        [ByteOffset(0)]
        if witnesses.is_based
        else list(dict.fromkeys([ByteOffset(0), *(f.begin for f in found)]))
    )
    by_begin: dict[int, list[Claim]] = {}
    for claim in taken:
        by_begin.setdefault(claim.begin, []).append(claim)
    last_byte = max((each.end for each in found if each.size), default=ByteOffset(0))
    best, is_whole, followed = plan, False, dict[ByteOffset, None]()
    for base in bases:
        if base in followed:
            continue  # What follows from here is the end of what a lower base has led to.
        trial = replace(plan, spools=[replace(each) for each in plan.spools])
        if not witnesses.is_based:
            trial.spools, trial.end = [SpoolPlan(base, base, EMPTY_SUM, 0)], base
        _extend(disk, directory, trial, by_begin)
        followed |= dict.fromkeys(each.begin for each in trial.spools)
        below = (each for each in found if each.size and each.begin < trial.spools[0].begin)
        is_whole = (
            last_byte <= trial.end
            and (trial.end == last_end or (is_last_sure and _is_told_whole(trial, claims)))
            and all(_is_stored(disk, directory, each, witnesses.stored) for each in below)
        )
        if is_whole or trial.end - trial.spools[0].begin > best.end - best.spools[0].begin:
            best = trial
        if is_whole:
            break
    plan.spools, plan.end = best.spools, best.end
    if told_to is not None and plan.end > told_to:
        hit("journal.registers_not_told")
        plan.registers = None  # A later record proves content of an append that may have set others.
    return is_whole


def _extend(disk: Disk, directory: str, plan: RecoveryPlan, by_begin: Mapping[int, Sequence[Claim]]) -> None:
    while True:
        spool = plan.spools[-1]
        proven = _proven(disk, directory, spool, by_begin.get(spool.begin, ()))
        if proven is not None:
            hit("journal.repaired_from_spool")
            first = spool.first_append if spool.end > spool.begin else proven.first_append
            spool.end, spool.sum, spool.first_append = proven.end, proven.sum, first
            plan.end = proven.end
        follows = [claim for claim in by_begin.get(plan.end, ()) if claim.end > claim.begin]
        if not follows or spool.begin == plan.end:
            return
        spool.is_closed = True
        plan.spools.append(SpoolPlan(plan.end, plan.end, EMPTY_SUM, follows[0].first_append))


def _is_told_whole(plan: RecoveryPlan, claims: Claims) -> bool:
    """Whether the stream's last record, decodable or not, names the plan's end, and none before passed it."""
    if claims.end_before is None or claims.end_before > plan.end:
        return False
    spool = next((each for each in reversed(plan.spools) if each.end > each.begin), None)
    return tells(claims.last, spool.sum) if spool is not None else tells_begin(claims.last, plan.end)


def _claimed_by_bytes(
    disk: Disk, directory: str, found: Sequence[SpoolFound], last: bytes, records: Sequence[bytes]
) -> Iterable[Claim]:
    """Claims for the spools whose sum is among the bytes of the last record, or of a checkpoint.

    The sum of a whole file may be anywhere in one of the `records`. If a file has later bytes that were never
    adopted, the sum in the last record's head counts, for an end that the head names, or would name without
    one damaged bit.
    """
    ends = possible_ends(last)
    for each in found:
        for end, digest in _sums(disk, directory, each, [*ends, each.end]):
            if any(tells(r, digest) for r in records) if end == each.end else tells_sum(last, digest):
                yield Claim(each.begin, end, digest, first_append=0, registers=None, told_from=end)


def _is_stored(disk: Disk, directory: str, found: SpoolFound, stored: Sequence[Fragment]) -> bool:
    """Whether the store has exactly this content, so that the file was about to be removed."""
    named = [each.sum for each in stored if (each.begin, each.end) == (found.begin, found.end)]
    return bool(named) and _sum(disk, directory, found) in named


def _sum(disk: Disk, directory: str, found: SpoolFound) -> bytes:
    return next((digest for _, digest in _sums(disk, directory, found, [found.end])), EMPTY_SUM)


def _sums(
    disk: Disk, directory: str, found: SpoolFound, ends: Sequence[ByteOffset]
) -> Iterable[tuple[ByteOffset, bytes]]:
    """The sum of a spool file through each of the `ends` that lie in it; the file is read once."""
    digest, at = sha1(usedforsecurity=False), found.begin
    file = disk.open(spool_name(directory, found.begin))
    try:
        for end in sorted(each for each in dict.fromkeys(ends) if found.begin < each <= found.end):
            while at < end:
                piece = read_around(file, at - found.begin, min(PIECE_BYTES, end - at))
                if not piece:
                    return
                digest.update(piece)
                at = ByteOffset(at + len(piece))
            yield end, digest.digest()
    finally:
        file.close()


def _proven(disk: Disk, directory: str, spool: SpoolPlan, claims: Iterable[Claim]) -> Claim | None:
    """The furthest claim that a spool's content proves, after that content was written again."""
    wanted: dict[int, list[Claim]] = {}
    for claim in claims:
        if claim.end > spool.end:
            wanted.setdefault(claim.end, []).append(claim)
    name = spool_name(directory, spool.begin)
    if not wanted or not disk.exists(name):
        return None
    file = disk.open(name)
    try:
        write_again(file, spool)
        proven = _furthest(file, spool, wanted)
        if proven is not None:
            _write_anew(file, spool.end - spool.begin, proven.end - spool.begin)
        return proven
    finally:
        file.close()


def _furthest(file: File, spool: SpoolPlan, wanted: dict[int, list[Claim]]) -> Claim | None:
    """The furthest proven claim about a spool; reads the file once, up to the last claimed end."""
    digest, at, best = sha1(usedforsecurity=False), spool.begin, None
    for end in sorted({*wanted, spool.end}):
        while at < end:
            piece = read_around(file, at - spool.begin, min(PIECE_BYTES, end - at))
            if not piece:
                return best  # The file ends here.
            digest.update(piece)
            at = ByteOffset(at + len(piece))
        found = digest.digest() if at > spool.begin else EMPTY_SUM
        if end == spool.end and found != spool.sum:
            return None  # The content before the claims is damaged itself.
        proven = next((claim for claim in wanted.get(end, ()) if agrees(found, claim.sum)), None)
        best = best if proven is None else replace(proven, sum=found)
    return best


def _write_anew(file: File, begin: int, end: int) -> None:
    """Write [begin, end) again in place, because a read of the page cache proves nothing about the disk.

    Only proven bytes are written: after them may be an unreadable sector, which reads as zeros now and may be
    readable again later.
    """
    for at in range(begin, end, PIECE_BYTES):
        file.write_at(at, (file.read_at(at, min(PIECE_BYTES, end - at)),))
