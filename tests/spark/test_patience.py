"""Planning and reading while the node, or a journal, is away: wait, then fail; never see an end of 0."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from broadsheet.client_sync import connect_sync
from broadsheet.errors import DeadlineExceeded, OffsetNotYetAvailable, StoreUnhealthy
from broadsheet.spark.application import read_stream_options
from broadsheet.spark.connection import Target, chunks, patiently
from broadsheet.spark.source import BatchReader, StreamReader
from tests.spark.conftest import Node, down, up

JOURNAL = "patience/j"
SCHEMA = StructType([StructField("id", LongType())])
CONTENT = b'{"id":1}\n' * 100
PATIENCE_S = 2.0


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Node]:
    """A node that a test may kill."""
    node = up(tmp_path / "data", "--any-port")
    with connect_sync(node.address) as client:
        client.journals.create(JOURNAL)
        client.journals.append(JOURNAL, CONTENT)
    yield node
    down(tmp_path / "data")


def kill(node: Node) -> None:
    os.kill(node.pid, signal.SIGKILL)


def spools(node: Node) -> Path:
    (found,) = node.data_dir.rglob("spool")
    (directory,) = found.iterdir()
    return directory


def options(node: Node) -> dict[str, str]:
    return {"address": node.address, "journals": JOURNAL, "patience": str(PATIENCE_S)}


def looks(node: Node) -> list[tuple[str, Callable[[], Any]]]:
    """Whatever asks for the end of a journal."""
    stream = StreamReader(options(node), SCHEMA)
    return [
        ("latestOffset", lambda: stream.latestOffset(stream.initialOffset(), ReadAllAvailable())),
        ("reportLatestOffset", stream.reportLatestOffset),
        ("AvailableNow", stream.prepareForTriggerAvailableNow),
        ("batch", BatchReader(options(node), SCHEMA).partitions),
        (
            "latest",
            lambda: read_stream_options(
                address=node.address, journals=[JOURNAL], latest=True, patience_s=PATIENCE_S
            ),
        ),
    ]


def test_nobody_plans_by_the_end_of_a_journal_that_is_being_opened(own: Node) -> None:
    """Its status told 0: batches were empty, AvailableNow ended at once, latest was the begin."""
    kill(own)
    away = spools(own)
    away.rename(away.with_name("away"))
    away.write_bytes(b"")  # No directory: the journal cannot be opened.
    again = up(own.data_dir)
    for what, look in looks(again):
        began = time.monotonic()
        with pytest.raises(StoreUnhealthy, match="is being opened, and its end is not known"):
            pytest.fail(f"{what} told {look()}")
        assert time.monotonic() - began < 10 * PATIENCE_S, what

    away.unlink()
    away.with_name("away").rename(away)
    head = {JOURNAL: {"offset": len(CONTENT)}}
    stream = StreamReader(options(again) | {"patience": "60"}, SCHEMA)
    told = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert told[JOURNAL]["offset"] == head[JOURNAL]["offset"]


def test_the_patience_of_a_task_ends_when_the_node_is_gone_for_good(own: Node) -> None:
    """The job ran for ever: each time the patience was over it began again."""
    target, content = Target(own.address, "", PATIENCE_S), b"x" * (4 << 20)
    target.journals().append(JOURNAL, content)
    revision = target.journals().get(JOURNAL).create_revision
    end = len(CONTENT) + 2 * len(content)
    reading = chunks(target, JOURNAL, create_revision=revision, begin=len(CONTENT), end=end)
    next(reading)
    kill(own)
    began = time.monotonic()
    with pytest.raises((DeadlineExceeded, OffsetNotYetAvailable)):
        list(reading)
    assert time.monotonic() - began < 10 * PATIENCE_S


def test_content_that_was_not_whole_in_time_is_sent_again_while_there_is_patience(own: Node) -> None:
    """A refusal for want of time passes; the task failed, and with it a query on one machine."""
    target = Target(own.address, "", 60.0)
    content = b"p" * (16 << 20)
    append = target.journals().append
    os.kill(own.pid, signal.SIGSTOP)
    going_on = threading.Timer(1.5, os.kill, (own.pid, signal.SIGCONT))
    going_on.start()
    try:
        timeouts = iter([0.5])
        done = patiently(lambda: append(JOURNAL, content, timeout=next(timeouts, 60.0)), target.patience_s)
    finally:
        going_on.join()
    assert (done.begin, done.end) == (len(CONTENT), len(CONTENT) + len(content))


@pytest.mark.parametrize("begin", [0, len(CONTENT)])
def test_bytes_that_the_node_does_not_have_are_asked_for_no_longer_than_the_patience(
    node: Node, begin: int
) -> None:
    """An older copy of the data directory: the end that the query saw never comes again."""
    journal = f"short/{begin}"
    with connect_sync(node.address) as client:
        revision = client.journals.create(journal).create_revision
        client.journals.append(journal, CONTENT)
    target, end, began = Target(node.address, "", PATIENCE_S), 2 * len(CONTENT), time.monotonic()
    with pytest.raises(OffsetNotYetAvailable):
        list(chunks(target, journal, create_revision=revision, begin=begin, end=end))
    assert time.monotonic() - began < 10 * PATIENCE_S
