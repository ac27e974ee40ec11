"""Orphans: what the disk has of journals that the key space does not name.

A journal's stream and its spool directory are named by the revision that created it. Where the key space
lost records, one that it does not name may be a journal with acknowledged bytes: a start keeps it and writes
it down for `doctor`; an operator adopts it under a name, or drops it. Blocking. It does not decide what was
lost (`keyspace.local.accepting`). Source: journals.3; W7; ADR 0124.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from broadsheet.base.types import JournalName, LogStreamId, Revision
from broadsheet.errors import Corrupt, InvalidArgument
from broadsheet.journal.context import Context
from broadsheet.journal.core.records import Identity, decode
from broadsheet.journal.core.spec import JournalSpec, spec_key, validate_spec
from broadsheet.journal.keys import decode_info, encode_spec
from broadsheet.journal.opening import IDENTITY_STREAM, LOG_DIRECTORY, SPOOL_DIRECTORY
from broadsheet.keyspace.core.loss import LOSS_KEY, decode_loss
from broadsheet.keyspace.core.transaction import KeyValue
from broadsheet.keyspace.local.seal_file import REMEDY
from broadsheet.ports import Disk
from broadsheet.wal.inspection import inspected

SPEC_PREFIX: Final = spec_key(JournalName(""))
ORPHANS_NAME: Final = "journals/orphans"
"""The revisions of those that the last start kept, as JSON; absent where there are none."""


class Kept(NamedTuple):
    """What a start left as it is, because the key space may have lost the key of it."""

    streams: Sequence[int]
    """Of the log, that no key names."""
    named: Sequence[int]
    """Revisions of the journals that keys name."""
    kept_to: int
    """Up to this revision the key space may have lost keys; 0 where it is whole."""


class OnDisk(msgspec.Struct, frozen=True):
    """What is there of one journal."""

    revision: Revision
    """That created it."""
    has_stream: bool
    """Whether the log has records of it, or a place for them."""
    spool_bytes: int
    """Of its spool files, those that were moved aside included."""


class Found(msgspec.Struct, frozen=True):
    """What is there of all journals."""

    journals: tuple[OnDisk, ...]
    """By revision."""
    newest: Revision
    """The greatest revision that any of it names: of a creation, or an epoch."""


def on_disk(disk: Disk) -> Found:
    """Look at the log and the spools of a node that is stopped; changes nothing.

    Raises:
        ConfigError: the log is foreign, or newer.
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
            found.append((int(name, 16), f"{SPOOL_DIRECTORY}/{name}"))
    return found


def orphans(found: Sequence[OnDisk], pairs: Iterable[KeyValue]) -> list[OnDisk]:
    """Those that no spec key of `pairs` names."""
    named = dict.fromkeys(pair.create_revision for pair in pairs if pair.key.startswith(SPEC_PREFIX))
    return [each for each in found if each.revision not in named]


def refuse_older_keyspace(context: Context) -> None:
    """Refuse a key space that cannot name what the log of the journals has.

    Raises:
        Corrupt: the log holds a journal that is younger than the key space. Nothing was changed.
    """
    youngest = max(context.log.streams(), default=LogStreamId(0))  # Named by revisions: `stream_of`.
    if youngest > context.keyspace.revision:
        raise Corrupt(
            f"the log of the journals holds one that was created at revision {youngest}, but the key space"
            f" ends at {context.keyspace.revision}: it was lost, or is an older copy; restore keyspace/ as"
            f" it was with journals/, or {REMEDY}"
        )


def drop_orphans(context: Context, named: Sequence[int]) -> Kept:
    """Drop the streams that no key names, but not where the key space may have lost the key."""
    loss = decode_loss(context.keyspace.get(LOSS_KEY))
    kept_to = loss.revision if loss is not None else 0
    known = dict.fromkeys(named)
    orphans = [stream for stream in context.log.streams() if stream not in known]
    for stream in orphans:
        if stream > kept_to:
            context.log.drop(stream)  # A deletion ended before the log knew of it.
    return Kept([stream for stream in orphans if stream <= kept_to], named, kept_to)


def write_down(disk: Disk, left: Kept) -> None:
    """Tell `doctor` of what a start keeps though no key names it. Blocking."""
    known = dict.fromkeys(left.named)
    kept = dict.fromkeys(left.streams)
    if left.kept_to:
        kept |= {r: None for r, _ in spool_directories(disk) if r not in known and r <= left.kept_to}
    if kept:
        file = disk.open(ORPHANS_NAME, create=True)
        try:
            file.truncate(0)
            file.write_at(0, (msgspec.json.encode(sorted(kept)),))
        finally:
            file.close()
    elif disk.exists(ORPHANS_NAME):
        disk.remove(ORPHANS_NAME)


def is_creation(key: str, value: bytes) -> bool:
    """Whether a put of a spec key made the journal: its only other put marks it for deletion."""
    if not key.startswith(SPEC_PREFIX):
        return False
    try:
        info = decode_info(KeyValue(key, value, Revision(1), Revision(1)))
    except Corrupt:
        return False
    return not info.spec.is_deleting


def adoption(name: str, revision: Revision, *, at: Revision, pairs: Iterable[KeyValue]) -> KeyValue:
    """The spec key that makes an orphan the journal `name`, with the default spec.

    Args:
        at: the revision at which the key is put.

    Raises:
        InvalidArgument: the name is not one, or there is a journal of it.
    """
    spec = validate_spec(JournalSpec(name=JournalName(name)))
    key = spec_key(spec.name)
    if any(pair.key == key for pair in pairs):
        raise InvalidArgument(f"journal {name} exists: adopt {revision} under another name")
    return KeyValue(key, encode_spec(spec), revision, at)


def remove_spools(disk: Disk, doomed: Sequence[OnDisk]) -> None:
    """Remove the spool directories of orphans that an operator gave up. May be repeated."""
    revisions = dict.fromkeys(each.revision for each in doomed)
    for revision, directory in spool_directories(disk):
        if revision in revisions:
            for name in disk.list(directory):
                disk.remove(f"{directory}/{name}")
            disk.sync_dir(directory)
            disk.remove_dir(directory)
    if doomed:
        disk.sync_dir(SPOOL_DIRECTORY)


def _bytes_in(disk: Disk, directory: str) -> int:
    total = 0
    for name in disk.list(directory):
        file = disk.open(f"{directory}/{name}")
        try:
            total += file.size()
        finally:
            file.close()
    return total
