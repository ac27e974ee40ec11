"""History: refuses a checkpoint that the commit journal was not written with.

A commit journal holds the batches of one query, in order, each with a digest of the source offsets that
Spark logged for it. A checkpoint that was lost, restored from an older copy, or taken from another query does
not fit, and to go on with it would write rows twice or leave some out. Batches are numbers from 0; -1 for
none. These are functions of values, without state. Source: pipelines.9.
"""

from typing import Final

from broadsheet.base.marks import hit
from broadsheet.errors import LocalProtocolError
from broadsheet.sink.core.records import Record, SinkRegisters

OTHER_HISTORY: Final = (
    "the checkpoint belongs to another history. Restore the checkpoint that this journal was written with, "
    "or start with a new checkpoint and a new commit journal"
)
"""The cause and the remedy."""


def refuse_other_query(owner: str, query: str, *, journal: str) -> None:
    """Refuse a commit journal that belongs to another query: in each task, and at COMMIT.

    Args:
        owner: the query that the registers name; empty if no batch was ever committed.

    Raises:
        LocalProtocolError: it is another query than `query`. Nothing was changed.
    """
    if owner not in ("", query):
        raise LocalProtocolError(
            f"commit journal {journal} belongs to query {owner}, not {query}: {OTHER_HISTORY}"
        )


def refuse_other_batch(now: SinkRegisters, batch: int, *, journal: str) -> None:
    """Refuse a batch that is neither the last committed one nor the one after it.

    Raises:
        LocalProtocolError: it is not. Nothing was changed.
    """
    if batch not in (now.batch, now.batch + 1):
        hit("sink.commit.other_batch")
        raise LocalProtocolError(
            f"batch {batch} does not follow batch {now.batch} of {journal}: {OTHER_HISTORY}"
        )


def refuse_other_offsets(stored: Record, digest: str) -> None:
    """Refuse a batch that was committed with other source offsets.

    Raises:
        LocalProtocolError: the digests of the offsets differ. Nothing was changed.
    """
    if stored.digest != digest:
        hit("sink.commit.other_digest")
        raise LocalProtocolError(
            f"batch {stored.batch} was committed with other source offsets ({stored.digest[:12]}, now "
            f"{digest[:12]}): {OTHER_HISTORY}"
        )
