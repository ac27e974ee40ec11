"""Store settings: whether the fragment stores that a node's settings name can be used, tried at its start.

A store that the node never opened must answer, and take something: otherwise its name is wrong, or rights are
missing, and nobody would notice before the disk is full of fragments. A store that it has opened before may
be down: journals are served without it (journals.20, ADR 0140).

Journals that name no store have their fragments in the node's default one. Another default would show them as
trimmed, so that a start with one is refused until an operator says that the content was copied. Source:
node.12, ADR 0208.
"""

import asyncio

from broadsheet.errors import ConfigError
from broadsheet.journal.context import Context
from broadsheet.journal.core.spec import SPEC_PREFIX
from broadsheet.journal.keys import decode_info
from broadsheet.ports import NO_SPACE
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
                f"{setting} {_named(each.url)} cannot be used: {fault}. Mend"
                " that, or name another store: only one that the node has used before may be down at a start"
            )


def require_default(context: Context, notes: StoreNotes) -> None:
    """Refuse a start with another default store than before, if journals have their fragments in that one.

    The first start, and one that is accepted, keep the default for the next. Blocking, for a moment.

    Raises:
        ConfigError: nothing changed; the text names the settings.
        OSError: the new default could not be kept.
    """
    config, kept = context.config, notes.default()
    if kept is None:
        try:
            notes.keep_default(config.store)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise  # A node starts on a full disk: the next start keeps it.
        return
    if kept == config.store:
        return
    if not any(notes.are_one(kept, url) for url in (config.store, *config.stores_before)):
        pairs = context.keyspace.range(SPEC_PREFIX)
        if count := sum(not decode_info(pair).spec.fragment.store for pair in pairs):
            raise ConfigError(
                f"journals.store is {_named(config.store)}, and was {_named(kept)} when the node last ran:"
                f" {count} journals that name no store have their fragments there. Set it back; or copy the"
                f" content of that store into this one, and add {kept!r} to journals.stores_before"
            )
    notes.keep_default(config.store)


def _named(url: str) -> str:
    return repr(url) if url else "'' (`fragments/` in the data directory)"
