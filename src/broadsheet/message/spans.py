"""Spans: decides which messages of a span are committed, for all messages at once.

The result is that of the naive `Sequencer` in `simulator/checkers`, which takes one message after the
other; Hypothesis compares the two. The messages are sorted by producer, in journal order. Each producer's
messages are cut into *runs* that end at an acknowledgement or at a committed OUTSIDE message, the run's
*boundary*: after a boundary the producer's last acknowledged clock is exactly the boundary's clock. Inside
a run, a comparison with the running maximum of the clocks then finds the duplicates. This module does no
IO: `replays` names the messages before the first frame that the caller must read. Units: offsets are the
journal's, clocks unsigned 64 bits. Source: paper "Message UUIDs"; pipelines.2; journals.29.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from broadsheet.base.types import ByteOffset
from broadsheet.message.columns import Bool, Clocks, Frames, Int, frames_of
from broadsheet.message.producer_state import (
    NOT_OPEN,
    ProducerIndex,
    ProducerState,
    refuse_forgotten,
)
from broadsheet.message.uuid import Clock, Flag, ProducerId


class Sequenced(NamedTuple):
    """The committed messages of a span, and the producers' states after it."""

    rows: Int
    """Positions of the committed messages that hold data, in commit order."""
    at: Int
    """Of each row: the end of the frame that commits it."""
    pending: Int
    """Positions of the messages that the frames open and do not decide, ascending."""
    after: ProducerIndex
    """The index after the last frame."""


class _Runs(NamedTuple):
    """The messages sorted by producer, then in journal order, and cut into runs numbered from 0."""

    order: Int
    """Of each message: its position in the frames."""
    group: Int
    """Of each message: the number of its producer, from 0."""
    producers: Int
    """Of each group: the producer id."""
    clock: Clocks
    is_continue: Bool
    is_boundary: Bool
    run: Int
    """Of each message: the number of its run."""
    first: Int
    """Of each run: the position of its first message."""
    last: Int
    """Of each run: the position of its last message."""
    floor: Clocks
    """Of each run: the last acknowledged clock when it began."""
    seen: Clocks
    """Of each run: a CONTINUE message at or below this clock is a duplicate."""


def sequence(index: ProducerIndex, frames: Frames, start: int = 0) -> Sequenced:
    """The messages that `frames` commit above `start`.

    Args:
        index: the producers' states just before the first frame.
        start: an acknowledgement that ends at or below this offset belongs to an earlier span, and so do the
            messages that it commits. `start` need not be a frame boundary, because a frame belongs to the
            span that holds its last byte.

    Raises:
        SpanForgotten: an acknowledgement above `start` is for a span that was given up.
    """
    if not len(frames.begin):
        none = np.empty(0, np.int64)
        return Sequenced(none, none, none, index)
    runs = _runs_of(index, frames)
    end = frames.end[runs.order]
    is_ack = frames.flags[runs.order] == Flag.ACK
    forgotten = _still_forgotten(index, frames, start) if index.forgotten else index.forgotten
    ranked = np.where(runs.is_continue, _ranks(runs.clock, len(runs.first)), 0)
    before = _running_before(ranked, runs.run)
    is_new = runs.is_continue & (runs.clock > runs.seen[runs.run]) & (ranked > before)

    decided_by = runs.last[runs.run]  # The boundary of the message's run, if the run has one.
    commits = is_ack[decided_by] & (runs.clock[decided_by] > runs.floor[runs.run])
    by_ack = is_new & commits & (runs.clock <= runs.clock[decided_by])
    outside = runs.is_boundary & ~is_ack
    commit_at = np.where(outside, end, end[decided_by])
    chosen = (by_ack | outside) & (commit_at > start)

    rows, at = runs.order[chosen], commit_at[chosen]
    bare = np.flatnonzero((frames.clock == 0) & (frames.end > start))
    rows, at = np.concatenate((rows, bare)), np.concatenate((at, frames.end[bare]))
    by_commit = np.lexsort((frames.begin[rows], at))
    by_commit = by_commit[frames.has_data[rows[by_commit]]]
    pending = np.sort(runs.order[is_new & ~runs.is_boundary[decided_by]])
    after = _index_after(index, frames, runs, is_new, forgotten)
    return Sequenced(rows[by_commit], at[by_commit], pending, after)


def _runs_of(index: ProducerIndex, frames: Frames) -> _Runs:
    order = np.flatnonzero(frames.clock != 0)
    order = order[np.argsort(frames.producer[order], kind="stable")]
    producer, clock, flags = frames.producer[order], frames.clock[order], frames.flags[order]
    is_head = np.ones(len(order), np.bool_)
    is_head[1:] = producer[1:] != producer[:-1]
    group = np.cumsum(is_head) - 1
    producers = producer[is_head]
    known = [index.states.get(ProducerId(each)) for each in producers.tolist()]
    acked = np.array([state.last_ack if state else 0 for state in known], np.uint64)
    pending = np.array([state.last if state else 0 for state in known], np.uint64)

    is_ack, is_continue = flags == Flag.ACK, flags == Flag.CONTINUE
    is_boundary = is_ack | _outside_commits(is_head, group, clock, is_ack, ~is_ack & ~is_continue, acked)
    is_first = is_head.copy()
    is_first[1:] |= is_boundary[:-1]
    run = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(order)) - 1
    floor = _clocks_before(first, is_head, group, clock, acked)
    seen = _clocks_before(first, is_head, group, clock, pending)
    return _Runs(order, group, producers, clock, is_continue, is_boundary, run, first, last, floor, seen)


def _clocks_before(first: Int, is_head: Bool, group: Int, clock: Clocks, initial: Clocks) -> Clocks:
    """Of each run: the clock of the boundary before it, or the producer's clock before the first frame."""
    return np.where(is_head[first], initial[group[first]], clock[first - 1])


def _outside_commits(  # noqa: PLR0917 - parallel columns of one table.
    is_head: Bool, group: Int, clock: Clocks, is_ack: Bool, is_outside: Bool, acked: Clocks
) -> Bool:
    """Which OUTSIDE messages commit: those above the last ACK and above all OUTSIDE messages since it."""
    if not is_outside.any():
        return is_outside
    is_first = is_head.copy()
    is_first[1:] |= is_ack[:-1]
    run = np.cumsum(is_first) - 1
    floor = _clocks_before(np.flatnonzero(is_first), is_head, group, clock, acked)[run]
    ranked = np.where(is_outside & (clock > floor), _ranks(clock, int(run[-1]) + 1), 0)
    commits: Bool = is_outside & (clock > floor) & (ranked > _running_before(ranked, run))
    return commits


def _ranks(clock: Clocks, run_count: int) -> Int:
    """Ranks of messages: numbers from 1 by their clocks, small enough for 64 bits with a run's number."""
    if not len(clock):
        return np.empty(0, np.int64)
    least = np.min(clock)
    if (int(np.max(clock) - least) + 2) * (run_count + 1) < 1 << 62:
        return np.asarray((clock - least).astype(np.int64) + 1)
    ranks: Int = np.unique(clock, return_inverse=True)[1].astype(np.int64) + 1
    return ranks


def _running_before(ranked: Int, run: Int) -> Int:
    """Of each message: the greatest rank before it in its run; 0 if there is none."""
    if not len(ranked):
        return ranked
    width = int(np.max(ranked)) + 1
    running: Int = np.subtract(np.maximum.accumulate(run * width + ranked), run * width)
    before: Int = np.zeros(len(ranked), np.int64)
    before[1:] = np.where(run[1:] == run[:-1], running[:-1], 0)
    return before


def _still_forgotten(index: ProducerIndex, frames: Frames, start: int) -> dict[ProducerId, int]:
    """The tombstones that are left after the frames: a producer's next acknowledgement ends its own.

    Raises:
        SpanForgotten: such an acknowledgement lies above `start`, and might commit messages.
    """
    left = dict(index.forgotten)
    marked = np.isin(frames.producer, np.fromiter(left, np.int64, len(left)))
    acks = np.flatnonzero(marked & (frames.flags == Flag.ACK) & (frames.clock != 0))
    for at in acks[np.sort(np.unique(frames.producer[acks], return_index=True)[1])].tolist():
        producer = ProducerId(int(frames.producer[at]))
        if frames.end[at] > start:
            refuse_forgotten(index, producer, Clock(int(frames.clock[at])), int(frames.begin[at]))
        del left[producer]
    return left


def _index_after(
    index: ProducerIndex, frames: Frames, runs: _Runs, is_new: Bool, forgotten: dict[ProducerId, int]
) -> ProducerIndex:
    states = dict(index.states)
    if len(runs.order):
        last_of_group = np.append(np.flatnonzero(np.diff(runs.group)), len(runs.group) - 1)
        greatest = np.maximum.reduceat(np.where(is_new, runs.clock, np.uint64(0)), runs.first)
        where_new = np.where(is_new, frames.begin[runs.order], np.iinfo(np.int64).max)
        opened = np.minimum.reduceat(where_new, runs.first)
        for group, last in enumerate(last_of_group.tolist()):
            producer, run = ProducerId(int(runs.producers[group])), int(runs.run[last])
            seen = ByteOffset(int(frames.end[runs.order[last]]))
            if runs.is_boundary[last]:
                clock = Clock(int(runs.clock[last]))
                states[producer] = ProducerState(last_ack=clock, last=clock, begin=NOT_OPEN, seen=seen)
                continue
            old = index.states.get(producer)
            continues = old is not None and old.begin != NOT_OPEN and _is_first_of_group(runs, run)
            begin = old.begin if old is not None and continues else ByteOffset(int(opened[run]))
            states[producer] = ProducerState(
                last_ack=Clock(int(runs.floor[run])),
                last=Clock(max(int(runs.seen[run]), int(greatest[run]))),
                begin=NOT_OPEN if begin == np.iinfo(np.int64).max else begin,
                seen=seen,
            )
    return ProducerIndex(
        framing=index.framing,
        offset=ByteOffset(int(frames.end[-1])),
        newest=Clock(max(index.newest, int(np.max(frames.clock)))),
        states=states,
        forgotten=forgotten,
    )


def _is_first_of_group(runs: _Runs, run: int) -> bool:
    at = int(runs.first[run])
    return at == 0 or bool(runs.group[at] != runs.group[at - 1])


class Replay(NamedTuple):
    """An open span of a producer's messages that is committed."""

    begin: ByteOffset
    """Of its first message."""
    at: int
    """The position, in the frames, of the acknowledgement that commits the span."""


def replays(index: ProducerIndex, frames: Frames, start: int) -> dict[ProducerId, Replay]:
    """The open spans of `index` that the frames commit above `start`, in the order of their acknowledgements.

    The caller reads from the smallest `begin` up to `index.offset`, keeps the frames of these producers, puts
    them in front of `frames`, and calls `sequence` with the index that `reopened` returns.
    """
    wanted: dict[ProducerId, Replay] = {}
    undecided = {producer: state for producer, state in index.states.items() if state.begin != NOT_OPEN}
    if not undecided:
        return wanted
    ours = np.isin(frames.producer, np.fromiter(undecided, np.int64, len(undecided)))
    for at in np.flatnonzero(ours & (frames.flags != Flag.CONTINUE)).tolist():
        producer, clock = ProducerId(int(frames.producer[at])), int(frames.clock[at])
        state = undecided.get(producer)
        is_ack = frames.flags[at] == Flag.ACK
        if state is None or (not is_ack and clock <= state.last_ack):
            continue
        del undecided[producer]  # This message ends the open span; later ones no longer concern it.
        if is_ack and clock > state.last_ack and frames.end[at] > start:
            wanted[producer] = Replay(state.begin, at)
    return wanted


def reopened(index: ProducerIndex, producers: Iterable[ProducerId]) -> ProducerIndex:
    """The producer index as it was for `producers` just before their open spans began."""
    states = dict(index.states)
    for producer in producers:
        old = states[producer]
        states[producer] = ProducerState(
            last_ack=old.last_ack, last=old.last_ack, begin=NOT_OPEN, seen=old.seen
        )
    return ProducerIndex(
        framing=index.framing,
        offset=index.offset,
        newest=index.newest,
        states=states,
        forgotten=index.forgotten,
    )


def update(index: ProducerIndex, content: bytes | memoryview) -> ProducerIndex:
    """The producer index after the whole frames of `content`, whose first byte is at `index.offset`.

    A partial frame at the end is left out: pass its bytes again next time, from the returned index's
    `offset` on. A call takes about 0.2 µs a message and 1 ns a byte; call it in a thread if `content` is
    above 64 KiB.

    Raises:
        Corrupt: `FRAME_BYTES_MAX` bytes follow each other without the end of a frame.
    """
    frames = frames_of(index.framing, content, index.offset)
    if not len(frames.begin):
        return index
    return sequence(index, frames, start=int(frames.end[-1])).after
