"""Loss acceptance: an operator inspects what a stopped key space lost, and lets it go on without that.

`look` reads the seal and the log and changes nothing. `give_up` writes a seal with the map that is left; the
next start loads the seal and begins the log anew. A report and a copy of a damaged seal stay beside it. The
map goes on `REVISION_LEAP` above every revision that is named anywhere, so that a revision of which no trace
is left is not used twice. This module does not interpret keys: its caller passes the revisions that journals
name. Source: control.16; W6, W7; ADR 0124.
"""

from collections.abc import Sequence

import msgspec

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Generation, Offset, Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.loss import LOSS_KEY, AcceptedLoss, decode_loss, loss_pair
from broadsheet.keyspace.core.record import snapshot
from broadsheet.keyspace.core.salvage import CreatedAt, LostRevisions, Read, Salvage, salvage
from broadsheet.keyspace.local.keyspace import STREAM
from broadsheet.keyspace.local.role import LOG_DIRECTORY
from broadsheet.keyspace.local.seal_file import (
    REVISION_LEAP,
    SEAL_NAME,
    Seal,
    read_seal,
    write_aside,
    write_seal,
)
from broadsheet.ports import Disk
from broadsheet.wal.format import RowFlag
from broadsheet.wal.inspection import inspected
from broadsheet.wal.segments import read_around


class StoppedState(msgspec.Struct, frozen=True):
    """The state of a stopped key space."""

    reason: str
    """Why the key space does not start; empty if it does."""
    found: Salvage
    generation: Generation
    """The generation of the log's stream."""

    @property
    def accepted(self) -> AcceptedLoss | None:
        """The loss that was accepted before."""
        return decode_loss(next((pair for pair in self.found.pairs if pair.key == LOSS_KEY), None))


class Report(msgspec.Struct, frozen=True):
    """The report of an accepted loss of the key space: a file beside the seal, for an operator to read."""

    accepted: int
    reason: str
    sound: Revision
    revision: Revision
    lost: tuple[LostRevisions, ...]
    hints: tuple[str, ...]


def look(disk: Disk, *, created_at: CreatedAt) -> StoppedState:
    """Inspect a key space's seal and log; changes nothing. Blocking. The caller holds the directory's lock.

    Raises:
        Corrupt: the log holds records of a newer version.
        ConfigError: the log belongs to another node, or is of a newer version.
    """
    reason, seal = "", None
    try:
        seal = read_seal(disk)
    except Corrupt as error:
        reason = str(error)
    with inspected(disk, LOG_DIRECTORY) as log:
        generation = log.generation(STREAM)
        if seal is not None:
            reads = [Read(Offset(at), chunk, is_whole=True) for at, chunk in enumerate(seal.chunks)]
            sealed = salvage(reads, first=Offset(1), next_offset=Offset(len(reads)), created_at=created_at)
            return StoppedState("", sealed, Generation(max(generation, seal.generation)))
        verdict, lacks_streams = log.verdict(STREAM), log.lacks_streams
        is_quarantined = verdict is not None and bool(verdict.flags & RowFlag.QUARANTINED)
        next_offset = Offset(verdict.point.next if verdict is not None else 0)
        found = salvage(
            [
                Read(each.offset, each.payload, each.is_whole)
                for each in log.records(STREAM)
                if is_quarantined or each.offset < next_offset  # A start leaves out what is behind a cut.
            ],
            first=Offset(verdict.first if verdict is not None else 0),
            next_offset=next_offset,
            created_at=created_at,
        )
    if found.lost and not reason:
        spans = ", ".join(f"[{each.begin}, {each.end})" for each in found.lost)
        reason = f"{LOG_DIRECTORY} lost durable records: of the revisions {spans} nothing is left"
    elif is_quarantined and not reason:
        reason = (
            f"{LOG_DIRECTORY} lost durable records behind revision {found.revision}: what they changed is not"
            " known"
        )
    elif verdict is None and lacks_streams and not reason:
        reason = f"{LOG_DIRECTORY} lost all that it held of the key space: a segment file is gone, or shorter"
    return StoppedState(reason, found, generation)


def floor(standing: StoppedState, revisions: Sequence[int]) -> Revision:
    """The revision at which the map goes on: `REVISION_LEAP` above every known one.

    Args:
        revisions: every revision that other roles' files name.
    """
    return Revision(max([standing.found.revision, *revisions]) + REVISION_LEAP)


def give_up(
    disk: Disk,
    standing: StoppedState,
    *,
    loss: AcceptedLoss | None,
    revision: Revision,
    chunk_bytes: int,
    now: int,
) -> None:
    """Write the seal that the next start of the key space loads. Blocking; repeatable.

    Args:
        loss: the accepted loss to record in the map; None if nothing is missing any more.
        revision: the revision at which the map goes on.
    """
    pairs = {pair.key: pair for pair in standing.found.pairs if pair.key != LOSS_KEY}
    if loss is not None:
        pairs[LOSS_KEY] = loss_pair(loss)
    if standing.reason:
        found = standing.found
        report = Report(now, standing.reason, found.sound, revision, found.lost, found.hints)
        write_aside(disk, f"accepted-{revision:016x}", msgspec.json.encode(report))
    _keep_damaged_seal(disk)
    chunks = snapshot(revision, pairs.values(), chunk_bytes=chunk_bytes)
    write_seal(disk, Seal(standing.generation, [*chunks]))


def _keep_damaged_seal(disk: Disk) -> None:
    """Copy a key space's damaged seal before a new one replaces it: no bytes are deleted unread."""
    try:
        read_seal(disk)
    except Corrupt:
        file = disk.open(SEAL_NAME)
        try:
            content = read_around(file, 0, file.size())
        finally:
            file.close()
        write_aside(disk, f"seal-{crc32c(content):08x}", content)
