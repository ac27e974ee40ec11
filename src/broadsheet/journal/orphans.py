"""Orphans: streams and spool directories of journals that the key space does not name.

A journal's stream and its spool directory are named by the revision that created it. After the key space lost
records, an orphan may be a journal with acknowledged bytes: a start keeps it and lists it in a file for
`doctor`; an operator adopts it under a name, or drops it. Blocking. This module does not decide what was lost
(`keyspace.local.loss_acceptance`). Source: journals.3; W7; ADR 0124.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Final, NamedTuple

import msgspec

from broadsheet.base.types import JournalName, LogStreamId, Revision
from broadsheet.errors import Corrupt, InvalidArgument, StoreUnhealthy
from broadsheet.journal.context import Context
from broadsheet.journal.core.records import Identity, decode
from broadsheet.journal.core.spec import (
    SPEC_PREFIX,
    JournalSpec,
    epoch_key,
    registers_key,
    spec_key,
    validate_spec,
)
from broadsheet.journal.deletion import remove_all
from broadsheet.journal.keys import decode_info, encode_spec
from broadsheet.journal.opening import IDENTITY_STREAM, LOG_DIRECTORY, SPOOL_DIRECTORY
from broadsheet.journal.set_aside import is_ours
from broadsheet.keyspace.core.loss import LOSS_KEY, decode_loss
from broadsheet.keyspace.core.transaction import KeyValue
from broadsheet.keyspace.local.seal_file import REMEDY
from broadsheet.ports import NO_SPACE, Disk
from broadsheet.wal.inspection import inspected

ORPHANS_NAME: Final = "journals/orphans"
"""The revisions of the orphans that the last start kept, as JSON; absent if there were none."""


class Kept(NamedTuple):
    """The orphaned journals that a start kept, because the key space may have lost their keys."""

    streams: Sequence[int]
    """Streams of the log that no key names."""
    named: Sequence[int]
    """Revisions of the journals that keys name."""
    kept_to: int
    """Up to this revision the key space may have lost keys; 0 if it is whole."""


class OnDisk(msgspec.Struct, frozen=True):
    """The log stream and the spool files of one journal."""

    revision: Revision
    """The revision that created the journal."""
    has_stream: bool
    """Whether the log knows the stream, with or without records."""
    spool_bytes: int
    """Bytes of its spool files, including those that were moved aside."""


class Found(msgspec.Struct, frozen=True):
    """The streams and spool files of all journals."""

    journals: tuple[OnDisk, ...]
    """By revision."""
    newest: Revision
    """The greatest revision that a stream, an epoch or a directory names."""


def on_disk(disk: Disk) -> Found:
    """Inspect the log and the spool directories of a stopped node; changes nothing.

    Raises:
        ConfigError: the log belongs to another node, or is of a newer version.
    """
    newest = 0
    with inspected(disk, LOG_DIRECTORY) as log:
        streams = [stream for stream in log.streams() if stream != IDENTITY_STREAM]
        for stream in streams:
            newest = max(newest, stream)
            last = log.last(stream)
            if last is not None:
                with suppress(Corrupt):
                    record = decode(last.payload)
                    newest = max(newest, 0 if isinstance(record, Identity) else record.epoch)
    spools = {revision: _bytes_in(disk, directory) for revision, directory in spool_directories(disk)}
    revisions = sorted({**dict.fromkeys(map(int, streams)), **dict.fromkeys(spools)})
    return Found(
        tuple(OnDisk(Revision(r), LogStreamId(r) in streams, spools.get(r, 0)) for r in revisions),
        Revision(max([newest, *spools])),
    )


def spool_directories(disk: Disk) -> list[tuple[int, str]]:
    """The revision and the path of each journal's spool directory."""
    found: list[tuple[int, str]] = []
    for name in disk.list(SPOOL_DIRECTORY):
        with suppress(ValueError):
            if name == f"{(revision := int(name, 16)):016x}":  # Others are not ours.
                found.append((revision, f"{SPOOL_DIRECTORY}/{name}"))
    return found


def orphans(found: Sequence[OnDisk], pairs: Iterable[KeyValue]) -> list[OnDisk]:
    """The journals in `found` that no spec key of `pairs` names."""
    named = dict.fromkeys(pair.create_revision for pair in pairs if pair.key.startswith(SPEC_PREFIX))
    return [each for each in found if each.revision not in named]


def refuse_older_keyspace(context: Context, directories: Iterable[tuple[int, str]]) -> None:
    """Refuse a key space that is older than a journal on the disk, and so cannot name it.

    Args:
        directories: the spool directories. They tell of a journal even if both logs are lost.

    Raises:
        Corrupt: there is a journal that is younger than the key space. Nothing was changed.
    """
    revisions = [*context.log.streams(), *(revision for revision, _ in directories)]
    youngest = max(revisions, default=0)  # Streams and directories are named by create revisions.
    if youngest > context.keyspace.revision:
        raise Corrupt(
            f"the journals have one that was created at revision {youngest}, but the key space"
            f" ends at {context.keyspace.revision}: it was lost, or is an older copy; restore keyspace/ as"
            f" it was with journals/, or {REMEDY}"
        )


def drop_orphans(context: Context, named: Sequence[int]) -> Kept:
    """Drop the journals' streams that no key names, except if the key space may have lost the key."""
    loss = decode_loss(context.keyspace.get(LOSS_KEY))
    kept_to = loss.revision if loss is not None else 0
    known = dict.fromkeys(named)
    orphans = [stream for stream in context.log.streams() if stream not in known]
    with suppress(StoreUnhealthy):  # No room to say so: the next start drops the others.
        for stream in orphans:
            if stream > kept_to:
                context.log.drop(stream)  # Its deletion ended, but the log's drop was not durable.
    return Kept([stream for stream in orphans if stream <= kept_to], named, kept_to)


def write_down(disk: Disk, left: Kept) -> None:
    """Write the kept orphans among the journals to the file that `doctor` reads. Blocking.

    A start needs neither the room nor the former file: on a full disk that one stays, and a bad sector of it
    goes with it.
    """
    known = dict.fromkeys(left.named)
    kept = dict.fromkeys(left.streams)
    if left.kept_to:
        kept |= {r: None for r, _ in spool_directories(disk) if r not in known and r <= left.kept_to}
    if kept:
        try:
            with closing(disk.open(f"{ORPHANS_NAME}.new", create=True)) as file:
                file.truncate(0)
                file.write_at(0, (msgspec.json.encode(sorted(kept)),))
            disk.rename(f"{ORPHANS_NAME}.new", ORPHANS_NAME)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
    elif disk.exists(ORPHANS_NAME):
        disk.remove(ORPHANS_NAME)


def adoption(name: str, revision: Revision, *, at: Revision, pairs: Iterable[KeyValue]) -> KeyValue:
    """The spec key that makes an orphan the journal `name`, with the default spec.

    Args:
        at: the revision at which the key is put.

    Raises:
        InvalidArgument: the name is not legal, or a journal of that name exists.
    """
    spec = validate_spec(JournalSpec(name=JournalName(name)))
    key = spec_key(spec.name)
    if any(pair.key == key for pair in pairs):
        raise InvalidArgument(f"journal {name} exists: adopt {revision} under another name")
    return KeyValue(key, encode_spec(spec), revision, at)


def without_deletions(pairs: Iterable[KeyValue]) -> tuple[KeyValue, ...]:
    """The pairs, without the spec keys of journals that are marked as deleted.

    If the key space lost records, that deletion may have ended, and another journal of the name may have been
    made since. Whoever finished the deletion would remove what that one has in the store.
    """
    return tuple(pair for pair in pairs if not _is_marked(pair))


def of_their_journals(pairs: Sequence[KeyValue]) -> tuple[KeyValue, ...]:
    """The pairs, without epoch and registers keys that are older than the journal of their name.

    They are of an earlier journal of the name, whose deletion was lost: its registers are not the other's.
    """
    created = {
        key_of(JournalName(pair.key.removeprefix(SPEC_PREFIX))): pair.create_revision
        for pair in pairs
        if pair.key.startswith(SPEC_PREFIX)
        for key_of in (epoch_key, registers_key)
    }
    return tuple(pair for pair in pairs if pair.mod_revision >= created.get(pair.key, 0))


def _is_marked(pair: KeyValue) -> bool:
    if not pair.key.startswith(SPEC_PREFIX):
        return False
    try:
        return decode_info(pair).spec.is_deleting
    except Corrupt:
        return False


def remove_spools(disk: Disk, doomed: Sequence[OnDisk]) -> None:
    """Remove the spool directories of orphans that an operator dropped. Repeatable."""
    revisions = dict.fromkeys(each.revision for each in doomed)
    for revision, directory in spool_directories(disk):
        if revision in revisions:
            remove_all(disk, directory)
    if doomed:
        disk.sync_dir(SPOOL_DIRECTORY)


def _bytes_in(disk: Disk, directory: str) -> int:
    total = 0
    for name in filter(is_ours, disk.list(directory)):
        file = disk.open(f"{directory}/{name}")
        try:
            total += file.size()
        finally:
            file.close()
    return total
