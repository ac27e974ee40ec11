"""Which journals a query reads: those that exist when a batch is planned, and no less without a word."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import LongType, StructField, StructType

from broadsheet.client_sync import SyncJournals, connect_sync
from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.spark.application import read_stream_options
from broadsheet.spark.source import BatchReader, Sources, StreamReader
from broadsheet.spark.subscription import CALLS_AHEAD, CALLS_AT_ONCE, of_each
from tests.spark.conftest import down, up

X = StructType([StructField("x", LongType())])
Offset = dict[str, Any]


def write(node: Any, *names: str, x: int = 1, **labels: str) -> None:
    with connect_sync(node.address) as client:
        for name in names:
            client.journals.create(name, labels=labels, if_absent=True)
            client.journals.append(name, b'{"x":%d}\n' % x)


def delete(node: Any, *names: str) -> None:
    with connect_sync(node.address) as client:
        for name in names:
            client.journals.delete(name)


def reader(node: Any, **options: str) -> StreamReader:
    return StreamReader({"address": node.address, **options}, X)


def rows(stream: StreamReader, begin: Offset, end: Offset) -> list[int]:
    batches = [batch for each in stream.partitions(begin, end) for batch in stream.read(each)]
    return sorted(x for batch in batches for x in batch.column("x").to_pylist())


def batch(stream: StreamReader, begin: Offset, limit: Any = None) -> tuple[list[int], Offset]:
    """The rows of the next batch, and its end."""
    end = stream.latestOffset(begin, limit or ReadAllAvailable())
    return rows(stream, begin, end), end


@pytest.mark.parametrize(
    "options", [{"subscribePattern": r"grow\d/[ab].*"}, {"selector": "grows=yes,name:prefix=grow"}]
)
def test_journals_that_are_created_later_are_taken_up_by_the_next_batch(
    node: Any, options: dict[str, str]
) -> None:
    """With a list of names somebody has to end the query whenever a tenant is new."""
    place = f"grow{len(options.get('selector', ''))}"
    options = {name: text.replace(r"grow\d", place) for name, text in options.items()}
    options = {name: text.replace("prefix=grow", f"prefix={place}") for name, text in options.items()}
    write(node, f"{place}/a", x=1, grows="yes")
    write(node, f"{place}/c", x=9)
    stream = reader(node, **options)
    first, end = batch(stream, stream.initialOffset())
    write(node, f"{place}/b/1", x=2, grows="yes")
    write(node, f"{place}/a", x=3, grows="yes")

    assert first == [1]
    for limit in (ReadAllAvailable(), ReadMaxBytes(1 << 20)):
        assert batch(stream, end, limit)[0] == [2, 3]
    again = reader(node, **options)  # Another start of the query: the checkpoint tells what was read.
    _, end = batch(again, end)
    assert batch(again, end) == ([], end)
    found = [
        each
        for part in BatchReader({"address": node.address, **options}, X).partitions()
        for each in stream.read(part)
    ]
    assert sorted(x for each in found for x in each.column("x").to_pylist()) == [1, 2, 3]


def test_a_subscription_that_nothing_meets_waits_for_the_first_journal(node: Any) -> None:
    """The query may be older than what it reads."""
    stream = reader(node, subscribePattern="late/.+")
    begin = stream.initialOffset()
    assert batch(stream, begin) == ([], {})
    write(node, "late/j")

    assert batch(stream, begin)[0] == [1]


def test_a_pattern_is_of_whole_names_and_a_malformed_condition_is_refused() -> None:
    """A pattern that matched the beginning of a name read journals that nobody asked for."""
    given = {"address": "h:1"}
    subscription = Sources(given | {"subscribePattern": "a/x|b/.*"}).subscription

    asked = [name for name in ("a/x", "a/xx", "b/", "b/y", "c/b/y") if subscription.asks_for(name)]
    assert asked == ["a/x", "b/", "b/y"]
    with pytest.raises(ConfigError, match=r"option subscribePattern is '\(': .*position 0"):
        Sources(given | {"subscribePattern": "("})
    with pytest.raises(ConfigError, match="option selector is 'a in': selector is malformed"):
        Sources(given | {"selector": "a in"})
    with pytest.raises(ConfigError, match=r"option 'journals' is missing.*'subscribePattern' or 'selector'"):
        Sources(given)


BY = {
    "journals": {"journals": "NAME/a,NAME/b"},
    "subscribePattern": {"subscribePattern": "NAME/."},
    "selector": {"selector": "of=NAME"},
}


def subscribed(by: str, name: str) -> dict[str, str]:
    return {option: text.replace("NAME", name) for option, text in BY[by].items()}


@pytest.mark.parametrize("by", BY)
def test_a_deleted_journal_ends_the_query_or_is_told_and_left_out(
    node: Any, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was appended before it was deleted, and not read, is in no batch: somebody should know."""
    name = f"gone-{by}"
    write(node, f"{name}/a", f"{name}/b", of=name)
    strict = reader(node, **subscribed(by, name))
    lenient = reader(node, **subscribed(by, name), failOnDataLoss="false")
    begin = strict.initialOffset()
    _, end = batch(strict, begin)
    logged = strict.latestOffset(begin, ReadAllAvailable())
    write(node, f"{name}/b", x=2, of=name)
    delete(node, f"{name}/a")

    with pytest.raises(LocalProtocolError, match=rf"{name}/a was deleted: .*failOnDataLoss to 'false'"):
        strict.latestOffset(end, ReadAllAvailable())
    with pytest.raises(LocalProtocolError, match=rf"{name}/a was deleted: 8 bytes up to 8"):
        strict.partitions(begin, logged)
    assert rows(lenient, begin, logged) == [1]
    found, after = batch(lenient, end)
    assert (found, list(after)) == ([2], [f"{name}/b"])
    assert batch(lenient, after) == ([], after)
    told = capsys.readouterr().err
    assert f"{name}/a was deleted: 8 bytes up to 8 cannot be read" in told
    assert "(2 losses of 8 known bytes in this process)" in told


@pytest.mark.parametrize("by", BY)
def test_a_journal_that_was_made_again_is_read_from_its_begin_if_losses_are_allowed(
    node: Any, by: str
) -> None:
    """Its offsets are those of other bytes: from the old position on, half of it would be missing."""
    name = f"again-{by}"
    write(node, f"{name}/a", f"{name}/b", of=name)
    strict = reader(node, **subscribed(by, name))
    lenient = reader(node, **subscribed(by, name), failOnDataLoss="false")
    begin = strict.initialOffset()
    _, end = batch(strict, begin)
    delete(node, f"{name}/a")
    write(node, f"{name}/a", x=7, of=name)
    write(node, f"{name}/a", x=8, of=name)

    with pytest.raises(LocalProtocolError, match=f"{name}/a was deleted and made again"):
        strict.latestOffset(end, ReadAllAvailable())
    found, after = batch(lenient, end)
    assert found == [7, 8]
    assert batch(lenient, after) == ([], after)
    assert rows(lenient, begin, end) == [1]  # The logged batch without what is gone: 7 belongs to the next.
    with pytest.raises(LocalProtocolError, match="made again"):
        strict.partitions(end, after)


def test_a_task_gives_no_row_of_a_journal_that_was_made_again(node: Any) -> None:
    """It was planned for the former one. Its rows would be counted as those of a batch they are not in."""
    write(node, "task/a", "task/b")
    lenient = reader(node, journals="task/a,task/b", failOnDataLoss="false", tasks="1")
    begin = lenient.initialOffset()
    (part,) = lenient.partitions(begin, lenient.latestOffset(begin, ReadAllAvailable()))
    delete(node, "task/a")
    write(node, "task/a", x=7)

    assert [x for each in lenient.read(part) for x in each.column("x").to_pylist()] == [1]


def test_a_journal_whose_labels_do_not_meet_the_selector_keeps_its_position(
    node: Any,
) -> None:
    """It is not gone: if it meets the selector again, the query goes on where it was."""
    write(node, "label/a", "label/b", kept="no")
    _, end = batch(reader(node, selector="kept=no"), reader(node, selector="kept=no").initialOffset())
    other = reader(node, selector="kept=yes")

    assert other.latestOffset(end, ReadAllAvailable()) == end
    assert other.partitions(end, end) == []


def test_a_name_that_does_not_exist_is_refused(node: Any) -> None:
    """It is misspelt: the query would wait for rows that go to another journal."""
    write(node, "there/a")
    stream = reader(node, journals="there/a,there/b")

    with pytest.raises(ConfigError, match=r"\['there/b'\] do not exist: create them"):
        stream.initialOffset()
    with pytest.raises(ConfigError, match=r"\['there/b'\] do not exist"):
        stream.latestOffset({}, ReadAllAvailable())


def test_a_pinned_start_is_of_the_journals_that_there_are(node: Any) -> None:
    """Rows of one that is created between pinning and starting were appended after the query was wanted."""
    write(node, "pin/a")
    options = read_stream_options(address=node.address, subscribe_pattern="pin/.*", latest=True)
    write(node, "pin/b", x=2)
    stream = StreamReader(options, X)

    assert batch(stream, stream.initialOffset())[0] == [2]
    assert "selector" in read_stream_options(address=node.address, selector="ab=c")
    with pytest.raises(ConfigError, match=r"\['pin/c'\] do not exist"):
        read_stream_options(address=node.address, journals=["pin/a", "pin/c"], latest=True)
    with pytest.raises(ConfigError, match="set one of them"):
        read_stream_options(address=node.address, journals=["pin/a"], selector="ab=c")


def test_a_query_of_spark_takes_up_new_journals_and_goes_on_without_deleted_ones(
    spark: Any, node: Any, tmp_path: Path
) -> None:
    """The same as above, with Spark's own checkpoint between the runs."""
    write(node, "end/a", x=1)

    def query() -> list[int]:
        stream = spark.readStream.format("broadsheet").schema("x long")
        options = {"address": node.address, "subscribePattern": "end/.*", "failOnDataLoss": "false"}
        writer = stream.options(**options).load().writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "c")).start(
            str(tmp_path / "out")
        ).awaitTermination()
        return sorted(row.x for row in spark.read.parquet(str(tmp_path / "out")).collect())

    assert query() == [1]
    write(node, "end/b", "end/c", x=2)
    delete(node, "end/a")
    assert query() == [1, 2, 2]
    delete(node, "end/b")
    write(node, "end/b", x=3)
    assert query() == [1, 2, 2, 3]


def test_the_calls_of_a_plan_run_beside_each_other() -> None:
    """One after the other, 1,500 journals took six seconds of each batch."""
    together = threading.Barrier(CALLS_AT_ONCE)

    def call(name: str) -> int:
        together.wait(30)
        return int(name)

    found = of_each(call, map(str, range(2 * CALLS_AT_ONCE)))
    assert list(found.items()) == [(str(at), at) for at in range(2 * CALLS_AT_ONCE)]


def test_a_plan_ends_with_the_first_error_and_asks_no_further() -> None:
    """Of 1,500 journals of a node that is away, each was waited for in its turn, for two minutes."""
    asked: list[str] = []

    def call(name: str) -> int:
        asked.append(name)
        raise ConfigError(name)

    with pytest.raises(ConfigError, match=r"^0$"):
        of_each(call, map(str, range(100_000)))
    assert len(asked) <= CALLS_AHEAD + 1


def test_the_lag_is_told_without_asking_again(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks for the ends right after it planned with them: twice as many calls for each batch."""
    write(node, "lag/a")
    stream = reader(node, journals="lag/a")
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, ReadMaxBytes(3))
    asked: list[str] = []
    status = SyncJournals.status

    def counted(journals: SyncJournals, name: str) -> Any:
        asked.append(name)
        return status(journals, name)

    monkeypatch.setattr(SyncJournals, "status", counted)

    told = stream.reportLatestOffset()
    assert told is not None
    assert (end["lag/a"]["offset"], told["lag/a"]["offset"], asked) == (3, 8, [])
    write(node, "lag/a")
    told = stream.reportLatestOffset()
    assert told is not None
    assert (told["lag/a"]["offset"], asked) == (16, ["lag/a"])


def test_a_node_that_restarts_while_a_batch_is_planned_is_waited_for(tmp_path: Any) -> None:
    """All calls that are on their way fail at once then; each is repeated by itself."""
    data_dir = tmp_path / "data"
    node = up(data_dir, "--any-port")
    write(node, *(f"many/{at}" for at in range(40)))
    stream = reader(node, subscribePattern="many/.*")
    begin = stream.initialOffset()
    os.kill(node.pid, signal.SIGKILL)
    planned: list[Offset] = []
    planning = threading.Thread(target=lambda: planned.append(stream.latestOffset(begin, ReadAllAvailable())))
    planning.start()
    try:
        up(data_dir)  # At its former ports.
        planning.join(60)

        assert rows(stream, begin, planned[0]) == [1] * 40
    finally:
        down(data_dir)
