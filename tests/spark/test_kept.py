"""A worker reads on from where it ended, and gives what a worker gives that begins anew."""

import os
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from broadsheet.base.time import WallTime
from broadsheet.base.types import ByteOffset
from broadsheet.client_sync import SyncJournals, connect_sync
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.framing import FIXED, JSON_LINES
from broadsheet.message.producer_state import ProducerIndex, ProducerState
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import Clock, ProducerId, producer_from
from broadsheet.spark import kept, source
from broadsheet.spark.kept import Kept, Whose
from broadsheet.spark.source import StreamReader

X = StructType([StructField("x", LongType())])
WALL = WallTime(1_700_000_000_000_000_000)
OURS = Whose("h:1", "a/j", 1, 0, JSON_LINES, is_committed=True)


def index(offset: int, producers: int = 1, tombstones: int = 0) -> ProducerIndex:
    state = ProducerState(Clock(1), Clock(1), ByteOffset(-1), ByteOffset(0))
    return ProducerIndex(
        framing=JSON_LINES,
        offset=ByteOffset(offset),
        states=dict.fromkeys(map(ProducerId, range(producers)), state),
        forgotten=dict.fromkeys(map(ProducerId, range(tombstones)), 1),
    )


def test_what_is_kept_serves_spans_behind_it_of_the_same_index_point_and_journal() -> None:
    """States of another journal, or made across an index point, would drop or double rows."""
    ours = Kept()
    ours.keep(OURS, index(100), base=10)

    assert [ours.at(OURS, base=10, begin=begin) is not None for begin in (99, 100, 101)] == [
        False,
        True,
        True,
    ]
    assert ours.at(OURS, base=20, begin=200) is None
    for other in (
        OURS._replace(address="h:2"),
        OURS._replace(journal="a/k"),
        OURS._replace(create_revision=2),
        OURS._replace(framing=FIXED),
        OURS._replace(is_committed=False),
    ):
        assert ours.at(other, base=10, begin=100) is None
    ours.keep(OURS, index(50), base=0)
    assert ours.at(OURS, base=0, begin=50) == index(50)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a cluster lives for months and reads thousands of journals."""
    monkeypatch.setattr(kept, "JOURNALS_MAX", 3)
    monkeypatch.setattr(kept, "STATES_MAX", 10)
    ours = Kept()
    names = [OURS._replace(journal=f"a/{number}") for number in range(6)]

    def held() -> list[int]:
        return [at for at, each in enumerate(names) if ours.at(each, base=0, begin=9) is not None]

    for each in names[:4]:
        ours.keep(each, index(9, 2), base=0)
    assert (held(), ours.state_count) == ([1, 2, 3], 6)
    ours.keep(names[4], index(9, 6, 2), base=0)
    assert (held(), ours.state_count) == ([3, 4], 10)
    ours.keep(names[5], index(9, 6, 5), base=0)
    assert (held(), ours.state_count) == ([3, 4], 10), "it is more than everything may be"
    ours.keep(names[4], index(9, 1), base=0)
    assert (held(), ours.state_count) == ([3, 4], 3)


def lines(stamper: Stamper, numbers: range) -> bytes:
    return b"".join(stamper.committed(JSON_LINES, b'{"x":%d}' % x, WALL) for x in numbers)


def batch(reader: StreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """What one micro-batch reads, in this process, and where it ends."""
    end = reader.latestOffset(start, ReadAllAvailable())
    found = [
        row["x"]
        for partition in reader.partitions(start, end)
        for rows in reader.read(partition)
        for row in rows.to_pylist()
    ]
    return found, end


def filled(journals: SyncJournals, name: str, stamper: Stamper) -> None:
    journals.create(name, labels={FRAMING_LABEL: "json-lines"})
    content = lines(stamper, range(20_000))
    while journals.end(name) < 12 << 20:
        journals.append(name, content)


def test_a_small_batch_far_behind_an_index_point_costs_what_it_holds(node: Any) -> None:
    """It read up to 16 MiB before it, and each batch of 12 rows cost 192 ms."""
    stamper = Stamper(producer_from(os.urandom(6)))
    with connect_sync(node.address) as client:
        filled(client.journals, "kept/far", stamper)
        reader = StreamReader({"address": node.address, "journals": "kept/far", "tasks": "1"}, X)
        end = client.journals.end("kept/far")
        start = {
            "kept/far": {"offset": end, "create_revision": client.journals.get("kept/far").create_revision}
        }
        spent = []
        for turn in range(6):
            numbers = range(10**6 + 12 * turn, 10**6 + 12 * (turn + 1))
            client.journals.append("kept/far", lines(stamper, numbers))
            began = time.thread_time()
            found, start = batch(reader, start)
            spent.append(time.thread_time() - began)
            assert found == [*numbers]

    assert min(spent[1:]) < spent[0] / 4, f"seconds of this thread's CPU: {spent}"


def test_repeats_and_pending_messages_are_known_to_a_read_that_goes_on(node: Any) -> None:
    """What was read before decides over them: a repeat would be a row, a pending message would be missing."""
    stamper, open_one = Stamper(ProducerId(1)), Stamper(ProducerId(2))
    with connect_sync(node.address) as client:
        journals = client.journals
        journals.create("kept/known", labels={FRAMING_LABEL: "json-lines"})
        reader = StreamReader({"address": node.address, "journals": "kept/known", "tasks": "1"}, X)
        first = lines(stamper, range(3))
        pending = open_one.pending(journals.get("kept/known").name, JSON_LINES, b'{"x":7}', WALL)
        journals.append("kept/known", first + pending[:20])
        found, at = batch(reader, reader.initialOffset())
        assert found == [0, 1, 2]
        journals.append("kept/known", pending[20:] + first)
        found, at = batch(reader, at)
        assert found == []
        journals.append("kept/known", first + open_one.intents()[0].content() + lines(stamper, range(3, 4)))
        found, again = batch(reader, at)
        assert found == [7, 3]

        source._kept.__init__()  # type: ignore[misc]  # As another process has it.
        assert batch(reader, at) == (found, again)
