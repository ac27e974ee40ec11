"""Spool repair: a journal's content from its spool files, where its log lost the records that name it.

Offsets are bytes. Blocking, for a thread; it may be cut by a crash and repeated. A file's bytes are believed
where a sum proves them that some record names (`core/claims.py`), be that record itself damaged or not; what
is proven is written anew, because reading it proves nothing about the disk. The plan that comes of it is
whole where it reaches the end that the stream's very last record tells.

Where no record is left before the damage, the first spool file may begin anywhere: what lies below is stored.
Source: journals.3; W7; ADR 0120, ADR 0125.
"""

from collections.abc import Iterable, Sequence
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
    ends_told,
    is_put,
    tells,
    tells_begin,
    tells_no_other_registers,
    tells_sum,
)
from broadsheet.journal.seal_files import PIECE_BYTES, spools_in
from broadsheet.journal.spool_file import spool_name
from broadsheet.ports import Disk, File
from broadsheet.wal.segments import read_around


class SpoolFound(NamedTuple):
    """A spool file as it stands."""

    begin: ByteOffset
    size: int

    @property
    def end(self) -> ByteOffset:
        """Where its bytes end, adopted or not."""
        return ByteOffset(self.begin + self.size)


class Witnesses(NamedTuple):
    """Who says what the spool files hold, beside the records that the log vouches for."""

    claims: Claims
    registers: RegisterState | None
    """Of the registers key. An append that set later ones was never acknowledged: nothing is taken from there
    on."""
    is_based: bool = True
    """Whether the log vouches for any record: else the plan begins at 0 for want of a better one."""
    stored: Sequence[Fragment] = ()
    """What the fragment store has."""


def repair(disk: Disk, directory: str, plan: RecoveryPlan, witnesses: Witnesses) -> bool:
    """Extend `plan` by what the spool files have and the witnesses prove; whether that is all there was."""
    claims = witnesses.claims
    # A checkpoint may be of an end that appends before it in the log have passed already.
    last_end = None if claims.last_end is None else max(claims.last_end, plan.end)
    later = (at for at, each in enumerate(claims.claims) if not is_put(each, witnesses.registers))
    taken = [*claims.claims[: next(later, None)]]
    found = [SpoolFound(begin, size) for _, begin, size in spools_in(disk, directory)]
    is_last_sure = bool(claims.last) and tells_no_other_registers(claims.last, witnesses.registers)
    if is_last_sure:
        # A file that the log vouches for to its end needs no other witness.
        open_ended = [each for each in found if each.end > plan.end or not witnesses.is_based]
        taken += _claimed_by_bytes(disk, directory, open_ended, claims.last)
    bases = (
        [ByteOffset(0)]
        if witnesses.is_based
        else list(dict.fromkeys([ByteOffset(0), *(f.begin for f in found)]))
    )
    best, is_whole = plan, False
    for base in bases:
        trial = replace(plan, spools=[replace(each) for each in plan.spools])
        if not witnesses.is_based:
            trial.spools, trial.end = [SpoolPlan(base, base, EMPTY_SUM, 0, base)], base
        _extend(disk, directory, trial, taken)
        below = [each for each in found if each.size and each.begin < trial.spools[0].begin]
        is_told = trial.end == last_end or (is_last_sure and _is_told_whole(trial, claims.last))
        has_more = any(each.size and each.end > trial.end for each in found)
        is_whole = (
            is_told
            and not has_more
            and all(_is_stored(disk, directory, each, witnesses.stored) for each in below)
        )
        if is_whole or trial.end - trial.spools[0].begin > best.end - best.spools[0].begin:
            best = trial
        if is_whole:
            break
    plan.spools, plan.end = best.spools, best.end
    return is_whole


def _extend(disk: Disk, directory: str, plan: RecoveryPlan, taken: Sequence[Claim]) -> None:
    while True:
        spool = plan.spools[-1]
        proven = _proven(disk, directory, spool, taken)
        if proven is not None:
            hit("journal.repaired_from_spool")
            first = spool.first_append if spool.end > spool.begin else proven.first_append
            spool.end, spool.sum, spool.first_append = proven.end, proven.sum, first
            plan.end = proven.end
        follows = [c for c in taken if c.begin == plan.end and c.end > c.begin]
        if not follows or spool.begin == plan.end:
            return
        spool.is_closed = True
        plan.spools.append(SpoolPlan(plan.end, plan.end, EMPTY_SUM, follows[0].first_append, plan.end))


def _is_told_whole(plan: RecoveryPlan, last: bytes) -> bool:
    """Whether the stream's last record, decodable or not, tells of the plan's end."""
    spool = next((each for each in reversed(plan.spools) if each.end > each.begin), None)
    return tells(last, spool.sum) if spool is not None else tells_begin(last, plan.end)


def _claimed_by_bytes(
    disk: Disk, directory: str, found: Sequence[SpoolFound], last: bytes
) -> Iterable[Claim]:
    """The sums of files that stand among the bytes of the last record.

    A whole file's may stand anywhere in it. Bytes that were never adopted may stand behind what the record is
    of: there the sum in its head tells, for an end that its head names, or would but for one bit.
    """
    told = ends_told(last)
    for each in found:
        for end, digest in _sums(disk, directory, each, [*told, each.end]):
            if tells(last, digest) if end == each.end else tells_sum(last, digest):
                yield Claim(each.begin, end, digest, first_append=0, registers_version=0)


def _is_stored(disk: Disk, directory: str, found: SpoolFound, stored: Sequence[Fragment]) -> bool:
    """Whether the store has exactly this content: its file was about to be removed."""
    named = [each.sum for each in stored if (each.begin, each.end) == (found.begin, found.end)]
    return bool(named) and _sum(disk, directory, found) in named


def _sum(disk: Disk, directory: str, found: SpoolFound) -> bytes:
    return next((digest for _, digest in _sums(disk, directory, found, [found.end])), EMPTY_SUM)


def _sums(
    disk: Disk, directory: str, found: SpoolFound, ends: Sequence[ByteOffset]
) -> Iterable[tuple[ByteOffset, bytes]]:
    """The sum of a file through each of the `ends` that lie in it; the file is read once."""
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
    """The furthest claim that the file's content proves; that content is written anew."""
    wanted: dict[int, list[Claim]] = {}
    for claim in claims:
        if claim.begin == spool.begin and claim.end > spool.end:
            wanted.setdefault(claim.end, []).append(claim)
    name = spool_name(directory, spool.begin)
    if not wanted or not disk.exists(name):
        return None
    file = disk.open(name)
    try:
        for begin, content in spool.writes:
            file.write_at(begin - spool.begin, (content,))
        proven = _furthest(file, spool, wanted)
        if proven is not None:
            _write_anew(file, spool.end - spool.begin, proven.end - spool.begin)
        return proven
    finally:
        file.close()


def _furthest(file: File, spool: SpoolPlan, wanted: dict[int, list[Claim]]) -> Claim | None:
    """Read the file once, up to the last end that is claimed."""
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
            return None  # What stands before it is damaged already.
        proven = next((claim for claim in wanted.get(end, ()) if agrees(found, claim.sum)), None)
        best = best if proven is None else replace(proven, sum=found)
    return best


def _write_anew(file: File, begin: int, end: int) -> None:
    """Write [begin, end) again, in place: reading it proves nothing about the disk.

    Only what is proven: what stands behind it may be a sector that reads as zeros, and comes back some day.
    """
    for at in range(begin, end, PIECE_BYTES):
        file.write_at(at, (file.read_at(at, min(PIECE_BYTES, end - at)),))
