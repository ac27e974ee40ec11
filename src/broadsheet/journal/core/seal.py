"""Seal: the sound state of a journal whose log lost records, written to a file beside its spool files.

Offsets are bytes, times nanoseconds since the Unix epoch. The log reports its damage only once; the seal
keeps the finding until it is resolved. While the seal has a `reason`, the journal refuses appends, until an
operator accepts what is `lost`. A seal without a reason keeps a decided head safe from a crash until the log
holds that head. A seal governs until the log has a record of a later generation than the seal's (`governs`).

This module reads no file. Source: journals.3 (seals, quarantine), journals.12, journals.15; W6, W7.
"""

from typing import Final

import msgspec

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import ByteOffset, Generation, JournalName
from broadsheet.errors import Corrupt
from broadsheet.journal.core.records import NO_ORIGIN, Checkpoint, ClosedSpool
from broadsheet.journal.core.recovery import RecoveryPlan

SEAL: Final = 16
"""First byte of a seal's file: version 1 of its format."""
CRC_BYTES: Final = 4


class Lost(msgspec.Struct, frozen=True):
    """A span of a journal whose content no sound record or file proves any more."""

    begin: ByteOffset
    end: ByteOffset
    why: str
    sum: bytes = b""
    """SHA-1 of the fragment through `end`; empty if no record has it."""
    first_append: int = 0
    """When the fragment got its first byte; 0 if that is not known."""


class Seal(msgspec.Struct, frozen=True):
    """What is sound of a journal, what is lost, and whether its appends may go on."""

    journal: JournalName
    checkpoint: Checkpoint
    """The sound state, up to its `end`."""
    generation: Generation
    """The generation of the log's stream when the seal was written."""
    written: int
    reason: str = ""
    """Why no content may be appended; empty if it may."""
    lost: tuple[Lost, ...] = ()
    accepted: int = 0
    """When an operator accepted the loss; 0 if nobody did."""


_decoder = msgspec.msgpack.Decoder(Seal)


def encode_seal(seal: Seal) -> bytes:
    """The whole file."""
    body = bytes((SEAL,)) + msgspec.msgpack.encode(seal)
    return body + crc32c(body).to_bytes(CRC_BYTES, "little")


def decode_seal(content: bytes, name: str) -> Seal:
    """The journal's seal in a seal file's `content`.

    Raises:
        Corrupt: the file is damaged, or of a newer version.
    """
    body, crc = content[:-CRC_BYTES], content[-CRC_BYTES:]
    if crc32c(body).to_bytes(CRC_BYTES, "little") != crc or body[:1] != bytes((SEAL,)):
        raise Corrupt(f"seal {name} of {len(content)} bytes fails its checksum, or is of a newer version")
    try:
        return _decoder.decode(memoryview(body)[1:])
    except msgspec.DecodeError as error:
        raise Corrupt(f"seal {name} does not decode: {error}: written by a newer version?") from error


def governs(seal: Seal, newest: Generation | None) -> bool:
    """Whether a journal's seal is newer than its log's records, so that it counts and they do not.

    With equal generations a crash came before the log's stream was begun anew.

    Args:
        newest: the generation of the log's newest record; None if it has none.
    """
    return newest is None or newest <= seal.generation


def checkpoint_of(plan: RecoveryPlan) -> Checkpoint:
    """The journal's checkpoint that describes the same state as `plan`."""
    last = plan.spools[-1]
    return Checkpoint(
        epoch=plan.epoch,
        fragment_begin=last.begin,
        end=last.end,
        sum=last.sum,
        first_append=last.first_append,
        registers=plan.registers,
        closed=tuple(ClosedSpool(each.begin, each.end, each.sum) for each in plan.spools[:-1]),
        attempts=plan.attempts.remembered(),
        attempts_from=plan.attempts.known_from,
        origin=plan.origin or NO_ORIGIN,
    )
