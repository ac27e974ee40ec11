"""Store settings: whether the fragment stores that a node's settings name can be used, tried at its start.

A store that the node never opened must answer, and take something: otherwise its name is wrong, or rights are
missing, and nobody would notice before the disk is full of fragments. A store that it has opened before may
be down: journals are served without it (journals.20, ADR 0140). Source: node.12.
"""

import asyncio

from broadsheet.errors import ConfigError
from broadsheet.journal.context import Context
from broadsheet.runtime.role import StoreNotes


async def require_stores(context: Context, notes: StoreNotes) -> None:
    """Refuse a start with a store that cannot be used, and that this node has not opened before.

    All such stores are tried at once, for `journals.listing_wait`.

    Raises:
        ConfigError: a store is of a kind that this node cannot reach, or failed, or did not answer in time.
            Nothing but empty directories was made.
    """
    config = context.config
    urls = dict.fromkeys((config.store, *(url or config.store for url in config.stores)))
    stores = [context.health(url) for url in urls]  # Of a wrong kind: its journals would never be opened.
    tried = [each for each in stores if not notes.is_known(each.url)]
    if not tried:
        return
    faults = await asyncio.gather(*(each.trial(config.listing_wait) for each in tried))
    for each, fault in zip(tried, faults, strict=True):
        if fault:
            setting = "journals.store" if each.url == config.store else "journals.stores"
            raise ConfigError(
                f"{setting} {each.url or 'fragments/ in the data directory'!r} cannot be used: {fault}. Mend"
                " that, or name another store: only one that the node has used before may be down at a start"
            )
