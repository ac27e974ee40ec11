"""A stamper's messages commit with its intents, and only with them."""

from broadsheet.base.time import WallTime
from broadsheet.base.types import ByteOffset, JournalName, Revision
from broadsheet.message.clock import TICK
from broadsheet.message.framing import JSON_LINES, scan
from broadsheet.message.producer_state import begun
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import ProducerId
from simulator.checkers.sequencer import Sequencer

A, B = JournalName("example/a"), JournalName("example/b")
WALL = WallTime(1_700_000_000_000_000_000)


def committed_count(content: bytes) -> int:
    sequencer = Sequencer(begun(JSON_LINES))
    return sum(len(sequencer.step(frame)[1]) for frame in scan(JSON_LINES, content, ByteOffset(0)))


def test_pending_messages_commit_by_their_intent() -> None:
    """Stored intents are what makes messages in several journals one transaction."""
    stamper = Stamper(ProducerId(5))
    content = b"".join(stamper.pending(A, JSON_LINES, b'{"n":%d}' % n, WALL) for n in range(3))
    stamper.pending(B, JSON_LINES, b"{}", WALL)
    intents = stamper.intents()

    assert [intent.journal for intent in intents] == [A, B]
    assert committed_count(content) == 0
    assert committed_count(content + intents[0].content()) == 3
    assert committed_count(content + intents[0].content() * 2) == 3
    assert stamper.intents() == []


def test_reserved_clocks_are_the_ones_that_single_messages_get() -> None:
    """The sink frames a whole column at once with them."""
    one, many = Stamper(ProducerId(5)), Stamper(ProducerId(5))
    for _ in range(4):
        one.pending(A, JSON_LINES, b"{}", WALL)
    first = many.reserve(A, JSON_LINES, 4, WALL)

    assert first + 3 * TICK == one.clock.last
    assert many.intents() == one.intents()


def test_a_message_outside_transactions_commits_by_itself() -> None:
    """What most producers want."""
    assert committed_count(Stamper(ProducerId(5)).committed(JSON_LINES, b'{"n":1}', WALL)) == 1


def test_what_is_open_ends_with_the_last_clock_that_was_reserved() -> None:
    """A clock beyond it would be that of a message which was never written."""
    stamper = Stamper(ProducerId(5))
    first = stamper.reserve(A, JSON_LINES, 4, WALL, create_revision=Revision(7))

    assert stamper.open == {A: (JSON_LINES, first + 3 * TICK, 7)}
    assert [intent.create_revision for intent in stamper.intents()] == [7]
