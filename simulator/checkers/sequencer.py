"""Sequencer: takes one message after the other, and gives the committed messages in commit order.

It is the simple definition of which messages are committed, and the oracle of `message.spans.sequence`, which
gives the same result for whole spans. The automaton of each producer:
    NOTHING OPEN --CONTINUE--> OPEN
    OPEN --ACK above the last acknowledged clock--> commits up to the ACK's clock, rolls back the rest
    OPEN --ACK at or below the last acknowledged clock--> rolls back everything
    any --OUTSIDE above the last acknowledged clock--> commits this message, drops the open span
After an ACK, and after a committed OUTSIDE message, the last acknowledged clock is exactly that message's
clock. An ACK may thereby set it back: the producer did so itself, after it lost its newest state.
Units: clocks of `uuid`, byte offsets. The sequencer holds positions and no content. Source: paper
"Message UUIDs".
"""

from enum import Enum

from broadsheet.base.types import ByteOffset
from broadsheet.message.framing import Frame
from broadsheet.message.producer_state import (
    NOT_OPEN,
    ProducerIndex,
    ProducerState,
    refuse_forgotten,
)
from broadsheet.message.uuid import NO_CLOCK, Clock, Flag, ProducerId, meaning


class Outcome(Enum):
    """The effect of a message."""

    OUTSIDE_COMMIT = "outside_commit"
    """Committed by itself."""
    OUTSIDE_DUPLICATE = "outside_duplicate"
    CONTINUE_BEGIN = "continue_begin"
    """Pending, and the first message of an open span."""
    CONTINUE_EXTEND = "continue_extend"
    CONTINUE_DUPLICATE = "continue_duplicate"
    ACK_COMMIT = "ack_commit"
    """Committed what was pending up to its clock."""
    ACK_EMPTY = "ack_empty"
    """Nothing was pending up to its clock."""
    ACK_ROLLBACK = "ack_rollback"
    """Rolled back what was pending, or repeated an acknowledgement."""


class Sequencer:
    """Sequences the messages of one journal."""

    def __init__(self, index: ProducerIndex) -> None:
        self.framing, self.offset, self.newest = index.framing, index.offset, index.newest
        self.states = dict(index.states)
        self.forgotten = dict(index.forgotten)
        self.pending: dict[ProducerId, list[tuple[Clock, Frame]]] = {}

    def step(self, frame: Frame) -> tuple[Outcome, list[Frame]]:
        """Take the next frame; return its effect, and the frames that it commits, in journal order.

        Raises:
            SpanForgotten: the frame acknowledges a span that was given up. Nothing changed.
        """
        producer, clock, flags = frame.id
        if clock == NO_CLOCK:
            self._pass(frame)
            return Outcome.OUTSIDE_COMMIT, [frame]
        old = self.states.get(producer) or ProducerState(
            last_ack=NO_CLOCK, last=NO_CLOCK, begin=NOT_OPEN, seen=ByteOffset(0)
        )
        match meaning(flags):
            case Flag.OUTSIDE:
                done = self._on_outside(frame, old)
            case Flag.CONTINUE:
                done = self._on_continue(frame, old)
            case Flag.ACK:
                done = self._on_ack(frame, old)
        self._pass(frame)
        return done

    def index(self) -> ProducerIndex:
        """The index after the last frame."""
        return ProducerIndex(
            framing=self.framing,
            offset=self.offset,
            newest=self.newest,
            states=dict(self.states),
            forgotten=dict(self.forgotten),
        )

    def check(self) -> None:
        """Assert the invariants."""
        for producer, state in self.states.items():
            clocks = [clock for clock, _ in self.pending.get(producer, [])]
            assert state.last >= state.last_ack, "an open span lies above the last acknowledgement"
            assert clocks == sorted(set(clocks)), "pending clocks rise"
            assert not clocks or state.begin != NOT_OPEN, "what is pending is in an open span"
            assert not clocks or clocks[-1] == state.last, "the last clock is the greatest pending one"

    def _pass(self, frame: Frame) -> None:
        self.offset = frame.end
        self.newest = max(self.newest, frame.id.clock)

    def _settle(self, frame: Frame) -> list[tuple[Clock, Frame]]:
        """Make the frame's clock the producer's state; return what was pending."""
        producer, clock, _ = frame.id
        waiting = self.pending.pop(producer, [])
        self.states[producer] = ProducerState(last_ack=clock, last=clock, begin=NOT_OPEN, seen=frame.end)
        return waiting

    def _on_outside(self, frame: Frame, old: ProducerState) -> tuple[Outcome, list[Frame]]:
        if frame.id.clock <= old.last_ack:
            self._seen(frame, old)
            return Outcome.OUTSIDE_DUPLICATE, []
        self._settle(frame)
        return Outcome.OUTSIDE_COMMIT, [frame]

    def _on_continue(self, frame: Frame, old: ProducerState) -> tuple[Outcome, list[Frame]]:
        producer, clock, _ = frame.id
        if clock <= old.last:
            self._seen(frame, old)
            return Outcome.CONTINUE_DUPLICATE, []
        self.pending.setdefault(producer, []).append((clock, frame))
        opens = old.begin == NOT_OPEN
        self.states[producer] = ProducerState(
            last_ack=old.last_ack, last=clock, begin=frame.begin if opens else old.begin, seen=frame.end
        )
        return Outcome.CONTINUE_BEGIN if opens else Outcome.CONTINUE_EXTEND, []

    def _on_ack(self, frame: Frame, old: ProducerState) -> tuple[Outcome, list[Frame]]:
        producer, clock, _ = frame.id
        refuse_forgotten(self.index(), producer, clock, frame.begin)
        self.forgotten.pop(producer, None)  # The span that was given up has ended.
        waiting = self._settle(frame)
        if clock <= old.last_ack:
            return Outcome.ACK_ROLLBACK, []
        committed = [each for at, each in waiting if at <= clock]
        return Outcome.ACK_COMMIT if committed else Outcome.ACK_EMPTY, committed

    def _seen(self, frame: Frame, old: ProducerState) -> None:
        self.states[frame.id.producer] = ProducerState(
            last_ack=old.last_ack, last=old.last, begin=old.begin, seen=frame.end
        )
