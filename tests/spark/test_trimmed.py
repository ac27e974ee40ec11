"""A query over a journal that was trimmed begins at what is left; what it was to read ends it, or is told."""

import time
from collections.abc import Sequence
from typing import Any, Final

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import LongType, StructField, StructType

from broadsheet.client_sync import SyncClient, connect_sync
from broadsheet.errors import ConfigError, LocalProtocolError, Trimmed
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.position import Position, positions_to_text
from broadsheet.sink.core.records import Fence
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import Target
from broadsheet.spark.resuming import resume_options
from broadsheet.spark.source import BatchReader, StreamReader

X: Final = StructType([StructField("x", LongType())])
SECONDS_MAX: Final = 60.0


def publish(client: SyncClient, name: str, numbers: range) -> None:
    """Each message becomes a fragment of its own."""
    with client.publisher() as publisher:
        for x in numbers:
            publisher.publish(name, {"x": x, "pad": "x" * 1500})


def trim(client: SyncClient, name: str, below: int) -> int:
    """The begin of the journal after a trim, once its store has what is to be removed."""
    until = time.monotonic() + SECONDS_MAX
    while (begin := client.journals.trim(name, below).begin) < below and time.monotonic() < until:
        time.sleep(0.01)
    assert begin == below
    return begin


def create(client: SyncClient, name: str) -> None:
    client.journals.create(name, fragment_length=1024, labels={FRAMING_LABEL: "json-lines"})


def ends_of(client: SyncClient, name: str) -> Sequence[int]:
    """Where the journal's fragments end, but for the newest ones, which a trim keeps."""
    return [each.end for each in client.journals.fragments(name)][:-2]


def stream(node: Any, name: str, **options: str) -> StreamReader:
    return StreamReader({"address": node.address, "journals": name, "tasks": "1", **options}, X)


def rows(reader: StreamReader | BatchReader, *bounds: dict[str, Any]) -> list[int]:
    """What the tasks of a batch read."""
    planned = reader.partitions(*bounds)
    return [row["x"] for each in planned for batch in reader.read(each) for row in batch.to_pylist()]


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxBytes(1 << 20)], ids=["all", "limited"])
def test_a_query_begins_at_the_first_byte_that_is_left(node: Any, limit: Any) -> None:
    """No query over a journal with a retention began: it asked for offset 0.

    Of a transaction that began below, a query gets what is left, in whichever batch it is acknowledged.
    """
    name = f"trimmed/{type(limit).__name__}"
    with connect_sync(node.address) as client, client.publisher(f"{name}-commits") as publisher:
        create(client, name)
        publish(client, name, range(4))
        with publisher.transaction() as transaction:
            before = client.journals.end(name)
            transaction.publish_many(name, [{"x": 10, "pad": "x" * 1500}])
            while client.journals.end(name) == before:
                time.sleep(0.01)
            publish(client, name, range(4, 6))
            transaction.publish_many(name, [{"x": 11, "pad": "x" * 1500}])
            publish(client, name, range(6, 7))
        publish(client, name, range(7, 10))
        begin = trim(client, name, ends_of(client, name)[4])

        reader = stream(node, name)
        start = reader.initialOffset()
        assert (start[name]["offset"], start[name]["begin"]) == (begin, begin)
        end = reader.latestOffset(start, limit)
        assert rows(reader, start, end) == [4, 5, 6, 11, 7, 8, 9]
        half = {name: start[name] | {"offset": ends_of(client, name)[1]}}
        assert rows(reader, start, half) + rows(reader, half, end) == [4, 5, 6, 11, 7, 8, 9]
        fresh = stream(node, "trimmed/.*", journals="", subscribePattern=f"{name}")
        assert fresh.latestOffset({}, limit) == end
        assert rows(fresh, {}, end) == [4, 5, 6, 11, 7, 8, 9]
        assert rows(BatchReader({"address": node.address, "journals": name}, X)) == [4, 5, 6, 11, 7, 8, 9]
        with pytest.raises(ConfigError, match=f"below the begins of .*begin {begin}"):
            stream(node, name, startingOffsets=f'{{"{name}": 0}}').initialOffset()


def test_what_was_removed_behind_a_query_ends_it_or_is_told(
    node: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """The option names the way out, and nothing led out: each plan asked for bytes that were gone."""
    name = "trimmed/behind"
    with connect_sync(node.address) as client:
        create(client, name)
        publish(client, name, range(8))
        strict, lax = stream(node, name), stream(node, name, failOnDataLoss="false")
        start = strict.initialOffset()
        first = start[name] | {"offset": ends_of(client, name)[0]}
        end = strict.latestOffset(start, ReadAllAvailable())
        begin = trim(client, name, ends_of(client, name)[2])

        for position in (start, {name: first}):
            with pytest.raises(LocalProtocolError, match=r"begins at .* were removed: .* failOnDataLoss"):
                strict.latestOffset(position, ReadAllAvailable())
            with pytest.raises(LocalProtocolError, match=r"next that can be read is .* failOnDataLoss"):
                rows(strict, position, end)
            assert rows(lax, position, end) == [*range(3, 8)], "a batch that was logged before the trim"
            planned = lax.latestOffset(position, ReadAllAvailable())
            assert planned[name]["begin"] == begin
            assert rows(lax, position, planned) == [*range(3, 8)]
        whole = {name: first | {"offset": ends_of(client, name)[0] - 1}}
        assert rows(lax, start, whole) == []
    assert (
        f"begins at {begin}: {begin - first['offset']} bytes from {first['offset']} on"
        in capfd.readouterr().err
    )


def test_a_reader_below_the_begin_is_told_that_its_bytes_were_removed(node: Any) -> None:
    """It was told of damage. Of a transaction that was partly gone it left out what was still there."""
    name = "trimmed/kept"
    with connect_sync(node.address) as client, client.publisher(f"{name}-commits") as publisher:
        create(client, name)
        with publisher.transaction() as transaction:
            transaction.publish_many(name, [{"x": x, "pad": "x" * 600} for x in range(3)])
            while not (end := client.journals.end(name)):
                time.sleep(0.01)
            transaction.publish_many(name, [{"x": x} for x in range(3, 8)])
        revision = client.journals.get(name).create_revision
        publish(client, name, range(8, 12))
        assert trim(client, name, end) == end

        for position in (Position(0, revision), Position(end, revision), Position(end, revision, 2)):
            with pytest.raises(Trimmed):
                [*client.messages(name, position)]
        assert [each.json()["x"] for each in client.messages(name)] == [*range(3, 12)]
        for each in client.messages(name):
            rest = client.messages(name, each.position)
            assert [later.json()["x"] for later in rest] == [*range(each.json()["x"] + 1, 12)]


def test_a_query_that_goes_on_without_its_checkpoint_is_told_what_was_removed(node: Any) -> None:
    """It got what was left of a transaction, and nobody was told of the rest."""
    name, commits = "trimmed/resumed", "trimmed/resumed-commits"
    with connect_sync(node.address) as client, client.publisher(f"{name}-publisher") as publisher:
        create(client, name)
        publish(client, name, range(4))
        with publisher.transaction() as transaction:
            before = client.journals.end(name)
            transaction.publish_many(name, [{"x": 10, "pad": "x" * 1500}])
            while client.journals.end(name) == before:
                time.sleep(0.01)
            publish(client, name, range(4, 6))
            at = Position(client.journals.end(name), client.journals.get(name).create_revision)
            transaction.publish_many(name, [{"x": 11, "pad": "x" * 1500}])
        publish(client, name, range(6, 10))
        journal, fence = CommitJournal(Target(node.address), commits), Fence("f")
        journal.begin(fence)
        journal.commit(
            fence, batch=0, query="q", digest="d", intents=[], positions=positions_to_text({name: at})
        )
        options = resume_options(address=node.address, commit_journal=commits)
        reader = stream(node, name, **options)
        start = reader.initialOffset()
        assert rows(reader, start, reader.latestOffset(start, ReadAllAvailable())) == [10, 11, 6, 7, 8, 9]
        trim(client, name, ends_of(client, name)[4])

        with pytest.raises(ConfigError, match=r"open at offset .* were removed: .* startingOffsets"):
            resume_options(address=node.address, commit_journal=commits)


def test_what_was_removed_before_a_first_batch_is_planned_again_ends_the_query_or_is_told(
    node: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark asks for the first offset again then, and got today's: nobody was told of what lies before it."""
    name = "trimmed/first"
    with connect_sync(node.address) as client:
        create(client, name)
        publish(client, name, range(8))
        before = stream(node, name)
        start = before.initialOffset()
        end = before.latestOffset(start, ReadAllAvailable())
        begin = trim(client, name, ends_of(client, name)[2])

        strict, lax = stream(node, name), stream(node, name, failOnDataLoss="false")
        with pytest.raises(LocalProtocolError, match=r"next that can be read is .* failOnDataLoss"):
            rows(strict, strict.initialOffset(), end)
        assert rows(lax, lax.initialOffset(), end) == [*range(3, 8)]
    assert f"begins at {begin}: {begin} bytes from 0 on" in capfd.readouterr().err
