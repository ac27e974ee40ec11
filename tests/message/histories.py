"""Drawn histories of messages of three producers, their content, and what a reader of it must see."""

from collections.abc import Callable

from hypothesis import strategies as st

from broadsheet.base.types import ByteOffset
from broadsheet.message.framing import Framing, framed, scan
from broadsheet.message.producer_state import begun
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack
from simulator.checkers.sequencer import Sequencer

Drawn = tuple[int, int, int]
"""Producer, clock and flags of a message."""


def histories(size_max: int, clock_max: int = 20) -> st.SearchStrategy[list[Drawn]]:
    """Messages with many duplicates and open transactions."""
    flags = st.sampled_from([0, 1, 1, 1, 2])
    return st.lists(st.tuples(st.integers(1, 3), st.integers(1, clock_max), flags), max_size=size_max)


def rising(messages: list[Drawn]) -> list[Drawn]:
    """The same with clocks that rise, as producers have them: many transactions, few duplicates."""
    return [(producer, n + 1, flags) for n, (producer, _, flags) in enumerate(messages)]


def content_of(
    framing: Framing, messages: list[Drawn], body_of: Callable[[int], bytes] = b'{"n":%d}'.__mod__
) -> bytes:
    """The content of a journal with these messages; `body_of` gives the body by the place in the history."""
    return b"".join(
        framed(
            framing, pack(ProducerId(producer), Clock(clock), flags), b"" if flags == Flag.ACK else body_of(n)
        )
        for n, (producer, clock, flags) in enumerate(messages)
    )


def committed(framing: Framing, content: bytes) -> list[ByteOffset]:
    """Where the messages begin that the naive sequencer gives out, in its order."""
    sequencer = Sequencer(begun(framing))
    return [
        each.begin
        for frame in scan(framing, content, ByteOffset(0))
        for each in sequencer.step(frame)[1]
        if each.has_data
    ]
