"""Lifecycle's operator: what somebody does whose node does not start, because its key space lost records.

What he is told as lost is noted before he acts: makes, alterations and deletions of these revisions may be
undone, and no others. Of each name he adopts the orphan that was made last, and no deleted one.
Source: control.16; ADR 0124; `docs/operations/damage.md`.
"""

from collections.abc import Callable
from random import Random

from broadsheet.base.types import Revision
from broadsheet.cli.keyspace import accept, drop
from broadsheet.errors import InvalidArgument
from broadsheet.journal.keys import created_at
from broadsheet.keyspace.local.loss_acceptance import look
from simulator.disk import SimDisk
from simulator.lifemodel import ENDLESS, Account


def accept_keyspace(account: Account, disk: SimDisk, random: Random, note: Callable[[object], None]) -> None:
    """`keyspace accept-loss`, and perhaps `drop-orphans`, of a node that does not start."""
    reached = look(disk, created_at=created_at).found.revision
    told = accept(disk, {}, may_act=False)
    spans = [(int(each.begin), int(each.end)) for each in told.lost]
    note(("map lost", (*spans, (reached + 1, ENDLESS))))
    wanted: dict[Revision, str] = {}
    by_revision = {it.revision: it for it in account.incarnations.values() if it.revision}
    for orphan in reversed(told.orphans):  # Of one name the last that was made is the one to adopt.
        it = by_revision.get(orphan.revision)
        if it is None or it.is_gone:
            continue
        if it.is_doomed or it.name in wanted.values():
            note(("never", it.number))
        elif random.random() < 0.8 and _is_free(disk, orphan.revision, it.name):
            wanted[orphan.revision] = it.name
            note(("adopted", it.number, told.revision))
        else:
            note(("orphan", it.number))
    accept(disk, wanted, may_act=True)
    if random.random() < 0.3:
        note(("map kept",))
        for it in account.incarnations.values():
            if it.is_orphan:
                note(("never", it.number))
        drop(disk, may_act=True)


def _is_free(disk: SimDisk, orphan: Revision, name: str) -> bool:
    try:
        accept(disk, {orphan: name}, may_act=False)
    except InvalidArgument:
        return False
    return True
