"""What clients are told of registers and of producer indexes is compared with the journal's bytes."""

from itertools import count

import pytest
from msgspec.structs import replace

from broadsheet.base.time import WallTime
from broadsheet.base.types import JournalName
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.producer_state import begun
from broadsheet.message.spans import update
from broadsheet.message.stamper import Stamper
from broadsheet.message.stored_index import encode
from broadsheet.message.uuid import producer_from
from simulator.checkers.appends import Seen, Wanted, check_appends, content_of
from simulator.checkers.indexes import check_indexes
from simulator.history import History
from simulator.workload import Violation


def test_a_register_that_nothing_set_is_seen() -> None:
    """J6: what is shown was set by an append that is committed, and by none that is older than one known."""
    first = content_of("a", 1, check="", sets="a.1", length=40)
    second = content_of("a", 2, check="a.1", sets="a.2", length=40)

    def told(register: str) -> None:
        history = History(count(1).__next__)
        for content, sets, begin in ((first, "a.1", 0), (second, "a.2", len(first))):
            wanted = Wanted(content=content, sets=sets)
            history.ok(history.invoke("a", "j", "append", wanted), (begin, begin + len(content)))
        history.ok(history.invoke("a", "j", "read"), Seen(0, first + second))
        history.ok(history.invoke("b", "j", "registers"), register)
        check_appends(history.operations)

    told("a.2")
    with pytest.raises(Violation, match=r"J6 j: 'a\.1' is shown, set at 0"):
        told("a.1")
    with pytest.raises(Violation, match=r"J6 j: '' is shown, set at -1"):
        told("")
    with pytest.raises(Violation, match="nothing committed sets it"):
        told("b.7")


def test_an_index_that_its_bytes_do_not_say_is_seen() -> None:
    """journals.29: an index is a pure function of the bytes below it, however often its node restarted."""
    stamper = Stamper(producer_from(b"abcdef"))
    wall = WallTime(1_750_000_000_000_000_000)
    frames = [stamper.pending(JournalName("j"), JSON_LINES, b'{"n": %d}' % n, wall) for n in range(4)]
    content, middle = b"".join(frames), len(frames[0]) + len(frames[1])
    whole = update(begun(JSON_LINES), content)
    right = encode(update(begun(JSON_LINES), content[:middle]), previous=0)[0]
    forgot = encode(replace(whole, states={}), previous=0)[0]

    def told(*points: tuple[int, bytes]) -> None:
        history = History(count(1).__next__)
        history.ok(history.invoke("a", "j", "read"), Seen(0, content))
        history.ok(history.invoke("a", "j", "indexes"), list(points))
        check_indexes(history.operations)

    told((middle, right), (len(content), encode(whole, previous=0)[0]))
    with pytest.raises(Violation, match="is not what the bytes say"):
        told((len(content), forgot))
    with pytest.raises(Violation, match="frames end at"):
        told((middle + 1, right))
    with pytest.raises(Violation, match="the producer index at"):
        told((middle, right[:-1] + b"\0"))
