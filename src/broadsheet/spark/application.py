"""Application: the two functions that a user's driver calls before Spark plans anything.

`start` fences the commit journal and starts the query. `read_stream_options` pins `latest` to byte offsets.
Units: seconds. Source: pipelines.4, pipelines.6.
"""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broadsheet.client_sync import connect_sync
from broadsheet.runtime.failpoints import passed
from broadsheet.sink.core.records import FENCE_BYTES, Fence
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import PATIENCE_S, Target, patiently, token_of
from broadsheet.spark.subscription import OPTIONS, Subscription, not_existing

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def start(
    writer: "DataStreamWriter",
    *,
    address: str,
    commit_journal: str,
    token: str = "",
    patience_s: float = PATIENCE_S,
) -> "StreamingQuery":
    """Start a query whose output is committed exactly once, after ending every older run of it.

    Args:
        writer: `df.writeStream` with trigger, checkpoint location and routing, and without a format.
        commit_journal: the journal that records the query's batches. No other query may use it. `start`
            creates it if it does not exist.
        token: by default `BROADSHEET_TOKEN` of the environment.
        patience_s: how long the node may be away before the query fails.

    Raises:
        Fenced: another run of the query started while this one did.
        ConfigError: the commit journal holds data that no query wrote.
    """
    target = Target(address, token_of(token), patience_s)
    fence = Fence(os.urandom(FENCE_BYTES).hex())
    client = patiently(lambda: connect_sync(address, target.token or None), patience_s)
    try:
        CommitJournal(target, commit_journal, client.journals).begin(fence)
    finally:
        client.close()
    passed("sink.start.end")
    return (
        writer.format("broadsheet")
        .option("address", address)
        .option("token", token)
        .option("patience", str(patience_s))
        .option("commitJournal", commit_journal)
        .option("fence", fence)
        .start()
    )


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
