"""Spool claims: what untrustworthy records of the log say about a journal's spool files.

Offsets are bytes. A claim is believed only if the content of a file proves it: content with the SHA-1 of the
record is the content that the record describes, even if the record itself is damaged. A damaged sum is proof,
too, while only a few of its 160 bits are wrong. If a record no longer decodes, the sum of a whole file may
still be found among its bytes.

This module reads no file. Source: journals.3; W7; ADR 0120, ADR 0125.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt
from broadsheet.journal.core.attempts import ATTEMPT_BYTES, Remembered
from broadsheet.journal.core.fragment import EMPTY_SUM, SUM_BYTES
from broadsheet.journal.core.records import PADDING_MAX, PROPOSAL, Checkpoint, Proposal, decode, head_of
from broadsheet.journal.core.registers import NO_REGISTERS, RegisterState

WRONG_BITS_MAX: Final = 8
"""Bits of a sum that may be damaged. Other content matches this closely with a chance of one in 2^110."""
SEARCHED_BYTES: Final = 64 << 10
"""How many first bytes of a record that does not decode are searched for a sum. A proposal has its sum in the
head, and a checkpoint is shorter than this."""

_REGISTERS_BEGIN: Final = msgspec.msgpack.encode(NO_REGISTERS).partition(msgspec.msgpack.encode({}))[0]
"""How the registers in a record begin."""


class Claim(msgspec.Struct, frozen=True):
    """One record's statement that the fragment that begins at `begin` has this sum through `end`."""

    begin: ByteOffset
    end: ByteOffset
    sum: bytes
    first_append: int
    registers: RegisterState | None
    """The registers in the record; None if it has none."""
    told_from: ByteOffset
    """From here to `end` the record tells which registers the appends have set: a proposal tells it of its
    own span, a checkpoint of all below its end."""
    attempts: tuple[Remembered, ...] = ()
    """The attempt of the record, if nothing can be wrong with its begin and end."""


class Claims(msgspec.Struct, frozen=True):
    """All claims about spools that the records at and after the damage make."""

    claims: Sequence[Claim]
    last_end: ByteOffset | None
    """The journal's end according to the records. None if a missing or unreadable record may have reached
    further. A checkpoint cannot rule that out, because appends go on while it is made; a later append can."""
    last: bytes = b""
    """The stream's very last record as it was found, damaged or not; empty if it is missing. Of a tail that
    was cut: the last record that was found."""
    end_before: ByteOffset | None = ByteOffset(0)
    """If the last record may be a checkpoint: how far the records before it reach; None if one is missing or
    unreadable. Such a one may be an append that came while the checkpoint was made, and so reaches further
    than that tells."""
    last_count: int = 0
    """How many of `claims`, at their end, are the last record's."""
    unreadable: Sequence[bytes] = ()
    """The records that do not decode; empty bytes for each missing one."""
    checkpoints: Sequence[bytes] = ()
    """The records that are no proposals, as they were found, damaged or not: such a one may list closed files
    whose begin or end is what is damaged."""
    is_tail: bool = False
    """Whether they are all of a tail that was cut."""


def claims_of(suspects: Sequence[bytes], *, is_complete: bool, is_tail: bool) -> Claims:
    """The claims about spools of `suspects`, in log order.

    Args:
        suspects: payloads of records; empty bytes for each missing one.
        is_complete: whether the last of them is the stream's very last record.
        is_tail: they are all of a tail that was cut: what lies behind them was never acknowledged.
    """
    claims: list[Claim] = []
    unreadable: list[bytes] = []
    last_end: ByteOffset | None = ByteOffset(0)
    end_before, count_before = last_end, 0
    for payload in suspects:
        end_before, count_before = last_end, len(claims)
        try:
            record = decode(payload)
        except Corrupt:
            last_end = None  # This record may reach further. A later append, if any, shows the end.
            unreadable.append(bytes(payload))
            continue
        if isinstance(record, Proposal | Checkpoint):
            claims += _claims(record)
            if isinstance(record, Proposal):
                last_end = record.end
            elif last_end is not None:
                last_end = max(last_end, record.end)
    last = bytes(suspects[-1]) if suspects else b""
    is_end_known = is_complete and bool(suspects)
    return Claims(
        claims,
        last_end if is_end_known else None,
        last if is_end_known or is_tail else b"",
        end_before=end_before if is_end_known and last[:1] != bytes((PROPOSAL,)) else ByteOffset(0),
        last_count=len(claims) - count_before,
        unreadable=tuple(unreadable),
        checkpoints=tuple(bytes(each) for each in suspects if each and each[0] != PROPOSAL),
        is_tail=is_tail,
    )


def _claims(record: Proposal | Checkpoint) -> Iterator[Claim]:
    first, registers = record.first_append, record.registers
    told_from = record.begin if isinstance(record, Proposal) else ByteOffset(0)
    if isinstance(record, Checkpoint):
        yield from (Claim(e.begin, e.end, e.sum, first, registers, told_from) for e in record.closed)
    attempts = _attempt(record)
    yield Claim(record.fragment_begin, record.end, record.sum, first, registers, told_from, attempts)


def _attempt(record: Proposal | Checkpoint) -> tuple[Remembered, ...]:
    """The attempt of a record whose content shows that begin and end are whole; no checkpoint shows that."""
    if isinstance(record, Checkpoint) or not record.attempt or record.content is None:
        return ()
    return (Remembered(record.attempt, record.begin, record.end),)


def agrees(found: bytes, named: bytes) -> bool:
    """Whether the sum that was found equals the one in a record, except for a few damaged bits."""
    return bits_wrong(found, named) <= WRONG_BITS_MAX and EMPTY_SUM not in (found, named)


def bits_wrong(one: bytes, other: bytes) -> int:
    """In how many bits two sums differ."""
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


def tells(record: bytes, digest: bytes) -> bool:
    """Whether a record contains `digest` anywhere, except for a few damaged bits."""
    searched = record[:SEARCHED_BYTES]
    if digest in searched:
        return digest != EMPTY_SUM
    return any(agrees(digest, searched[at : at + SUM_BYTES]) for at in _near(searched, digest))


def _near(searched: bytes, digest: bytes) -> Iterator[int]:
    """Where a damaged `digest` may begin: wrong bits are fewer than its pieces, so one piece is whole.

    To compare the sum at every place takes a thousand times as long, for each of many files.
    """
    for piece in range(WRONG_BITS_MAX + 1):
        begin, end = (each * SUM_BYTES // (WRONG_BITS_MAX + 1) for each in (piece, piece + 1))
        at = searched.find(digest[begin:end], begin)
        while 0 <= at <= len(searched) - SUM_BYTES + begin:
            yield at - begin
            at = searched.find(digest[begin:end], at + 1)


def may_reach(suspects: Sequence[bytes], end: ByteOffset, *, length_max: int) -> ByteOffset:
    """The greatest end that the undecodable records among `suspects` show; one that shows none adds nothing.

    If the end in a record's head agrees with the length of its content, that is the end. Otherwise the
    greatest end that the head or the length allows is taken.

    Args:
        suspects: payloads of the records after `end`; empty bytes for each missing one, which shows nothing.
        length_max: of one append; it bounds the result, because a damaged head may name any offset.
    """
    reached, at = end, end
    for payload in suspects:
        try:
            record = decode(payload)
        except Corrupt:
            if (head := head_of(payload)) is None:
                continue
            by_content = head.begin + head.content_bytes
            ends = [head.end, by_content, at + head.content_bytes]
            if 0 <= by_content - head.end <= ATTEMPT_BYTES + PADDING_MAX:
                ends = [head.end]
            at = ByteOffset(max((each for each in ends if at < each <= at + length_max), default=at))
            reached = max(reached, at)
        else:
            if isinstance(record, Proposal | Checkpoint):
                at = max(at, record.end)
    return reached


def possible_ends(record: bytes) -> list[ByteOffset]:
    """The possible ends of a proposal whose head may have one damaged bit; a sum must prove the right one."""
    if (head := head_of(record)) is None:
        return []
    ends = [head.end, *(head.end ^ 1 << bit for bit in range(64))]
    ends += [head.begin + head.content_bytes, head.begin + head.content_bytes - ATTEMPT_BYTES]
    return [ByteOffset(end) for end in dict.fromkeys(ends)]


def tells_sum(record: bytes, digest: bytes) -> bool:
    """Whether the head of a proposal, damaged or not, has this sum."""
    head = head_of(record)
    return head is not None and agrees(digest, head.sum)


def tells_begin(record: bytes, begin: ByteOffset) -> bool:
    """Whether a damaged checkpoint says that its open fragment is empty and begins at `begin`."""
    fields = ("fragment_begin", "end")
    return EMPTY_SUM in record and any(_pair(field, begin) in record for field in fields)


def registers_told_to(claims: Claims, known: RegisterState | None, settled: ByteOffset) -> ByteOffset | None:
    """Up to where the records tell which registers the appends have set; None: as far as they reach.

    A missing or unreadable record may be of an append whose registers were never put. A later record proves
    its content, but does not tell its registers.

    Args:
        settled: the registers of appends below were put, or are told by sound records.
    """
    if all(tells_no_other_registers(each, known) for each in claims.unreadable):
        return None
    told_to = max(settled, known.at if known is not None else settled)
    for claim in sorted(claims.claims, key=lambda each: each.told_from):
        if claim.told_from <= told_to and is_put(claim, known):
            told_to = max(told_to, claim.end)
    return told_to


def tells_no_other_registers(record: bytes, known: RegisterState | None) -> bool:
    """Whether a record that may be damaged sets no registers except those that the registers key already has.

    An append whose registers were never put was not acknowledged, so its record proves nothing. Newer
    registers differ in version and offset; damage in one place leaves two of the three fields readable.
    """
    if _sets_none(record) or _pair("registers", None) in record:
        return True
    if known is None:
        return False
    fields = (("values", known.values), ("version", known.version), ("at", known.at))
    matching = sum(_pair(name, value) in record for name, value in fields)
    return matching >= len(fields) - 1


def _sets_none(record: bytes) -> bool:
    """Whether a proposal has no registers, as far as it tells although one bit of it may be damaged."""
    if (head := head_of(record)) is None:
        return False
    behind = head.registers_bytes + head.content_bytes
    if record.startswith(_REGISTERS_BEGIN, len(record) - behind):
        return False
    # The kind or the length of the registers may be what is damaged: then they would have no room.
    has_no_room = min(behind, abs(behind - (head.end - head.begin))) <= ATTEMPT_BYTES + PADDING_MAX
    return has_no_room or (head.kind == PROPOSAL and not head.registers_bytes)


def is_put(claim: Claim, known: RegisterState | None) -> bool:
    """Whether the registers of a claim were put, so that its append may have been acknowledged."""
    mine, put = claim.registers or NO_REGISTERS, known or NO_REGISTERS
    return mine.version <= put.version and mine.at <= put.at  # One flipped bit does not hide newer ones.


def _pair(field: str, value: object) -> bytes:
    """A field's name and value as a record encodes them."""
    return msgspec.msgpack.encode(field) + msgspec.msgpack.encode(value)
