"""Coverage: which marks, labels and transitions a campaign reached, and which it never did.

The source tells which exist: `hit("MARK")`, `passed("LABEL")`, and the declared events and effects. A
workload's `scope` names the folders that it tests. `make sim` fails if no workload hit a mark of its scope.
The reader of the list must find out why.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

import broadsheet

ROOT: Final = Path(broadsheet.__file__).parent
_DAMAGE: Final = "one disk and damage: in no budget of a node alone; tests/wal, tests/journal, tests/keyspace"
_FULL: Final = "the disk is full in a segment that is not filled yet, or while relief copies: tests/wal"
ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "keyspace.leapt_over_a_cut": _DAMAGE,
        "journal.healing": _DAMAGE,
        "journal.identity_repaired": _DAMAGE,
        "journal.repaired_from_spool": _DAMAGE,
        "journal.spool_mended": _DAMAGE,
        "journal.set_aside": _DAMAGE,
        "wal.block_unreadable": _DAMAGE,
        "wal.copy_found_damage": _DAMAGE,
        "wal.quarantined": _DAMAGE,
        "wal.recovery.lap_left_over": _DAMAGE,
        "wal.segment_unread": _DAMAGE,
        "wal.recovery.batch_left": _DAMAGE,
        "wal.recovery.batch_lost": _DAMAGE,
        "wal.recovery.frame_damaged": _DAMAGE,
        "wal.recovery.gap": _DAMAGE,
        "wal.recovery.hole": _DAMAGE,
        "wal.recovery.tail_cut_behind": _DAMAGE,
        "wal.set_aside_refused": _DAMAGE,
        "journal.descriptor_awaited": "no simulated process runs out of descriptors: tests/journal",
        "journal.descriptor_awaited_by_read": "the same",
        "wal.copy_refused": _FULL,
        "wal.no_room_for_marker": _FULL,
        "wal.write_refused": _FULL,
    }
)
"""Marks that no workload's budget lets happen, or not often enough, with where they are hit instead."""
_MARK: Final = re.compile(r"\bhit\(\s*\"([^\"]+)\"")
_LABEL: Final = re.compile(r"\b(?:passed|Pass)\(\s*\"([^\"]+)\"")
_EVENT: Final = re.compile(r"^class (\w+)\([\w, ]*Event\b", re.MULTILINE)
_EFFECT: Final = re.compile(r"^class (\w+)\([\w, ]*Effect\b", re.MULTILINE)


class Places(msgspec.Struct, frozen=True):
    """What the source of some folders has, each sorted."""

    marks: tuple[str, ...]
    labels: tuple[str, ...]
    events: tuple[str, ...]
    effects: tuple[str, ...]


@lru_cache(maxsize=64)
def places(scope: tuple[str, ...]) -> Places:
    """What the folders of `scope` have; each is a path below the package, such as `journal/core`."""
    paths = sorted({path for folder in scope for path in (ROOT / folder).rglob("*.py")})
    texts = [path.read_text(encoding="utf-8") for path in paths]

    def found(pattern: re.Pattern[str]) -> tuple[str, ...]:
        return tuple(sorted({name for text in texts for name in pattern.findall(text)}))

    return Places(found(_MARK), found(_LABEL), found(_EVENT), found(_EFFECT))


class Coverage(msgspec.Struct):
    """What was passed, and how often."""

    marks: dict[str, int] = {}
    labels: dict[str, int] = {}
    transitions: dict[str, int] = {}
    """By `machine: event -> state`."""

    def merge(self, other: "Coverage") -> None:
        """Add what another run, or another process, came by."""
        for field in self.__struct_fields__:
            mine: dict[str, int] = getattr(self, field)
            for name, count in getattr(other, field).items():
                mine[name] = mine.get(name, 0) + count

    def add_steps(self, steps: dict[tuple[str, str, object], int]) -> None:
        """Fold what a trace counted: hosts of one kind, on whatever node and boot, are one machine."""
        for (host, event, state), count in steps.items():
            shown = "" if state is None else f" -> {getattr(state, 'name', state)}"
            name = f"{_kind(host)}: {event}{shown}"
            self.transitions[name] = self.transitions.get(name, 0) + count

    def never(self, marks: Iterable[str]) -> list[str]:
        """Those of `marks` that were never hit, but for those that are hit elsewhere."""
        return [mark for mark in marks if mark not in self.marks and mark not in ELSEWHERE]


def _kind(host: str) -> str:
    """`n1#2.pipeline` and `journal sim/j0` are a pipeline and a journal."""
    return host.rpartition("#")[2].partition(".")[2] if "#" in host else host.partition(" ")[0]
