"""Spool claims: what records that the log does not vouch for say of a journal's spool files.

Offsets are bytes. A claim is believed only where the content of a file proves it: content that has the SHA-1
that was written down for it is that content, be the record itself damaged or not. A sum that is itself
damaged proves as much while only a few of its 160 bits are wrong. Where a record does not decode any more,
the sum of a whole file may still be found among its bytes.

Nothing here reads a file. Source: journals.3; W7; ADR 0120, ADR 0125.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt
from broadsheet.journal.core.attempts import Remembered
from broadsheet.journal.core.fragment import EMPTY_SUM, SUM_BYTES
from broadsheet.journal.core.records import Checkpoint, Proposal, decode
from broadsheet.journal.core.registers import RegisterState

WRONG_BITS_MAX: Final = 8
"""Bits of a sum that may be damaged: another content comes so near by a chance of one in 2^110."""
SEARCHED_BYTES: Final = 64 << 10
"""Of a record that does not decode: a sum stands in its head, or in a checkpoint, which is shorter."""


class Claim(msgspec.Struct, frozen=True):
    """What an unvouched record says: the fragment from `begin` on has this sum through `end`."""

    begin: ByteOffset
    end: ByteOffset
    sum: bytes
    first_append: int
    registers_version: int
    """Of the registers behind it that the record tells; 0: it tells none."""
    attempts: tuple[Remembered, ...] = ()
    """Whose appends the record tells of."""


class Claims(msgspec.Struct, frozen=True):
    """All that the records behind the damage say."""

    claims: Sequence[Claim]
    last_end: ByteOffset | None
    """Where the journal ends, as far as they tell. None where one that may reach further is missing or
    unreadable. A checkpoint does not tell of those before it, because appends go on while it is made."""
    last: bytes = b""
    """The stream's very last record as it was found, damaged or not; empty where it is missing."""


def claims_of(suspects: Sequence[bytes], *, is_complete: bool) -> Claims:
    """What `suspects`, in log order, say.

    Args:
        suspects: empty bytes stand for records that are missing.
        is_complete: whether the last of them is the stream's very last record.
    """
    claims: list[Claim] = []
    last_end: ByteOffset | None = ByteOffset(0)
    for payload in suspects:
        try:
            record = decode(payload)
        except Corrupt:
            last_end = None  # It may reach further than what is known, until an append behind it tells.
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
                    _attempts(record),
                )
            )
            if isinstance(record, Proposal):
                last_end = record.end
            elif last_end is not None:
                last_end = max(last_end, record.end)
    if not is_complete or not suspects:
        return Claims(claims, None)
    return Claims(claims, last_end, bytes(suspects[-1]))


def _attempts(record: Proposal | Checkpoint) -> tuple[Remembered, ...]:
    if isinstance(record, Checkpoint):
        return record.attempts
    return (Remembered(record.attempt, record.begin, record.end),) if record.attempt else ()


def agrees(found: bytes, told: bytes) -> bool:
    """Whether the sum of some content is the one that was told, but for a few bits that are damaged."""
    return bits_wrong(found, told) <= WRONG_BITS_MAX and EMPTY_SUM not in (found, told)


def bits_wrong(one: bytes, other: bytes) -> int:
    """In how many bits they differ."""
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


def tells(record: bytes, digest: bytes) -> bool:
    """Whether `digest` stands anywhere in a record, but for a few bits that are damaged."""
    searched = record[:SEARCHED_BYTES]
    if digest in searched:
        return digest != EMPTY_SUM
    windows = range(len(searched) - SUM_BYTES + 1)
    return any(agrees(digest, searched[at : at + SUM_BYTES]) for at in windows)


def tells_begin(record: bytes, begin: ByteOffset) -> bool:
    """Whether a checkpoint, damaged somewhere, says that its open fragment is empty and begins there."""
    fields = ("fragment_begin", "end")
    return EMPTY_SUM in record and any(_pair(field, begin) in record for field in fields)


def tells_no_other_registers(record: bytes, known: RegisterState | None) -> bool:
    """Whether a damaged record sets no registers but those that the registers key has.

    An append whose registers were never put was not acknowledged. Newer registers have another version and
    stand at another offset; damage in one place spares two of the three fields.
    """
    if b"version" not in record and b"values" not in record:
        return True
    if known is None:
        return False
    fields = (("values", known.values), ("version", known.version), ("at", known.at))
    told = sum(_pair(name, value) in record for name, value in fields)
    return told >= len(fields) - 1


def is_put(claim: Claim, known: RegisterState | None) -> bool:
    """Whether the registers behind a claim were put, as far as its record decodes."""
    return claim.registers_version <= (known.version if known is not None else 0)


def _pair(field: str, value: object) -> bytes:
    """A field of a record as it is written."""
    return msgspec.msgpack.encode(field) + msgspec.msgpack.encode(value)
