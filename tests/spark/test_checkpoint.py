"""A checkpoint and its commit journal belong together, also before the first batch is known to either."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from broadsheet.client_sync import connect_sync
from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.sink.core.records import Fence
from broadsheet.spark.application import SparkFiles, place
from broadsheet.spark.checkpoint import (
    COMMITS_FILE,
    Commits,
    keep_to,
    logged,
    query_of,
    refuse_unusable,
)
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import Target
from broadsheet.spark.sink import Done, SinkWriter
from tests.spark.object_store import BUCKET, ObjectStore, object_store

ROWS = StructType([StructField("x", LongType())])


def commit_first_batch(address: str, checkpoint: Path | str, journal: str, fence: str) -> None:
    """START and COMMIT of batch 0, as a driver does them that begins at this checkpoint."""
    CommitJournal(Target(address), journal).begin(Fence(fence))
    options = {"address": address, "journal": "check/out", "commitJournal": journal, "fence": fence}
    SinkWriter(options | {"checkpointLocation": str(checkpoint)}, ROWS).commit([Done("q", 0, [], 1)], 0)


def test_the_first_batch_is_not_committed_again_in_another_commit_journal(node: Any, tmp_path: Path) -> None:
    """After a crash between our commit and Spark's, each of its rows was written a second time.

    Spark runs the batch again, and a commit journal that was made again meanwhile knew nothing of it.
    """
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("offsets")
    commit_first_batch(node.address, tmp_path, "check/commits", "a")
    commit_first_batch(node.address, tmp_path, "check/commits", "b")  # The same one knows it.

    with pytest.raises(LocalProtocolError, match="belongs to commit journal check/commits"):
        commit_first_batch(node.address, tmp_path, "check/other", "c")
    with connect_sync(node.address) as client:
        client.journals.delete("check/commits")
        with pytest.raises(LocalProtocolError, match="startingOffsets"):
            commit_first_batch(node.address, tmp_path, "check/commits", "d")
        assert client.journals.registers("check/commits").values["batch"] == "-1"


def test_a_start_over_the_commit_journal_of_another_ends_nobody(node: Any, tmp_path: Path) -> None:
    """Its first task was refused, after the fence had ended the run whose journal it is."""
    (tmp_path / "metadata").write_text('{"id":"q-1"}')
    assert (query_of(str(tmp_path)), query_of(str(tmp_path / "none"))) == ("q-1", "")
    asked: Any = {"address": node.address, "token": "", "patience_s": 30}
    with connect_sync(node.address) as client:
        client.journals.create("check/messages")
        with client.publisher("check/theirs") as publisher:
            for number in range(2):
                with publisher.transaction() as transaction:
                    transaction.publish("check/messages", {"n": number})
                for query in ("", "q-1"):
                    with pytest.raises(LocalProtocolError, match=r"belongs to query broadsheet.publisher"):
                        place(Fence("f"), commit_journal="check/theirs", query=query, **asked)
        CommitJournal(Target(node.address), "check/ours").begin(Fence("a"))
        place(Fence("b"), commit_journal="check/ours", query="q-1", **asked)
        assert client.journals.registers("check/ours").values["author"] == "b"


def test_what_a_crash_cut_off_was_followed_by_no_commit(tmp_path: Path) -> None:
    """The file is whole before the commit is sent, so that half a file binds nobody."""
    (tmp_path / COMMITS_FILE).write_bytes(b'{"journal":"check')
    ours = Commits("check/commits", 7)

    for spelt in (str(tmp_path), f"file://{tmp_path}", f"file:{tmp_path}"):
        keep_to(spelt, ours)
    with pytest.raises(LocalProtocolError, match=r"create revision 7\), not check/commits \(8\)"):
        keep_to(str(tmp_path), Commits("check/commits", 8))
    assert [each.name for each in tmp_path.iterdir()] == [COMMITS_FILE]


def test_of_two_drivers_at_once_one_has_the_checkpoint(tmp_path: Path) -> None:
    """A run that was thought dead, and one with another commit journal: each committed the first batch."""
    for turn in range(50):
        checkpoint = tmp_path / str(turn)
        checkpoint.mkdir()
        together = Barrier(4)
        with ThreadPoolExecutor(4) as drivers:
            both = [drivers.submit(keep, str(checkpoint), at, together) for at in range(4)]
        assert sum(each.result() for each in both) == 1


def keep(checkpoint: str, at: int, together: Barrier) -> bool:
    together.wait()
    try:
        keep_to(checkpoint, Commits(f"check/commits-{at}", 7))
    except (ConfigError, LocalProtocolError):
        return False
    return True


def test_a_checkpoint_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Nothing is committed then, and the error says what to give."""
    with pytest.raises(ConfigError, match="checkpointLocation as a directory"):
        keep_to(f"{tmp_path}/gone", Commits("check/commits", 7))


@pytest.mark.parametrize(
    "where",
    [
        "hdfs://127.0.0.1:1/c",
        "viewfs://cluster/c",
        "wasbs://c@a/c",
        "other://x/c",
        "abfss://c@127.0.0.1:1/c",
    ],
)
def test_a_checkpoint_that_a_commit_could_not_read_is_refused_at_start(where: str) -> None:
    """The query ran its first batch, and failed in its commit, after it had ended the older run.

    Of a library that is missing pyarrow says on a hundred lines where it is not.
    """
    with pytest.raises(ConfigError, match=f"{where}' cannot be read and written from Python") as told:
        refuse_unusable(where, lambda _: True)
    assert re.search("pyarrow says: [^\n]+. Give pyarrow what it needs", str(told.value))
    assert "\n" not in str(told.value)
    for local in ("/c", "file:/c", "file:///c", "c"):
        refuse_unusable(local, lambda _: False)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """An object store that the environment names, as that of a driver does."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "some")
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # Otherwise content is in chunks.
    with object_store() as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.address)
        yield found


def test_a_checkpoint_in_an_object_store_is_as_one_on_this_machine(node: Any, store: ObjectStore) -> None:
    """From START to the second query that takes it for its own, and whatever characters its path has."""
    where = f"s3a://{BUCKET}/jobs/a#b?c %20d"
    refuse_unusable(where, store.remove)
    assert (store.objects, query_of(where)) == ({}, "")

    store.objects[f"{BUCKET}/jobs/a#b?c %20d/metadata"] = b'{"id":"q-1"}'
    store.objects[f"{BUCKET}/jobs/a#b?c %20d/offsets/0"] = b"offsets"
    assert query_of(where) == "q-1"
    commit_first_batch(node.address, where, "check/stored", "a")
    commit_first_batch(node.address, where, "check/stored", "b")
    with pytest.raises(LocalProtocolError, match="belongs to commit journal check/stored"):
        commit_first_batch(node.address, where, "check/strange", "c")
    with pytest.raises(ConfigError, match="cannot read the offsets of batch 1 in checkpoint"):
        logged(where, 1)
    noted = {content for key, content in store.objects.items() if f"/{COMMITS_FILE}-" in key}
    assert [msgspec.json.decode(each)["journal"] for each in noted] == ["check/stored"]
    store.objects[f"{BUCKET}/jobs/a#b?c %20d/{COMMITS_FILE}-cut-off"] = b""
    commit_first_batch(node.address, where, "check/stored", "d")


@pytest.mark.usefixtures("store")
def test_of_two_drivers_at_once_one_at_most_has_a_checkpoint_in_an_object_store() -> None:
    """The second wrote over the note of the first, and each committed the first batch."""
    for turn in range(30):
        where, together = f"s3a://{BUCKET}/{turn}", Barrier(4)
        with ThreadPoolExecutor(4) as drivers:
            every = [drivers.submit(keep, where, at % 2, together) for at in range(4)]
        whose = {at % 2 for at, each in enumerate(every) if each.result()}
        assert len(whose) <= 1
        again = {at for at in (0, 1) if keep(where, at, Barrier(1))}
        assert len(again) == 1
        assert whose <= again


def test_a_store_that_a_commit_could_not_write_is_refused_at_start(store: ObjectStore) -> None:
    """It could be read, so the query ran until its first commit, and the older run was over by then."""
    store.is_read_only = True

    with pytest.raises(ConfigError, match=r"cannot be read and written from Python.*ACCESS_DENIED"):
        refuse_unusable(f"s3a://{BUCKET}/c", store.remove)


def test_a_store_that_is_another_for_spark_is_refused_at_start(store: ObjectStore) -> None:
    """A bucket of one name in two stores: the first commit found no offsets, after the older run was over."""
    with object_store() as of_spark, pytest.raises(ConfigError, match=r"AWS_ENDPOINT_URL as spark\.hadoop"):
        refuse_unusable(f"s3a://{BUCKET}/c", of_spark.remove)
    assert not any("broadsheet" in key for key in store.objects)


def test_spark_removes_what_python_wrote(spark: Any, tmp_path: Path) -> None:
    """By that START knows that both have one file system; a path may have any character."""
    rows = spark.readStream.format("rate").load()
    files = SparkFiles(rows.writeStream, f"{tmp_path}/a#b %20c")
    (tmp_path / "a#b %20c").mkdir()
    (tmp_path / "a#b %20c" / "probe").touch()

    assert files.remove(f"{files.location}/probe")
    assert not files.remove(f"{files.location}/probe")
    with pytest.raises(ConfigError, match="Spark cannot open checkpointLocation 'other://x/c'"):
        SparkFiles(rows.writeStream, "other://x/c")
