"""Producer state: what is known of each of a journal's producers at an offset, and which may be forgotten.

An *index point* is a frame boundary at which the journal's owner stores the states: at each roll, and every
16 MiB. The next index depends only on the index before, on the bytes between (`spans.update`), and on the
prune horizon (`pruned`, at index points only). Units: clocks (100 ns / 16), byte offsets; `begin` is -1 if
no span is open. This module does no IO and reads no clock. Source: journals.29-30;
docs/protocols/messages.md. How the owner uses it:

    index = begun(JSON_LINES)                        # at offset 0
    index = spans.update(index, content)             # content: the journal's bytes from index.offset on
    index = pruned(index)                            # at an index point
    stored, sum = stored_index.encode(index, previous=sum)
"""

from typing import Final

import msgspec

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import ByteOffset
from broadsheet.errors import SpanForgotten
from broadsheet.message.framing import Framing
from broadsheet.message.uuid import Clock, ProducerId

NOT_OPEN: Final = ByteOffset(-1)
PRUNE_HORIZON: Final = Duration(24 * 3600 * SECOND)
OPEN_HORIZON: Final = Duration(7 * 24 * 3600 * SECOND)
ABSENT_BYTES: Final = 1 << 30
"""A producer that has a frame in the last GiB is not pruned, whatever its clock is."""
INDEX_BYTES_EVERY: Final = 16 << 20


class ProducerState(msgspec.Struct, frozen=True, gc=False):
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


def pruned(index: ProducerIndex) -> ProducerIndex:
    """The index without the producers that are long silent; an open one leaves a tombstone (journals.30).

    A producer without an open span is dropped if it is `PRUNE_HORIZON` behind the newest clock *and* has no
    frame in the last GiB. A producer with an open span is replaced by a tombstone if it is `OPEN_HORIZON`
    behind and has no frame in the last GiB. Without the second condition, a producer whose clock is a year
    ahead would make the index drop all others.
    """
    states: dict[ProducerId, ProducerState] = {}
    forgotten = dict(index.forgotten)
    for producer, state in index.states.items():
        behind = index.newest - max(state.last_ack, state.last)
        is_open = state.begin != NOT_OPEN
        limit = ticks(OPEN_HORIZON if is_open else PRUNE_HORIZON)
        if behind <= limit or index.offset - state.seen <= ABSENT_BYTES:
            states[producer] = state
        elif is_open:
            forgotten[producer] = state.last_ack >> 32
    return ProducerIndex(
        framing=index.framing, offset=index.offset, newest=index.newest, states=states, forgotten=forgotten
    )


def behind_hole(index: ProducerIndex, offset: ByteOffset) -> ProducerIndex:
    """The producer index at `offset`, after an operator accepted the loss of the bytes before it.

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


def thinned(index: ProducerIndex, stored: ProducerIndex) -> ProducerIndex:
    """`index` without the producers that the owner of the journal has dropped up to `stored.offset`.

    Without this, whoever follows a journal for months remembers every producer that ever wrote to it.

    Args:
        stored: the owner's index at an index point at or below `index.offset`.
    """
    assert stored.offset <= index.offset, "a later index knows what this one has not seen"
    states = {
        producer: state
        for producer, state in index.states.items()
        if producer in stored.states or state.seen > stored.offset
    }
    forgotten = {producer: mark for producer, mark in stored.forgotten.items() if producer not in states}
    return ProducerIndex(
        framing=index.framing, offset=index.offset, newest=index.newest, states=states, forgotten=forgotten
    )


def oldest_open(index: ProducerIndex) -> ByteOffset | None:
    """Where the oldest span begins that is neither committed nor rolled back; None if there is none."""
    return min((each.begin for each in index.states.values() if each.begin != NOT_OPEN), default=None)


def beginning(index: ProducerIndex, begin: int) -> ProducerIndex:
    """The index for a reader that began when the content below `begin` was removed already.

    Of a span that begins below, only what follows is left: its acknowledgement commits that. To a reader that
    began earlier the rest of the span is lost, and it is told so when it reads below the journal's begin.
    """
    cut = {producer: state for producer, state in index.states.items() if NOT_OPEN < state.begin < begin}
    if not cut:
        return index
    for producer, state in cut.items():
        if begin < index.offset:
            cut[producer] = msgspec.structs.replace(state, begin=ByteOffset(begin))
        else:
            cut[producer] = msgspec.structs.replace(state, last=state.last_ack, begin=NOT_OPEN)
    return msgspec.structs.replace(index, states=index.states | cut)


def ticks(duration: Duration) -> int:
    """`duration` in units of a `Clock`."""
    return duration // 100 << 4


def refuse_forgotten(index: ProducerIndex, producer: ProducerId, clock: Clock, offset: int) -> None:
    """Refuse a producer's acknowledgement of a span that was given up.

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
