"""Application: the two functions that a user's driver calls before Spark plans anything.

`start` fences the commit journal and starts the query. `read_stream_options` pins `latest` to byte offsets.
Units: seconds. Source: pipelines.4, pipelines.6.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from broadsheet.client_sync import connect_sync
from broadsheet.errors import ConfigError
from broadsheet.runtime.failpoints import passed
from broadsheet.sink.core.history import refuse_other_query
from broadsheet.sink.core.records import FENCE_BYTES, Fence
from broadsheet.spark.checkpoint import query_of, refuse_unusable
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import PATIENCE_S, Target, patiently, token_of
from broadsheet.spark.subscription import OPTIONS, Subscription, not_existing

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from broadsheet.spark.foreach import Function


def start(
    writer: "DataStreamWriter",
    *,
    address: str,
    commit_journal: str,
    token: str = "",
    patience_s: float = PATIENCE_S,
    foreach_batch: "Function | None" = None,
) -> "StreamingQuery":
    """Start a query whose output is committed exactly once, after ending every older run of it.

    Args:
        writer: `df.writeStream` with trigger, checkpoint location and routing, and without a format.
        commit_journal: the journal that records the query's batches. No other query may use it. `start`
            creates it if it does not exist.
        token: by default `BROADSHEET_TOKEN` of the environment.
        patience_s: how long the node may be away before the query fails.
        foreach_batch: called in this process with the rows of each batch, its number, and the options with
            which it writes the batch once: `frame.write.format("broadsheet").mode("append").options(**o)`.
            A batch that it does not write is recorded as one without rows. All output modes are allowed.

    Raises:
        Fenced: another run of the query started while this one did.
        ConfigError: an option of the sink or of a source is unknown or has a wrong value, the rows have a
            type that cannot be written, or the checkpoint is where a commit cannot read and write: no older
            run was ended. Or the commit journal holds data that no query wrote.
        LocalProtocolError: the commit journal belongs to another query than the checkpoint: no run was ended.
    """
    from broadsheet.spark.foreach import Foreach
    from broadsheet.spark.sink import SinkWriter
    from broadsheet.spark.source import Sources

    fence = Fence(os.urandom(FENCE_BYTES).hex())
    ours = {
        "address": address,
        "token": token,
        "patience": str(patience_s),
        "commitJournal": commit_journal,
        "fence": fence,
    }
    given = given_to(writer)
    for source in given.sources:
        Sources(source.options).shape(source.schema)
    options = given.sink | {name.lower(): text for name, text in ours.items()}
    query = ""
    if location := options.get("checkpointlocation"):
        files = SparkFiles(writer, location)
        options["checkpointlocation"] = found = files.location
        refuse_unusable(found, files.remove)
        query = query_of(found)
        writer = writer.option("checkpointLocation", found)
    if foreach_batch is None:
        SinkWriter(options, given.schema)
    else:
        writer = writer.foreachBatch(Foreach(options, foreach_batch))
    place(
        fence, address=address, commit_journal=commit_journal, token=token, patience_s=patience_s, query=query
    )
    passed("sink.start.end")
    if foreach_batch is None:
        writer = writer.format("broadsheet").options(**ours)
    return writer.start()


def place(
    fence: Fence, *, address: str, commit_journal: str, token: str, patience_s: float, query: str
) -> None:
    """Let `fence` be the author of the commit journal, so that no older run commits; arguments as `start`.

    Args:
        query: the id of the query; empty if Spark has not given it one yet.

    Raises:
        LocalProtocolError: the commit journal is another query's, or a publisher's, whose run goes on.
    """
    target = Target(address, token_of(token), patience_s)
    client = patiently(lambda: connect_sync(address, target.token or None), patience_s)
    try:
        journal = CommitJournal(target, commit_journal, client.journals)
        refuse_other_query(journal.standing().query, query, journal=commit_journal)
        journal.begin(fence)
    finally:
        client.close()


class GivenSource(NamedTuple):
    """What a user gave one of our sources. Names of options are in lower case."""

    options: dict[str, str]
    schema: "StructType"
    """The columns that it is to give."""


class Given(NamedTuple):
    """What a user gave before Spark plans anything. Names of options are in lower case."""

    sink: dict[str, str]
    """The options of the sink."""
    sources: list[GivenSource]
    """Each of our sources that the rows come from."""
    schema: "StructType"
    """The columns of the rows."""


def given_to(writer: "DataStreamWriter") -> Given:
    """What `writer` was given. Spark tells a data source its options only when the query runs already.

    A field of Spark's writer is read, and the leaves of its plan (Spark 4.2 and 4.3).
    """
    from pyspark.sql.types import StructType

    frame, written, jvm = writer._df, writer._jwrite, writer._spark._jvm  # noqa: SLF001 - no other way.
    assert jvm is not None, "a session has a JVM"
    field = written.getClass().getDeclaredField("extraOptions")
    field.setAccessible(True)
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    leaves = as_java(frame._jdf.queryExecution().analyzed().collectLeaves())  # noqa: SLF001 - as above.
    streams = [leaf for leaf in leaves if leaf.nodeName() == "StreamingRelationV2"]
    ours = [
        GivenSource(_lower(leaf.extraOptions()), StructType.fromJson(json.loads(leaf.schema().json())))
        for leaf in streams
        if leaf.sourceName() == "broadsheet"
    ]
    return Given(_lower(as_java(field.get(written))), ours, frame.schema)


class SparkFiles:
    """The file system of a checkpoint, as Spark has it."""

    def __init__(self, writer: "DataStreamWriter", location: str) -> None:
        """Open the file system of `location`, which may be relative, or in a default one.

        Raises:
            ConfigError: Spark cannot open it.
        """
        session = writer._spark  # noqa: SLF001 - as above.
        assert session._jvm is not None, "a session has a JVM"  # noqa: SLF001 - as above.
        self._path = session._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001 - as above.
        path = self._path(location)
        with _of_spark(location):
            hadoop = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - as above.
            self._system = path.getFileSystem(hadoop)
            self.location = str(self._system.makeQualified(path).toString())
            """Where Spark keeps the checkpoint, with its file system."""

    def remove(self, file: str) -> bool:
        """Remove a file, and tell whether there was one.

        Raises:
            ConfigError: Spark cannot remove it.
        """
        with _of_spark(self.location):
            return bool(self._system.delete(self._path(file), False))  # noqa: FBT003 - Hadoop's.


@contextmanager
def _of_spark(location: str) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        raise ConfigError(
            f"Spark cannot open checkpointLocation {location!r} ({error.java_exception}): add the jars of "
            "that file system to the session, or name a directory of this machine"
        ) from error


def _lower(options: Mapping[object, object]) -> dict[str, str]:
    return {str(name).lower(): str(options[name]) for name in options}


def read_stream_options(
    *,
    address: str,
    journals: Sequence[str] = (),
    subscribe_pattern: str = "",
    selector: str = "",
    token: str = "",
    latest: bool = False,
    patience_s: float = PATIENCE_S,
) -> dict[str, str]:
    """Options of `readStream.format("broadsheet")`, with the starting point pinned to bytes.

    Args:
        journals: their names; or give `subscribe_pattern` or `selector`, as the options of these names have
            it.
        token: by default `BROADSHEET_TOKEN` of the environment.
        latest: begin at the present ends of the journals. Keep the result beside the checkpoint: if Spark
            is killed in its first batch, it asks for the starting point again and must get the same one. A
            journal that is created later is read from its begin.
        patience_s: how long to wait for the node, and for a journal that is being opened.

    Raises:
        ConfigError: not exactly one of `journals`, `subscribe_pattern` and `selector` is given, or one of
            `journals` does not exist.
    """
    subscription = Subscription.checked(tuple(journals), subscribe_pattern, selector)
    given = zip(OPTIONS, (",".join(journals), subscribe_pattern, selector), strict=True)
    options = {"address": address, "token": token} | {option: text for option, text in given if text}
    if latest:
        heads = subscription.heads(Target(address, token_of(token), patience_s))
        if absent := [name for name in journals if name not in heads]:
            raise not_existing(absent)
        options["startingOffsets"] = json.dumps({name: each.offset for name, each in heads.items()})
    return options
