"""Keyspace: `broadsheet keyspace`, which lets a key space that lost records go on. Its node must be stopped.

Both commands only show the loss, and act with `--yes`, like those of journals. They write their decision into
`keyspace/seal`, which the next start believes. Source: `docs/protocols/keyspace.md`; ADR 0124.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from broadsheet import __version__
from broadsheet.base.types import Revision
from broadsheet.cli.cluster import data_dirs
from broadsheet.cli.options import EXIT_DRY_RUN, AsJSON, Yes
from broadsheet.errors import ConfigError, InvalidArgument
from broadsheet.journal.core.spec import SPEC_PREFIX
from broadsheet.journal.keys import created_at
from broadsheet.journal.orphans import (
    OnDisk,
    adoption,
    of_their_journals,
    on_disk,
    orphans,
    remove_spools,
    without_deletions,
)
from broadsheet.keyspace.core.loss import AcceptedLoss
from broadsheet.keyspace.core.salvage import LostRevisions
from broadsheet.keyspace.core.transaction import KeyValue
from broadsheet.keyspace.local.loss_acceptance import StoppedState, floor, give_up, look
from broadsheet.ports import Disk
from broadsheet.runtime.data_dir import claim, node_of
from broadsheet.runtime.disk import LocalDisk

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The key space of a node that is stopped.")

CHUNK_BYTES: Final = 16 << 10
"""The size of a chunk of the snapshot in a seal. A record may be at least this long in any configuration."""
SHOWN_MAX: Final = 32

DataDir = Annotated[Path, typer.Option(help="The data directory of `up` or `serve`.")]


class KeyspaceLoss(msgspec.Struct, frozen=True):
    """The report of `accept-loss`."""

    reason: str
    sound: Revision
    """The revision up to which nothing is missing."""
    revision: Revision
    """The revision at which the map goes on."""
    keys: int
    journals: int
    behind: int
    """How many transactions after the gap are whole; they are applied."""
    lost: tuple[LostRevisions, ...]
    hints: tuple[str, ...]
    """Keys that damaged records seem to name."""
    orphans: tuple[OnDisk, ...]
    """Journals on the disk that no key names. They are kept."""
    adopted: tuple[str, ...]
    is_done: bool


class DroppedOrphans(msgspec.Struct, frozen=True):
    """The report of `drop-orphans`."""

    orphans: tuple[OnDisk, ...]
    is_done: bool


@app.command("accept-loss")
def accept_loss(
    *,
    data_dir: DataDir = Path(".broadsheet"),
    adopt: Annotated[
        list[str] | None, typer.Option(help="REVISION=NAME: make an orphan a journal again; may be repeated.")
    ] = None,
    yes: Yes = False,
    json: AsJSON = False,
) -> None:
    """Let the key space of a stopped node go on without the lost records. No file is deleted.

    Without --yes it shows what is lost, changes nothing, and exits with status 4.
    """
    with _stopped(data_dir) as disk:
        told = accept(disk, _wanted(adopt or []), may_act=yes)
    if json:
        print(msgspec.json.encode(told).decode())
    else:
        print("\n".join(_lines(told)))
    if not told.is_done:
        raise typer.Exit(EXIT_DRY_RUN)


@app.command("drop-orphans")
def drop_orphans(*, data_dir: DataDir = Path(".broadsheet"), yes: Yes = False, json: AsJSON = False) -> None:
    """Delete the files of journals that the key space of a stopped node does not name.

    Without --yes it shows them, changes nothing, and exits with status 4.
    """
    with _stopped(data_dir) as disk:
        told = drop(disk, may_act=yes)
    lines = [_line(each) for each in told.orphans[:SHOWN_MAX]]
    lines.append(
        f"{len(told.orphans)} orphans are dropped"
        if yes
        else f"{len(told.orphans)} orphans; nothing was changed: --yes drops them with their bytes"
    )
    print(msgspec.json.encode(told).decode() if json else "\n".join(lines))
    if not yes:
        raise typer.Exit(EXIT_DRY_RUN)


def accept(disk: Disk, wanted: dict[Revision, str], *, may_act: bool) -> KeyspaceLoss:
    """Report what the key space lost; with `may_act`, let it go on without the lost records.

    Args:
        wanted: names for orphans, by their revision.

    Raises:
        InvalidArgument: nothing is lost, a revision is not that of an orphan, or a name cannot be used.
        Corrupt, ConfigError: records are of a newer version.
    """
    standing, found = look(disk, created_at=created_at), on_disk(disk)
    reason, before = standing.reason, standing.accepted
    if found.newest > standing.found.revision:
        named = (
            f"the journals name revision {found.newest}, and what is left ends at {standing.found.revision}"
        )
        reason = f"{reason}; {named}" if reason else f"{named}: the rest was lost, or this is an older copy"
        standing = msgspec.structs.replace(standing, reason=reason)
    if reason:
        standing = _with(standing, without_deletions(standing.found.pairs))
    is_doubtful = before is not None or bool(reason)
    left = orphans(found.journals, standing.found.pairs) if is_doubtful else []
    if not reason and not wanted:
        raise InvalidArgument("the key space is whole: there is no loss to accept")
    revision = floor(standing, [found.newest])
    added = [_adopted(standing, left, orphan, name, at=revision) for orphan, name in wanted.items()]
    pairs = of_their_journals((*standing.found.pairs, *added))
    standing = _with(standing, pairs)
    if may_act:
        now = time.time_ns()
        sound = standing.found.sound if before is None else min(before.sound, standing.found.sound)
        lost_to = before.revision if before is not None and not reason else revision  # Nothing since.
        loss = AcceptedLoss(lost_to, sound, now)
        give_up(disk, standing, loss=loss, revision=revision, chunk_bytes=CHUNK_BYTES, now=now)
    return KeyspaceLoss(
        reason=reason or "the key space is whole, but for what was accepted before",
        sound=standing.found.sound,
        revision=revision,
        keys=len(pairs),
        journals=sum(pair.key.startswith(SPEC_PREFIX) for pair in pairs),
        behind=standing.found.behind,
        lost=standing.found.lost,
        hints=standing.found.hints,
        orphans=tuple(each for each in left if each.revision not in wanted),
        adopted=tuple(wanted.values()),
        is_done=may_act,
    )


def _with(standing: StoppedState, pairs: tuple[KeyValue, ...]) -> StoppedState:
    """The state of a stopped key space with other pairs of its map."""
    return msgspec.structs.replace(standing, found=msgspec.structs.replace(standing.found, pairs=pairs))


def _adopted(
    standing: StoppedState, left: list[OnDisk], orphan: Revision, name: str, *, at: Revision
) -> KeyValue:
    if all(each.revision != orphan for each in left):
        known = ", ".join(str(each.revision) for each in left[:SHOWN_MAX]) or "none"
        raise InvalidArgument(f"--adopt {orphan}={name}: the orphans are {known}")
    return adoption(name, orphan, at=at, pairs=standing.found.pairs)


def drop(disk: Disk, *, may_act: bool) -> DroppedOrphans:
    """Report the orphans; with `may_act`, delete them.

    Raises:
        InvalidArgument: the key space lost records, and the loss is not accepted yet.
    """
    standing, found = look(disk, created_at=created_at), on_disk(disk)
    if standing.reason or found.newest > standing.found.revision:
        raise InvalidArgument(
            "the key space is not whole: `broadsheet keyspace accept-loss` comes first, and may adopt orphans"
        )
    left = tuple(orphans(found.journals, standing.found.pairs)) if standing.accepted is not None else ()
    if may_act and standing.accepted is not None:
        # Remove the spools first: once the seal says that nothing is missing, no start looks for them.
        remove_spools(disk, left)
        revision = floor(standing, [found.newest])
        now = time.time_ns()
        give_up(disk, standing, loss=None, revision=revision, chunk_bytes=CHUNK_BYTES, now=now)
    return DroppedOrphans(left, is_done=may_act)


@contextmanager
def _stopped(root: Path) -> Iterator[Disk]:
    """The disk of the one node of `root`, locked so that the node cannot start meanwhile.

    Raises:
        ConfigError: the node runs, or `root` is not the data directory of exactly one node.
    """
    paths = data_dirs(root)
    if len(paths) != 1:
        held = f"holds the data of {len(paths)} nodes" if paths else "is no data directory"
        raise ConfigError(f"{root} {held}: name, as --data-dir, that of a node that stands alone")
    disk = LocalDisk(paths[0])
    try:
        owned = claim(disk, root=str(paths[0]), node=node_of(disk, str(paths[0])), version=__version__)
        try:
            yield disk
        finally:
            owned.release()
    finally:
        disk.close()


def _wanted(texts: list[str]) -> dict[Revision, str]:
    wanted: dict[Revision, str] = {}
    for text in texts:
        revision, separator, name = text.partition("=")
        if not separator or not revision.isdecimal():
            raise typer.BadParameter(f"--adopt {text!r} is not REVISION=NAME")
        if name in wanted.values() or Revision(int(revision)) in wanted:
            raise typer.BadParameter(f"--adopt {text!r}: each revision and each name once")
        wanted[Revision(int(revision))] = name
    return wanted


def _lines(told: KeyspaceLoss) -> list[str]:
    lines = [told.reason, f"sound: everything up to revision {told.sound}"]
    lines += [f"lost: the transactions of revisions [{e.begin}, {e.end}): {e.why}" for e in told.lost]
    if told.behind:
        lines.append(f"salvaged: {told.behind} whole transactions behind the gap")
    lines += [f"a damaged record seems to name {each}" for each in told.hints]
    lines.append(f"left: {told.keys} keys, {told.journals} journals")
    lines += [_line(each) for each in told.orphans[:SHOWN_MAX]]
    if len(told.orphans) > SHOWN_MAX:
        lines.append(f"and {len(told.orphans) - SHOWN_MAX} more orphans: --json names them all")
    if told.orphans:
        lines.append(
            "orphans are kept: --adopt REVISION=NAME makes one a journal again, with the default spec"
        )
    lines += [f"adopted: {each}, with the default spec: its own was lost" for each in told.adopted]
    lines.append(f"revisions go on at {told.revision}")
    lines.append("start the node" if told.is_done else "nothing was changed: --yes accepts this loss")
    return lines


def _line(orphan: OnDisk) -> str:
    log = "records in the log" if orphan.has_stream else "no records in the log"
    return f"orphan {orphan.revision}: a journal without a key; {orphan.spool_bytes} bytes in spools, {log}"
