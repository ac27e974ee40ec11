"""Bugs planted in the log (`tests/wal/planted.py`), with the crash states or scenario that catch them."""

from collections.abc import Callable
from typing import Any

from tests.mutants.registry import Mutant
from tests.wal.planted import PLANTED, look

TARGETS = {
    "lost_sync": "simulator.disk:SimFile.persist",
    "ack_before_sync": "broadsheet.wal.log:Log._persist",
    "payload_not_checked": "broadsheet.wal.recovery:frames",
    "released_early": "broadsheet.wal.batch:Batch.encode",
    "directory_not_synced": "simulator.disk:SimDisk.sync_dir",
    "stale_tail_kept": "broadsheet.wal.recovery:Recovery._look_behind",
    "rewrite_on_recovery_skipped": "broadsheet.wal.opening:_rewrite",
    "freed_before_told": "broadsheet.wal.log:Log._seal",
    "boot_frame_dropped": "broadsheet.wal.log:Log._start",
    "chain_removed": "broadsheet.wal.stream_replay:_walk",
    "copies_forgotten": "broadsheet.wal.log:Log.place_copy",
    "never_vouched": "broadsheet.wal.log:Log._vouch",
    "reserve_open": "broadsheet.wal.pool:Pool.may_append",
    "asked_once": "broadsheet.wal.reclaimer:SegmentReclaimer._request",
    "set_aside_skipped": "broadsheet.wal.copying:set_aside",
    "damage_pins": "broadsheet.wal.log:Log.lose",
    "shortness_ignored": "simulator.logimage:shorter",
    "extents_not_raised": "broadsheet.wal.extents:Extents.raise_to",
}
"""What each replaces. Five are caught by crash enumeration, the others by directed scenarios."""


class _Taken:
    """Takes what a plant would patch."""

    def __init__(self) -> None:
        self.value: Any = None

    def setattr(self, owner: object, name: str, value: object) -> None:
        """Remember it."""
        self.value = value


def _replacement(name: str) -> Callable[[Any], Any]:
    def replace(_: Any) -> Any:
        taken = _Taken()
        plant: Any = PLANTED[name][0]
        plant(taken)
        return taken.value

    return replace


def _hunt(catcher: str) -> Callable[[], str | None]:
    return lambda: look(catcher)


MUTANTS = [
    Mutant(
        f"wal_{name}",
        PLANTED[name][0].__doc__ or "",
        target,
        _replacement(name),
        hunt=_hunt(PLANTED[name][1]),
    )
    for name, target in TARGETS.items()
]
