"""Readiness: what keeps the journals of a node from serving, and what an operator should look at meanwhile.

What stops all journals, or all reads of what only a store has, makes the role not ready. A few journals that
are stopped are a warning: the others serve, and a balancer that sent everybody away would stop them, too.
Source: node.12, ADR 0203.
"""

import asyncio
from collections.abc import Iterator

from broadsheet.journal.broker import Broker
from broadsheet.journal.context import Context
from broadsheet.journal.store_health import WatchedStore
from broadsheet.runtime.readiness import Trouble


def troubles(context: Context, broker: Broker) -> list[Trouble]:
    """What is wrong now. It looks at counts and at stores, never at all journals."""
    found = [*_room(context, broker), *_stores(context)]
    counts = broker.troubles
    if counts.untried_count:
        text = f"{counts.untried_count} of {broker.count} journals are still being opened: wait"
        found.append(Trouble("opening", text))
    for count, cause, text in (
        (counts.unopened_count, "journals_not_open", "cannot be opened, and are tried again"),
        (counts.stopped_count, "journals_stopped", "refuse appends or have damaged content"),
        (counts.unstored_count, "journals_unstored", "have a store that takes no fragments or is silent"),
    ):
        if count:
            why = "`broadsheet doctor` and `broadsheet journals status` say why"
            found.append(Trouble(cause, f"{count} of {broker.count} journals {text}: {why}", is_warning=True))
    return found


async def probe_stores(context: Context) -> None:
    """Have every store of the settings asked for nothing; each notes its answer."""
    await asyncio.gather(*(each.probe() for each in context.watched))


def _room(context: Context, broker: Broker) -> Iterator[Trouble]:
    if broker.is_full:
        yield Trouble("disk_full", f"appends are refused: {broker.fullness}")
    elif broker.troubles.lacks_room(context.time.now()):
        yield Trouble("disk_full", "appends found no space on the disk: free some, and they go on again")
    if shortage := context.log.shortage:
        yield Trouble("log_full", f"appends are refused: {shortage}")


def _stores(context: Context) -> Iterator[Trouble]:
    """One trouble for all stores that are down, one for all that take nothing, one for damage in any."""
    count = len(context.watched)
    down = [each for each in context.watched if each.silence]
    if down:
        what = f"{_named(down, count)} cannot be read: {down[0].silence}"
        text = f"{what}. Appends and what is still on this disk are served: mend the store, it is asked again"
        yield Trouble("store_down", text, detail=down[0].detail)
    refusing = [each for each in context.watched if each.refusal and not each.silence]
    if refusing:
        what = f"{_named(refusing, count)} takes no fragments: {refusing[0].refusal}"
        text = f"{what}. They stay on this disk until it is full: make room in the store, it is tried again"
        yield Trouble("store_refuses", text, is_warning=True, detail=refusing[0].detail)
    if damaged := context.damaged:
        text = (
            f"{len(damaged)} stored fragments are damaged or gone, and reads of them are refused: `broadsheet"
            " journals verify` names them; restore them from a copy of the store (docs/operations/damage.md)"
        )
        yield Trouble("fragments_damaged", text, is_warning=True, detail=next(iter(damaged.values())))


def _named(stores: list[WatchedStore], count: int) -> str:
    return "the fragment store" if count == 1 else f"{len(stores)} of {count} fragment stores"
