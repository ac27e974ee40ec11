"""Resuming: a new query goes on where one ended whose checkpoint is lost.

Each commit says where its batch ends in the journals that it read. A query with a new checkpoint and a new
commit journal that begins there writes what comes behind, and nothing twice: the older query is fenced first,
so that none of its runs commits any more. What Spark kept in the lost checkpoint besides, as the state of
aggregations, is gone. Units: seconds. Source: pipelines.9.
"""

import json
import os

from broadsheet.client_sync import SyncClient, connect_sync
from broadsheet.errors import ConfigError, NotFound
from broadsheet.message.position import Position, positions_from_text
from broadsheet.message.producer_state import oldest_open
from broadsheet.sink.core.records import FENCE_BYTES, Fence
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import PATIENCE_S, Target, head, patiently, token_of
from broadsheet.spark.read import index_up_to


def resume_options(
    *, address: str, commit_journal: str, token: str = "", patience_s: float = PATIENCE_S
) -> dict[str, str]:
    """Options of `readStream.format("broadsheet")` for a query that goes on behind an older query's commits.

    The older query's runs cannot commit any more, and what it committed is acknowledged. Start the new one
    with a new checkpoint and a new commit journal.

    Args:
        commit_journal: the one of the older query.
        token: by default `BROADSHEET_TOKEN` of the environment.
        patience_s: how long to wait for the node.

    Raises:
        ConfigError: its newest commit does not say where its batch ends, because the query also read other
            sources, or was run by an older version; or there is no commit, or no such journal; or a journal
            that was read was deleted and made again since, or messages were removed that were not committed
            when the batch ended.
        Fenced: another run of the older query started meanwhile.
    """
    target = Target(address, token_of(token), patience_s)
    client = patiently(lambda: connect_sync(address, target.token or None), patience_s)
    try:
        try:  # Before it is fenced, which would make it.
            patiently(lambda: client.journals.get(commit_journal), patience_s)
        except NotFound as error:
            raise ConfigError(f"{error}: name the commit journal of the older query") from error
        commits = CommitJournal(target, commit_journal, client.journals)
        fence = Fence(os.urandom(FENCE_BYTES).hex())
        commits.begin(fence)
        positions = positions_from_text(commits.plan(fence).positions)
        if not positions:
            raise ConfigError(
                f"the newest commit in {commit_journal} does not say where its batch ends, or there is none: "
                "give the new query option startingOffsets"
            )
        for name, position in positions.items():
            if _create_revision(client, name, patience_s) != position.create_revision:
                raise ConfigError(
                    f"journal {name} was deleted, or made again, after {commit_journal} had its last commit: "
                    "give the new query option startingOffsets"
                )
            _refuse_removed(target, name, position)
    finally:
        client.close()
    return {
        "address": address,
        "token": token,
        "journals": ",".join(positions),
        "startingOffsets": json.dumps({name: each.offset for name, each in positions.items()}),
    }


def _refuse_removed(target: Target, journal: str, position: Position) -> None:
    """Refuse a journal that begins, by now, inside a span that was open where the older query stood.

    Raises:
        ConfigError: it does. The new query would get what is left of the span, as one that never read before.
    """
    begin = patiently(lambda: head(target.journals(), journal), target.patience_s).begin
    if not position.begin < begin <= position.offset:
        return  # Nothing was removed since; or so much that the new query refuses its startingOffsets.
    opened = oldest_open(index_up_to(target, journal, position))
    if opened is not None and opened < begin:
        raise ConfigError(
            f"messages of {journal} whose span was open at offset {position.offset}, where the older query "
            f"stood, were removed: the span begins at {opened}, and the journal at {begin}. To go on with "
            "what is left, give the new query option startingOffsets"
        )


def _create_revision(client: SyncClient, journal: str, patience_s: float) -> int | None:
    """Which journal of that name there is; None if there is none."""
    try:
        return patiently(lambda: client.journals.get(journal), patience_s).create_revision
    except NotFound:
        return None
