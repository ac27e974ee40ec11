"""Deletion: removes a journal once its spec has the mark of a deletion, which is the point of no return.

A restartable to-do list: fragments and side files, spools, the log's stream, then the keys. It is repeated
until it succeeds, also by later starts. Source: ADR 0064; `docs/protocols/journals.md` "Deletion".
"""

import asyncio
from functools import partial

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import in_seconds
from broadsheet.errors import BroadsheetError
from broadsheet.journal.context import Context
from broadsheet.journal.core.spec import epoch_key, registers_key, spec_key
from broadsheet.journal.messages import JournalInfo
from broadsheet.journal.opening import OPEN_RETRY_MAX, OPEN_RETRY_MIN, directory_of, stream_of
from broadsheet.journal.seal_files import remove_all
from broadsheet.keyspace.core.transaction import Delete, ModRevisionIs
from broadsheet.runtime.failpoints import passed


async def finish_delete(context: Context, info: JournalInfo) -> None:
    """Remove the content of a journal, then its keys; tries until that succeeds."""
    name = info.name
    backoff = Backoff(OPEN_RETRY_MIN, OPEN_RETRY_MAX)
    while True:
        try:
            await context.store(info.spec.fragment.store).delete_all(name)
            passed("journal.delete.after_store")
            await context.disk.run(partial(remove_all, context.disk, directory_of(info)))
            passed("journal.delete.after_spool")
            # A stream without records is dropped, too: the log keeps callbacks for it.
            context.log.drop(stream_of(info))
            key = spec_key(name)
            await context.keyspace.transact(
                [ModRevisionIs(key, info.mod_revision)],
                [Delete(key), Delete(epoch_key(name)), Delete(registers_key(name))],
            )
            passed("journal.delete.after_keys")
        except (OSError, BroadsheetError):
            await asyncio.sleep(in_seconds(backoff.next()))
        else:
            return
