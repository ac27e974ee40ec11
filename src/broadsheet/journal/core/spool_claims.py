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
from broadsheet.journal.core.records import PROPOSAL, Checkpoint, Proposal, decode, head_of
from broadsheet.journal.core.registers import RegisterState

WRONG_BITS_MAX: Final = 8
"""Bits of a sum that may be damaged. Other content matches this closely with a chance of one in 2^110."""
PADDING_MAX: Final = 7
"""Bytes of padding that may follow a record, if its frame does not say how long the record is."""
SEARCHED_BYTES: Final = 64 << 10
"""How many first bytes of a record that does not decode are searched for a sum. A proposal has its sum in the
head, and a checkpoint is shorter than this."""


class Claim(msgspec.Struct, frozen=True):
    """One record's statement that the fragment that begins at `begin` has this sum through `end`."""

    begin: ByteOffset
    end: ByteOffset
    sum: bytes
    first_append: int
    registers_version: int
    """The version of the registers in the record; 0 if it has none."""
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
    is_end_open: bool = False
    """Whether the last record may be a checkpoint, and lies behind a missing or unreadable one. The other one
    may be an append that came while the checkpoint was made, and so reaches further than that tells."""
    last_count: int = 0
    """How many of `claims`, at their end, are the last record's."""


def claims_of(suspects: Sequence[bytes], *, is_complete: bool, is_tail: bool) -> Claims:
    """The claims about spools of `suspects`, in log order.

    Args:
        suspects: payloads of records; empty bytes for each missing one.
        is_complete: whether the last of them is the stream's very last record.
        is_tail: they are all of a tail that was cut: what lies behind them was never acknowledged.
    """
    claims: list[Claim] = []
    last_end: ByteOffset | None = ByteOffset(0)
    end_before, count_before = last_end, 0
    for payload in suspects:
        end_before, count_before = last_end, len(claims)
        try:
            record = decode(payload)
        except Corrupt:
            last_end = None  # This record may reach further. A later append, if any, shows the end.
            continue
        if isinstance(record, Proposal | Checkpoint):
            version = record.registers.version if record.registers is not None else 0
            if isinstance(record, Checkpoint):
                claims += [
                    Claim(each.begin, each.end, each.sum, record.first_append, version)
                    for each in record.closed
                ]
            claims.append(
                Claim(
                    record.fragment_begin,
                    record.end,
                    record.sum,
                    record.first_append,
                    version,
                    _attempt(record),
                )
            )
            if isinstance(record, Proposal):
                last_end = record.end
            elif last_end is not None:
                last_end = max(last_end, record.end)
    last = bytes(suspects[-1]) if suspects else b""
    last_count = len(claims) - count_before
    if not is_complete or not suspects:
        return Claims(claims, None, last if is_tail else b"", last_count=last_count)
    is_end_open = end_before is None and last[:1] != bytes((PROPOSAL,))
    return Claims(claims, last_end, last, is_end_open=is_end_open, last_count=last_count)


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


def tells_no_other_registers(record: bytes, known: RegisterState | None) -> bool:
    """Whether a damaged record sets no registers except those that the registers key already has.

    An append whose registers were never put was not acknowledged, so its record proves nothing. Newer
    registers differ in version and offset; damage in one place leaves two of the three fields readable.
    """
    if b"version" not in record and b"values" not in record:
        return True
    if known is None:
        return False
    fields = (("values", known.values), ("version", known.version), ("at", known.at))
    matching = sum(_pair(name, value) in record for name, value in fields)
    return matching >= len(fields) - 1


def is_put(claim: Claim, known: RegisterState | None) -> bool:
    """Whether the registers of a claim were put, so that its append may have been acknowledged."""
    return claim.registers_version <= (known.version if known is not None else 0)


def _pair(field: str, value: object) -> bytes:
    """A field's name and value as a record encodes them."""
    return msgspec.msgpack.encode(field) + msgspec.msgpack.encode(value)
