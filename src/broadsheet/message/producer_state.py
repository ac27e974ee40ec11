"""Producer states of a journal at an offset, and the index that stores them.

An *index point* is a frame boundary at which the journal's owner stores the states: at each roll and every
16 MiB. The next one is a pure function of the one before and of the bytes between (`spans.update`), and of
the prune horizon (`pruned`, at index points only). Units: clocks (100 ns / 16), byte offsets; `begin` is -1
where no span is open. The encoding is chained (it carries the checksum of the index before) and
checksummed; `decode` raises `Corrupt`, and then nobody starts from empty state. It stores nothing and reads
no clock. Source: journals.29-30; docs/protocols/messages.md. How to use, at the owner:

    index = begun(JSON_LINES)                        # at offset 0
    index = spans.update(index, content)             # content: the journal's bytes from index.offset on
    index = pruned(index, horizon_at(hours=24))      # at an index point
    stored, sum = encode(index, previous=sum)        # at index.offset, which is a frame boundary at or
    below the content's end
"""

from struct import Struct
from typing import Final

import msgspec
from crc32c import crc32c

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt, SpanForgotten
from broadsheet.message.framing import Framing, Kind
from broadsheet.message.uuid import Clock, ProducerId

NOT_OPEN: Final = ByteOffset(-1)
PRUNE_HORIZON: Final = Duration(24 * 3600 * SECOND)
OPEN_HORIZON: Final = Duration(7 * 24 * 3600 * SECOND)
ABSENT_BYTES: Final = 1 << 30
"""A producer seen within this many last bytes is never pruned, whatever the clocks say."""
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
    """The last acknowledged clock: at or below it everything is a duplicate."""
    last: Clock
    """The greatest clock of the open span; `last_ack` where none is open."""
    begin: ByteOffset
    """Where the open span begins, or `NOT_OPEN`."""
    seen: ByteOffset
    """End of the producer's last frame, for pruning."""


class ProducerIndex(msgspec.Struct, frozen=True):
    """The states of all producers of a journal at one frame boundary."""

    framing: Framing
    offset: ByteOffset
    newest: Clock = Clock(0)
    """The greatest clock that the journal ever held."""
    states: dict[ProducerId, ProducerState] = {}
    forgotten: dict[ProducerId, int] = {}
    """Tombstone of each producer whose open span was given up: the upper half of its last acknowledged
    clock."""


def begun(framing: Framing, offset: ByteOffset = ByteOffset(0)) -> ProducerIndex:
    """The index of an empty journal, whose first byte will stand at `offset`."""
    return ProducerIndex(framing=framing, offset=offset)


def pruned(
    index: ProducerIndex, horizon: Duration = PRUNE_HORIZON, open_horizon: Duration = OPEN_HORIZON
) -> ProducerIndex:
    """The index without the producers that are gone for good (journals.30).

    A closed producer goes when it is `horizon` behind the newest clock *and* absent from the last GiB; an
    open one leaves a tombstone after `open_horizon`, and is absent as long: a single producer with a clock
    a year ahead ages out nobody.
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
    """The index at `offset`, where the bytes in front of it are lost: an operator accepted that.

    What a producer had acknowledged stays a duplicate. An open span leaves a tombstone: its messages cannot
    be read up to its acknowledgement, which is refused aloud.
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
    """Raise where an acknowledgement came for a span that was given up.

    Raises:
        SpanForgotten: unless the acknowledgement rolls back for certain.
    """
    mark = index.forgotten.get(producer)
    if mark is not None and clock >> 32 >= mark:
        raise SpanForgotten(
            f"at offset {offset} producer {producer:012x} acknowledges a span that was forgotten after the "
            "open horizon, or begins in front of lost bytes: read its messages uncommitted, then go on "
            "behind this offset"
        )


def encode(index: ProducerIndex, *, previous: int) -> tuple[bytes, int]:
    """The stored form, and its checksum, which is `previous` of the next one.

    Args:
        previous: the checksum of the index before; 0 for a journal's first.
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
        for producer, state in sorted(index.states.items())
    ]
    parts += [
        _TOMBSTONE.pack(producer.to_bytes(6, "big"), mark)
        for producer, mark in sorted(index.forgotten.items())
    ]
    body = b"".join(parts)
    total = crc32c(body)
    return body + _SUM.pack(total), total


def decode(stored: bytes, *, previous: int | None = None) -> ProducerIndex:
    """The index that was stored.

    Args:
        previous: what the chain must say; None where the index before is not at hand.

    Raises:
        Corrupt: checksum, format, version or chain is wrong.
    """
    if len(stored) < _HEAD.size + 1 + _SUM.size:
        raise Corrupt(f"a producer index of {len(stored)} bytes is too short")
    body, (total,) = stored[: -_SUM.size], _SUM.unpack(stored[-_SUM.size :])
    if crc32c(body) != total:
        raise Corrupt("the checksum of a producer index is wrong")
    magic, version, kind, chain, offset, newest, state_count, forgotten_count = _HEAD.unpack_from(body)
    if magic != _MAGIC or version != _VERSION or kind >= len(_KINDS):
        raise Corrupt(f"a producer index of format {magic!r} version {version} is not ours to read")
    if previous is not None and chain != previous:
        raise Corrupt(f"the producer index at offset {offset} follows {chain:08x}, not {previous:08x}")
    at = _HEAD.size + 1 + body[_HEAD.size]
    middle = at + state_count * _STATE.size
    if middle + forgotten_count * _TOMBSTONE.size != len(body):
        raise Corrupt(f"the producer index at offset {offset} has another length than its counts say")
    return ProducerIndex(
        framing=Framing(kind=_KINDS[kind], uuid_field=body[_HEAD.size + 1 : at].decode()),
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
