"""History: refuses a checkpoint that the commit journal was not written with.

A commit journal holds the batches of one query, in order, each with a digest of the source offsets that
Spark logged for it. A checkpoint that was lost, restored from an older copy, or taken from another query does
not fit, and to go on with it would write rows twice or leave some out. Batches are numbers from 0; -1 for
none. These are functions of values, without state. Source: pipelines.9.
"""

from collections.abc import Sequence
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.errors import LocalProtocolError
from broadsheet.message.stamper import Intent
from broadsheet.sink.core.records import Fence, Record, SinkRegisters

OTHER_HISTORY: Final = (
    "the checkpoint belongs to another history. Restore the checkpoint that this journal was written with, "
    "or start with a new checkpoint and a new commit journal"
)
"""The cause and the remedy."""


def refuse_other_query(owner: str, query: str, *, journal: str) -> None:
    """Refuse a commit journal that belongs to another query: before START, in each task, and at COMMIT.

    Args:
        owner: the query that the registers name; empty if no batch was ever committed.

    Raises:
        LocalProtocolError: it is another query than `query`. Nothing was changed.
    """
    if owner not in ("", query):
        raise LocalProtocolError(
            f"commit journal {journal} belongs to query {owner}, not {query or 'a new one'}: {OTHER_HISTORY}"
        )


def refuse_other_batch(now: SinkRegisters, batch: int, *, journal: str, is_next: bool) -> None:
    """Refuse a batch that is neither the last committed one nor follows it.

    Args:
        is_next: whether only the next number follows; otherwise every greater one does.

    Raises:
        LocalProtocolError: it is not. Nothing was changed.
    """
    if not is_next:
        if batch < now.batch:
            raise LocalProtocolError(
                f"batch {batch} is below batch {now.batch}, the newest of {journal}, which does not tell "
                "whether an older one was written: write batches in the order of their numbers, or give this "
                "one a commit journal of its own"
            )
        return
    if batch not in (now.batch, now.batch + 1):
        hit("sink.commit.other_batch")
        raise LocalProtocolError(
            f"batch {batch} does not follow batch {now.batch} of {journal}: {OTHER_HISTORY}"
        )


def refuse_second_write(stored: Record, intents: Sequence[Intent], fence: Fence) -> None:
    """Refuse rows of a batch that the same run has committed with other rows.

    Two writes of one batch that overlap both find the batch before it when they are planned. Another run's
    rows are rows of the same input, and are left out in favour of what is committed.

    Raises:
        LocalProtocolError: the rows of `intents` are not those that were committed. Nothing was changed.
    """
    if stored.fence == fence and intents and list(intents) != stored.intents:
        hit("sink.commit.second_write")
        raise LocalProtocolError(
            f"batch {stored.batch} was committed by another write of the same run, and these rows are not in "
            "it: join the rows in one frame with a column 'journal', or give each write a commit journal of "
            "its own"
        )


def refuse_other_digest(stored: Record, digest: str, *, is_next: bool) -> None:
    """Refuse a batch that was committed with other source offsets, or by a write of another kind.

    Args:
        is_next: whether it is a query's batch, whose digest is of its offsets; otherwise the digest is of the
            write's options and columns.

    Raises:
        LocalProtocolError: the digests differ. Nothing was changed.
    """
    if stored.digest != digest:
        hit("sink.commit.other_digest")
        if not is_next:
            raise LocalProtocolError(
                f"batch {stored.batch} was committed by a write to other journals or with other columns "
                f"({stored.digest[:12]}, now {digest[:12]}), and these rows are not written: give another "
                "batch another number, or a commit journal of its own"
            )
        raise LocalProtocolError(
            f"batch {stored.batch} was committed with other source offsets ({stored.digest[:12]}, now "
            f"{digest[:12]}): {OTHER_HISTORY}"
        )
