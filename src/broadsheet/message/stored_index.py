"""Stored index: the bytes of a producer index, as a journal's owner stores them beside the journal.

An encoded index holds a checksum, and the checksum of the index before it. `decode` raises `Corrupt` on
damage; the caller must not go on from an empty index then, because acknowledged messages would appear a
second time. Units: clocks (100 ns / 16), byte offsets. This module does no IO. Source: journals.29;
docs/protocols/messages.md.
"""

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple, TypeVar

import numpy as np
from crc32c import crc32c

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt
from broadsheet.message.framing import Framing, Kind
from broadsheet.message.producer_state import ProducerIndex, ProducerState, begun
from broadsheet.message.uuid import Clock, ProducerId

T = TypeVar("T")

_MAGIC: Final = b"BSPI"
_VERSION: Final = 1
_HEAD: Final = Struct("<4sHHIQQII")
_STATE: Final = Struct("<6sQQqq")
_TOMBSTONE: Final = Struct("<6sI")
_SUM: Final = Struct("<I")
_SUMMED: Final = 0x48674BC7
"""The crc32c of any bytes that end with their own crc32c."""
BEGIN_BYTES: Final = _HEAD.size + 1
"""The first bytes of a stored index, which tell its length."""
_KINDS: Final = (Kind.JSON_LINES, Kind.FIXED)


def encode(index: ProducerIndex, *, previous: int) -> tuple[bytes, int]:
    """The stored form of a producer index, and its checksum, which the next index takes as `previous`.

    Args:
        previous: the checksum of the index before; 0 for the first index of a journal.
    """
    field = index.framing.uuid_field.encode()
    parts = [
        _HEAD.pack(
            _MAGIC,
            _VERSION,
            _KINDS.index(index.framing.kind),
            previous,
            index.offset,
            index.newest,
            len(index.states),
            len(index.forgotten),
        ),
        bytes((len(field),)) + field,
    ]
    parts += [
        _STATE.pack(producer.to_bytes(6, "big"), state.last_ack, state.last, state.begin, state.seen)
        for producer, state in _by_producer(index.states)
    ]
    parts += [
        _TOMBSTONE.pack(producer.to_bytes(6, "big"), mark) for producer, mark in _by_producer(index.forgotten)
    ]
    body = b"".join(parts)
    total = crc32c(body)
    return body + _SUM.pack(total), total


def _by_producer(found: Mapping[ProducerId, T]) -> Iterator[tuple[ProducerId, T]]:
    """The pairs by producer. To sort a million in Python holds all threads for seconds."""
    ordered = np.sort(np.fromiter(found, np.int64, len(found)))
    return ((ProducerId(each), found[ProducerId(each)]) for each in ordered.tolist())


class _Layout(NamedTuple):
    """Where the parts of a stored producer index are."""

    kind: int
    previous: int
    offset: int
    newest: int
    states_at: int
    forgotten_at: int


def verify(begin: bytes, size: int, total: int) -> None:
    """Check a stored producer index that is not in memory as a whole.

    Args:
        begin: its first bytes, `BEGIN_BYTES` or more if it is as long.
        size: how many bytes it has.
        total: the checksum of all of them.

    Raises:
        Corrupt: the checksum, the format or the version does not match.
    """
    _layout(begin, size, total)


def _layout(begin: bytes, size: int, total: int) -> _Layout:
    if size < BEGIN_BYTES + _SUM.size:
        raise Corrupt(f"a producer index of {size} bytes is too short")
    if total != _SUMMED:
        raise Corrupt("the checksum of a producer index is wrong")
    magic, version, kind, chain, offset, newest, state_count, forgotten_count = _HEAD.unpack_from(begin)
    if magic != _MAGIC or version != _VERSION or kind >= len(_KINDS):
        raise Corrupt(
            f"a producer index has format {magic!r}, version {version} and framing {kind}: this version of "
            f"Broadsheet reads format {_MAGIC!r}, version {_VERSION}"
        )
    at = BEGIN_BYTES + begin[_HEAD.size]
    middle = at + state_count * _STATE.size
    if middle + forgotten_count * _TOMBSTONE.size + _SUM.size != size:
        raise Corrupt(f"the producer index at offset {offset} has another length than its counts require")
    return _Layout(kind, chain, offset, newest, at, middle)


def index_from(stored: bytes, offset: int, *, framing: Framing, journal: str, asked: int) -> ProducerIndex:
    """The producer index that a node gave at an index point.

    Args:
        stored: empty at the journal's begin, and where the journal has no index.
        asked: the offset at or below which the newest one was wanted.

    Raises:
        Corrupt: it is damaged, or another one than was asked for.
    """
    if not stored:
        return begun(framing, ByteOffset(offset))
    index = decode(stored)
    if index.offset != offset or index.offset > asked:
        raise Corrupt(
            f"the producer index of {journal} at offset {offset} holds offset {index.offset}, and "
            f"offset {asked} was asked for"
        )
    return index


def decode(stored: bytes, *, previous: int | None = None) -> ProducerIndex:
    """Decode a stored producer index.

    Args:
        previous: the checksum of the index before it, to be compared; None if that is not known.

    Raises:
        Corrupt: the checksum, the format, the version or `previous` does not match.
    """
    kind, chain, offset, newest, at, middle = _layout(stored, len(stored), crc32c(stored))
    if previous is not None and chain != previous:
        raise Corrupt(f"the producer index at offset {offset} follows {chain:08x}, not {previous:08x}")
    body = memoryview(stored)[: -_SUM.size]
    return ProducerIndex(
        framing=Framing(kind=_KINDS[kind], uuid_field=bytes(body[_HEAD.size + 1 : at]).decode()),
        offset=ByteOffset(offset),
        newest=Clock(newest),
        states={
            ProducerId(int.from_bytes(raw, "big")): ProducerState(
                last_ack=Clock(ack), last=Clock(last), begin=ByteOffset(begin), seen=ByteOffset(seen)
            )
            for raw, ack, last, begin, seen in _STATE.iter_unpack(body[at:middle])
        },
        forgotten={
            ProducerId(int.from_bytes(raw, "big")): mark
            for raw, mark in _TOMBSTONE.iter_unpack(body[middle:])
        },
    )
