"""UUID: the message UUID, which is RFC 4122 version 1 with flags in the clock sequence.

Units: a `Clock` has 64 unsigned bits: the count of 100 ns since 1582-10-15 (60 bits) times 16, plus a
sequence number of 4 bits. Clock 0 means that a message has no UUID. A `ProducerId` has 48 bits; the multicast
bit of its first byte is set, so that no network card has it as its address. Layout: bytes 0..3 low time, 4..5
middle time, 6..7 high time and version 1, 8..9 variant, 4 sequence bits and 10 flag bits, 10..15 producer.
This module draws no entropy and reads no clock. Source: RFC 4122 4.1; paper "Message UUIDs"; Gazette
(published vectors).
"""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, NewType

Clock = NewType("Clock", int)
"""A producer's tick, unsigned 64 bits."""

ProducerId = NewType("ProducerId", int)
"""The source of a message, 48 bits; never shared by two publishers."""

NO_CLOCK: Final = Clock(0)
UUID_BYTES: Final = 16
TEXT_BYTES: Final = 36
FLAGS_MASK: Final = 0x3FF
PRODUCER_BYTES: Final = 6
MULTICAST: Final = 1 << 40
"""The lowest bit of a producer's first byte."""

_HEAD = Struct(">IHHH")
_VERSION_1 = 0x1000
_VARIANT = 0x8000
_DASHES = (8, 13, 18, 23)


class Flag(IntEnum):
    """How a message takes part in the transactions of its producer."""

    OUTSIDE = 0
    """Committed by itself."""
    CONTINUE = 1
    """Pending until its producer acknowledges."""
    ACK = 2
    """Commits what its producer sent with smaller clocks, and rolls back what it sent with greater ones."""


class MessageId(NamedTuple):
    """A message's UUID taken apart. A tuple, because millions of them are made."""

    producer: ProducerId
    clock: Clock
    flags: int


NO_ID: Final = MessageId(ProducerId(0), NO_CLOCK, 0)
"""The identity of a message without UUID. It is always committed, and its duplicates are not found."""


def meaning(flags: int) -> Flag:
    """The flag in `flags`. An unknown value counts as OUTSIDE, as in Gazette."""
    return Flag(flags) if flags in (Flag.CONTINUE, Flag.ACK) else Flag.OUTSIDE


def producer_from(entropy: bytes) -> ProducerId:
    """The producer id made of six random bytes."""
    assert len(entropy) == PRODUCER_BYTES, "a producer id is six bytes"
    return ProducerId(int.from_bytes(entropy, "big") | MULTICAST)


def pack(producer: ProducerId, clock: Clock, flags: int) -> bytes:
    """The sixteen bytes of a message's UUID."""
    assert 0 <= flags <= FLAGS_MASK, "flags are ten bits"
    time = clock >> 4
    head = _HEAD.pack(
        time & 0xFFFFFFFF,
        (time >> 32) & 0xFFFF,
        (time >> 48) & 0xFFF | _VERSION_1,
        _VARIANT | (clock & 0xF) << 10 | flags,
    )
    return head + producer.to_bytes(PRODUCER_BYTES, "big")


def unpack(raw: bytes) -> MessageId:
    """The identity in a message's sixteen bytes; `NO_ID` if they are not a version 1 UUID of RFC 4122."""
    if len(raw) != UUID_BYTES:
        return NO_ID
    low, middle, high, sequence = _HEAD.unpack_from(raw)
    if high & 0xF000 != _VERSION_1 or sequence & 0xC000 != _VARIANT:
        return NO_ID
    clock = ((high & 0xFFF) << 48 | middle << 32 | low) << 4 | (sequence >> 10) & 0xF
    if clock == NO_CLOCK:
        return NO_ID
    return MessageId(ProducerId(int.from_bytes(raw[10:], "big")), Clock(clock), sequence & FLAGS_MASK)


def to_text(raw: bytes) -> str:
    """The usual text of a UUID, 36 characters."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def from_text(text: bytes) -> MessageId:
    """The identity in a UUID's text of 36 ASCII characters; `NO_ID` for anything else."""
    if len(text) != TEXT_BYTES or any(text[at] != 0x2D for at in _DASHES):
        return NO_ID
    try:  # Of fewer digits come fewer bytes, which `unpack` refuses.
        return unpack(bytes.fromhex(text.replace(b"-", b"").decode("ascii")))
    except ValueError:
        return NO_ID
