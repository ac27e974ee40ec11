"""Deletion: marks a journal's spec, which is the point of no return, and then removes the journal.

The removal is a restartable to-do list: fragments and side files, spools, the log's stream, then the keys. It
is repeated until it succeeds, also by later starts. Source: ADR 0064;
`docs/protocols/journals.md` "Deletion".
"""

import asyncio
from functools import partial
from typing import Final

import msgspec

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import in_seconds
from broadsheet.errors import BroadsheetError, NotFound, Throttled
from broadsheet.journal.context import Context
from broadsheet.journal.core.spec import epoch_key, registers_key, spec_key
from broadsheet.journal.keys import decode_info, encode_spec
from broadsheet.journal.messages import JournalInfo
from broadsheet.journal.opening import OPEN_RETRY_MAX, OPEN_RETRY_MIN, directory_of, stream_of
from broadsheet.journal.set_aside import is_ours
from broadsheet.keyspace.core.transaction import Delete, ModRevisionIs, Put
from broadsheet.ports import Disk
from broadsheet.runtime.failpoints import passed

MARK_TRIES_MAX: Final = 16
"""How often the mark is put anew because the spec was altered meanwhile."""


async def mark_deleted(context: Context, info: JournalInfo) -> JournalInfo:
    """Mark the spec of the journal in `info`, whatever was altered of it since; returns the marked one.

    Raises:
        NotFound: it was deleted meanwhile. Throttled: others alter it all the time. Nothing changed.
    """
    key = spec_key(info.name)
    for _ in range(MARK_TRIES_MAX):
        pair = context.keyspace.get(key)
        if pair is None or pair.create_revision != info.create_revision or decode_info(pair).spec.is_deleting:
            raise NotFound(f"journal {info.name} was deleted meanwhile")
        doomed = msgspec.structs.replace(decode_info(pair).spec, is_deleting=True)
        passed("journal.delete.before_mark")
        outcome = await context.keyspace.transact(
            [ModRevisionIs(key, pair.mod_revision)],
            [Put(key, encode_spec(doomed, created=info.create_revision))],
            is_upkeep=True,
        )
        passed("journal.delete.after_mark")
        if outcome.succeeded:
            return JournalInfo(doomed, create_revision=info.create_revision, mod_revision=outcome.revision)
    raise Throttled(f"journal {info.name}: its spec changes all the time; try again")


async def finish_delete(context: Context, info: JournalInfo) -> None:
    """Remove the content of a deleted journal, then its keys; tries until that succeeds."""
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


def remove_all(disk: Disk, directory: str) -> None:
    """Remove the files of a journal that is deleted, and their directory if nobody else has a file in it."""
    for name in disk.list(directory):
        if is_ours(name):
            disk.remove(f"{directory}/{name}")
    if disk.exists(directory):
        disk.sync_dir(directory)
        if not disk.list(directory):
            disk.remove_dir(directory)
            disk.sync_dir(directory.rpartition("/")[0])
