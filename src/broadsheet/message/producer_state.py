"""Producer state: the states of a journal's producers at an offset, and the index that stores them.

An *index point* is a frame boundary at which the journal's owner stores the states: at each roll, and every
16 MiB. The next index depends only on the index before, on the bytes between (`spans.update`), and on the
prune horizon (`pruned`, at index points only). Units: clocks (100 ns / 16), byte offsets; `begin` is -1 if
no span is open. An encoded index holds a checksum, and the checksum of the index before it. `decode` raises
`Corrupt` on damage; the caller must not go on from an empty index then, because acknowledged messages would
appear a second time. This module does no IO and reads no clock. Source: journals.29-30;
docs/protocols/messages.md. How the owner uses it:

    index = begun(JSON_LINES)                        # at offset 0
    index = spans.update(index, content)             # content: the journal's bytes from index.offset on
    index = pruned(index)                            # at an index point
    stored, sum = encode(index, previous=sum)        # index.offset is the end of the last whole frame
"""

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from crc32c import crc32c

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt, SpanForgotten
from broadsheet.message.framing import Framing, Kind
from broadsheet.message.uuid import Clock, ProducerId

T = TypeVar("T")
NOT_OPEN: Final = ByteOffset(-1)
PRUNE_HORIZON: Final = Duration(24 * 3600 * SECOND)
OPEN_HORIZON: Final = Duration(7 * 24 * 3600 * SECOND)
ABSENT_BYTES: Final = 1 << 30
"""A producer that has a frame in the last GiB is not pruned, whatever its clock is."""
INDEX_BYTES_EVERY: Final = 16 << 20

_MAGIC: Final = b"BSPI"
_VERSION: Final = 1
_HEAD: Final = Struct("<4sHHIQQII")
_STATE: Final = Struct("<6sQQqq")
_TOMBSTONE: Final = Struct("<6sI")
_SUM: Final = Struct("<I")
_KINDS: Final = (Kind.JSON_LINES, Kind.FIXED)


class ProducerState(msgspec.Struct, frozen=True):
    """What a sequencer knows of one producer."""

    last_ack: Clock
    """The last acknowledged clock. A message at or below it is a duplicate."""
    last: Clock
    """The greatest clock of the open span; `last_ack` if none is open."""
    begin: ByteOffset
    """The offset where the open span begins, or `NOT_OPEN`."""
    seen: ByteOffset
    """The end of the producer's last frame. Pruning uses it."""


class ProducerIndex(msgspec.Struct, frozen=True):
    """The states of all producers of a journal at one frame boundary."""

    framing: Framing
    offset: ByteOffset
    newest: Clock = Clock(0)
    """The greatest clock of any message of the journal up to `offset`."""
    states: dict[ProducerId, ProducerState] = {}
    forgotten: dict[ProducerId, int] = {}
    """The tombstones: for each producer whose open span was given up, the upper 32 bits of its last
    acknowledged clock."""


def begun(framing: Framing, offset: ByteOffset = ByteOffset(0)) -> ProducerIndex:
    """The index of a journal that has no frames before `offset`."""
    return ProducerIndex(framing=framing, offset=offset)


def pruned(
    index: ProducerIndex, horizon: Duration = PRUNE_HORIZON, open_horizon: Duration = OPEN_HORIZON
) -> ProducerIndex:
    """The index without the producers that are gone for good (journals.30).

    A producer without an open span is dropped if it is `horizon` behind the newest clock *and* has no frame
    in the last GiB. A producer with an open span is replaced by a tombstone if it is `open_horizon` behind
    and has no frame in the last GiB. Without the second condition, a single producer whose clock is a year
    ahead would make the index drop all others.
    """
    states: dict[ProducerId, ProducerState] = {}
    forgotten = dict(index.forgotten)
    for producer, state in index.states.items():
        behind = index.newest - max(state.last_ack, state.last)
        is_open = state.begin != NOT_OPEN
        limit = ticks(open_horizon if is_open else horizon)
        if behind <= limit or index.offset - state.seen <= ABSENT_BYTES:
            states[producer] = state
        elif is_open:
            forgotten[producer] = state.last_ack >> 32
    return ProducerIndex(
        framing=index.framing, offset=index.offset, newest=index.newest, states=states, forgotten=forgotten
    )


def behind_hole(index: ProducerIndex, offset: ByteOffset) -> ProducerIndex:
    """The index at `offset`, after an operator accepted that the bytes from `index.offset` to it are lost.

    A producer's acknowledged clock is kept, so its old messages stay duplicates. A producer with an open
    span gets a tombstone: some of the span's messages may be lost, so its acknowledgement raises
    `SpanForgotten` instead of committing a part of them.
    """
    assert offset > index.offset, "a hole has bytes"
    states = {producer: state for producer, state in index.states.items() if state.begin == NOT_OPEN}
    opened = {p: state.last_ack >> 32 for p, state in index.states.items() if state.begin != NOT_OPEN}
    return ProducerIndex(
        framing=index.framing,
        offset=offset,
        newest=index.newest,
        states=states,
        forgotten={**index.forgotten, **opened},
    )


def ticks(duration: Duration) -> int:
    """`duration` in units of a `Clock`."""
    return duration // 100 << 4


def refuse_forgotten(index: ProducerIndex, producer: ProducerId, clock: Clock, offset: int) -> None:
    """Refuse an acknowledgement of a span that was given up.

    Raises:
        SpanForgotten: the producer has a tombstone, and the acknowledgement might commit messages. One that
            only rolls back (its clock is below the tombstone) passes.
    """
    mark = index.forgotten.get(producer)
    if mark is not None and clock >> 32 >= mark:
        raise SpanForgotten(
            f"at offset {offset} producer {producer:012x} acknowledges messages whose span was forgotten, "
            "because it was open for too long or begins before lost bytes: read these messages uncommitted, "
            "then go on behind this offset"
        )


def encode(index: ProducerIndex, *, previous: int) -> tuple[bytes, int]:
    """The stored form of an index, and its checksum, which the next index takes as `previous`.

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
    """Where the parts of a stored index are."""

    kind: int
    previous: int
    offset: int
    newest: int
    states_at: int
    forgotten_at: int


def verify(stored: bytes) -> None:
    """Check a stored index as a whole, without its producers in memory.

    Raises:
        Corrupt: the checksum, the format or the version does not match.
    """
    _layout(stored)


def _layout(stored: bytes) -> _Layout:
    if len(stored) < _HEAD.size + 1 + _SUM.size:
        raise Corrupt(f"a producer index of {len(stored)} bytes is too short")
    body, (total,) = memoryview(stored)[: -_SUM.size], _SUM.unpack_from(stored, len(stored) - _SUM.size)
    if crc32c(body) != total:
        raise Corrupt("the checksum of a producer index is wrong")
    magic, version, kind, chain, offset, newest, state_count, forgotten_count = _HEAD.unpack_from(body)
    if magic != _MAGIC or version != _VERSION or kind >= len(_KINDS):
        raise Corrupt(
            f"a producer index has format {magic!r}, version {version} and framing {kind}: this version of "
            f"Broadsheet reads format {_MAGIC!r}, version {_VERSION}"
        )
    at = _HEAD.size + 1 + body[_HEAD.size]
    middle = at + state_count * _STATE.size
    if middle + forgotten_count * _TOMBSTONE.size != len(body):
        raise Corrupt(f"the producer index at offset {offset} has another length than its counts require")
    return _Layout(kind, chain, offset, newest, at, middle)


def decode(stored: bytes, *, previous: int | None = None) -> ProducerIndex:
    """Decode a stored index.

    Args:
        previous: the checksum of the index before it, to be compared; None if that is not known.

    Raises:
        Corrupt: the checksum, the format, the version or `previous` does not match.
    """
    kind, chain, offset, newest, at, middle = _layout(stored)
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
