"""Seal: what stands of a journal whose log lost records, written down beside its spool files.

Offsets are bytes, times nanoseconds since the Unix epoch. The log tells of its damage once; the seal keeps
it until it is dealt with. With a `reason` the journal takes no appends, until an operator accepts what is
`lost`. Without one it only carries a decided head over a crash, from the moment at which it is decided until
the log holds it. It governs until the log has a record of a later generation than its own: `governs`.

Nothing here reads a file. Source: journals.3 (seals, quarantine), journals.12, journals.15; W6, W7.
"""

from typing import Final

import msgspec

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import ByteOffset, Generation, JournalName
from broadsheet.errors import Corrupt
from broadsheet.journal.core.records import Checkpoint, ClosedSpool
from broadsheet.journal.core.recovery import RecoveryPlan

SEAL: Final = 16
"""First byte of a seal's file: version 1 of its format."""
CRC_BYTES: Final = 4


class Lost(msgspec.Struct, frozen=True):
    """A span that nothing vouches for any more."""

    begin: ByteOffset
    end: ByteOffset
    why: str
    sum: bytes = b""
    """SHA-1 of the fragment through `end`, where a record names it."""
    first_append: int = 0
    """When the fragment got its first byte; 0 where that is not known."""


class Seal(msgspec.Struct, frozen=True):
    """What stands, what does not, and whether appends may go on."""

    journal: JournalName
    checkpoint: Checkpoint
    """Everything that is sound, through its `end`."""
    generation: Generation
    """The log stream's, when this was written."""
    written: int
    reason: str = ""
    """Why no content may be appended; empty where it may."""
    lost: tuple[Lost, ...] = ()
    accepted: int = 0
    """When an operator accepted what is lost; 0: nobody did."""


_decoder = msgspec.msgpack.Decoder(Seal)


def encode_seal(seal: Seal) -> bytes:
    """The whole file."""
    body = bytes((SEAL,)) + msgspec.msgpack.encode(seal)
    return body + crc32c(body).to_bytes(CRC_BYTES, "little")


def decode_seal(content: bytes, name: str) -> Seal:
    """What a seal's file says.

    Raises:
        Corrupt: it is damaged, or of a newer version.
    """
    body, crc = content[:-CRC_BYTES], content[-CRC_BYTES:]
    if crc32c(body).to_bytes(CRC_BYTES, "little") != crc or body[:1] != bytes((SEAL,)):
        raise Corrupt(f"seal {name} of {len(content)} bytes fails its checksum, or is of a newer version")
    try:
        return _decoder.decode(memoryview(body)[1:])
    except msgspec.DecodeError as error:
        raise Corrupt(f"seal {name} does not decode: {error}: written by a newer version?") from error


def governs(seal: Seal, newest: Generation | None) -> bool:
    """Whether the log's records, the newest of which is of generation `newest`, are older than the seal."""
    return newest is None or newest <= seal.generation


def checkpoint_of(plan: RecoveryPlan) -> Checkpoint:
    """The checkpoint that says what `plan` says."""
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
    )
