"""Checkpoint: what the sink reads and writes in the directory of a query's checkpoint.

It reads the offsets that Spark logged for a batch. Before a query's first commit it writes a file that names
the commit journal. Without this file, a commit journal that was deleted and made again would look like one of
a query without commits, and the first batch would be written a second time. Spark looks only at its own
files.

A commit runs in a Python process, which has none of Spark's file systems. It reads and writes on this machine
by itself, and elsewhere by pyarrow, as START tries first. Source: pipelines.9, pipelines.11.
"""

import hashlib
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.message.position import Position, positions_to_text

COMMITS_FILE: Final = "broadsheet-commits"
"""The file that names the query's commit journal; elsewhere than on this machine its name goes on."""
_LOCAL: Final = re.compile(r"(?:file:(?://[^/]*)?)?(/.*|(?![A-Za-z][\w+.-]*:).*)", re.DOTALL)
"""A checkpoint's path on this machine. Spark gives `#`, `?` and `%` in it no meaning, so neither do we."""
_ELSEWHERE: Final = re.compile(r"([A-Za-z][\w+.-]*)://([^/]*)(/.*)", re.DOTALL)
_S3: Final = ("s3a", "s3n")
"""Hadoop's names of what pyarrow calls s3."""
_PROBE: Final = ".broadsheet-start"
"""The first part of the name of the file that START writes into a checkpoint elsewhere, and removes."""
_FAILED: Final = (OSError, ValueError, RuntimeError, pa.ArrowException)
"""What a file system raises, here or in pyarrow."""


class Commits(msgspec.Struct, frozen=True):
    """Which journal holds a query's commits."""

    journal: str
    create_revision: int


class Logged(NamedTuple):
    """What Spark logged of a batch before it began."""

    digest: str
    """SHA-256 of its offsets. A replay of the batch has the same, a batch of another history does not."""
    positions: str
    """Where the batch ends in each journal (`message.position`); empty if it also reads other sources."""


def logged(checkpoint: str, batch: int) -> Logged:
    """The offsets that Spark logged for a batch.

    Raises:
        ConfigError: the file with the offsets cannot be read.
    """
    try:
        content = _read(checkpoint, f"offsets/{batch}")
        return Logged(hashlib.sha256(content).hexdigest(), _positions_in(content))
    except _FAILED as error:
        raise ConfigError(
            f"cannot read the offsets of batch {batch} in checkpoint {checkpoint!r}: {_said(error)}. Give "
            "option checkpointLocation as a path that this process can read"
        ) from error


def refuse_unusable(checkpoint: str, remove_by_spark: Callable[[str], bool]) -> None:
    """Refuse, at START, a checkpoint in a file system that a commit could not read and write.

    A file is written from here, and Spark removes it: then both mean the same directory. Spark's session and
    the environment of Python, which have an address and rights each, may mean two stores by one name.

    Args:
        checkpoint: with its file system; without one it is a path of this machine.
        remove_by_spark: lets Spark remove a file, and says whether there was one.

    Raises:
        ConfigError: pyarrow cannot open that file system, or not with the rights that this process has, or
            Spark has another one.
    """
    if _LOCAL.fullmatch(checkpoint) is not None:
        return
    probe = f"{_PROBE}-{os.urandom(8).hex()}"
    try:
        _write_elsewhere(checkpoint, probe, probe.encode())
        is_same = _read(checkpoint, probe) == probe.encode() and remove_by_spark(f"{checkpoint}/{probe}")
        if not is_same:
            _remove_elsewhere(checkpoint, probe)
    except _FAILED as error:
        raise ConfigError(
            f"checkpointLocation {checkpoint!r} cannot be read and written from Python, where a commit "
            f"compares the checkpoint's offsets; pyarrow says: {_said(error)}. Give pyarrow what it needs in "
            "the driver's environment (hdfs: JAVA_HOME, HADOOP_HOME and CLASSPATH; s3a: AWS_…; abfss: "
            "AZURE_…), or name a directory that is mounted where the driver runs"
        ) from error
    if not is_same:
        raise ConfigError(
            f"checkpointLocation {checkpoint!r} is one place for Spark and another for Python: Spark does "
            "not find what Python wrote there. Let the driver's environment name the store that the session "
            "names (s3a: AWS_ENDPOINT_URL as spark.hadoop.fs.s3a.endpoint), or name a directory that is "
            "mounted where the driver runs"
        )


def _said(error: Exception) -> str:
    """What `error` says first. pyarrow lists each place where it looked for a library."""
    return next((line.strip(" .") for line in str(error).splitlines() if line.strip()), type(error).__name__)


class _Metadata(msgspec.Struct, frozen=True):
    """The file in which Spark keeps whose checkpoint it is."""

    id: str


def query_of(checkpoint: str) -> str:
    """The id of the query that a checkpoint belongs to; empty if Spark has not run one with it yet.

    Raises:
        ConfigError: the checkpoint cannot be read.
    """
    try:
        return msgspec.json.decode(_read(checkpoint, "metadata"), type=_Metadata).id
    except (FileNotFoundError, msgspec.DecodeError):
        return ""  # Of a damaged one Spark says so itself.
    except _FAILED as error:
        raise ConfigError(
            f"cannot read whose checkpoint {checkpoint!r} is: {_said(error)}. Give option "
            "checkpointLocation as a path that this process can read"
        ) from error


class _Offset(msgspec.Struct, frozen=True):
    """Where our source stands in one journal, as `offsets.encoded` has it."""

    offset: int
    create_revision: int
    begin: int = 0


def _positions_in(content: bytes) -> str:
    """The positions in a file of Spark's offset log: version, metadata, then a line for each source."""
    merged: dict[str, Position] = {}
    for line in content.split(b"\n")[2:]:
        try:
            found = msgspec.json.decode(line, type=dict[str, _Offset])
        except msgspec.DecodeError:
            return ""  # Another kind of source.
        for journal, each in found.items():
            position = Position(each.offset, each.create_revision, begin=each.begin)
            if merged.setdefault(journal, position) != position:
                return ""  # Two sources read it, and stand in two places.
    return positions_to_text(merged)


def keep_to(checkpoint: str, ours: Commits) -> None:
    """Note, before a query's first commit, which journal holds its commits.

    Raises:
        LocalProtocolError: another journal held them before, and may have had the first batch.
        ConfigError: the file cannot be read or written.
    """
    try:
        kept = _kept_here if _LOCAL.fullmatch(checkpoint) is not None else _kept_elsewhere
        theirs = kept(checkpoint, ours)
    except _FAILED as error:
        raise ConfigError(
            f"cannot read or write {COMMITS_FILE} in checkpoint {checkpoint!r}: {_said(error)}. Give "
            "option checkpointLocation as a directory in which this process can write"
        ) from error
    if theirs is None:
        raise ConfigError(
            f"{COMMITS_FILE} in checkpoint {checkpoint!r} was written and is not there: try again"
        )
    if theirs != ours:
        raise LocalProtocolError(
            f"the checkpoint belongs to commit journal {theirs.journal} (create revision "
            f"{theirs.create_revision}), not {ours.journal} ({ours.create_revision}): the former one may "
            "have had the first batch. Start with a new checkpoint and a new commit journal, with option "
            "startingOffsets if the output has rows already"
        )


def _kept_here(checkpoint: str, ours: Commits) -> Commits | None:
    """Which journal holds the commits of a checkpoint on this machine: ours, if none did."""
    theirs = _noted(checkpoint)
    if theirs is None:
        _write(checkpoint, msgspec.json.encode(ours))
        theirs = _noted(checkpoint)  # Another driver may have been first.
    return theirs


def _kept_elsewhere(checkpoint: str, ours: Commits) -> Commits | None:
    """The same of a checkpoint elsewhere, where pyarrow makes no file only if it is not there.

    Each driver leaves a note of its own, whose name tells the journal, and looks afterwards who else did. Of
    two at once the later one sees the other's note, and takes its own back; or both see one, and neither
    commits. A note is there from when it is whole.
    """
    content = msgspec.json.encode(ours)
    whose = f"{COMMITS_FILE}-{hashlib.sha256(content).hexdigest()[:16]}-"
    name = f"{whose}{os.urandom(8).hex()}"
    _write_elsewhere(checkpoint, name, content)
    notes = _notes(checkpoint)
    others = [each for each in notes if not each.startswith(whose)]
    if not others:
        return ours if name in notes else None
    _remove_elsewhere(checkpoint, name)
    try:
        return msgspec.json.decode(_read(checkpoint, others[0]), type=Commits)
    except (*_FAILED, msgspec.DecodeError):  # It was taken back, too.
        return None


def _noted(checkpoint: str) -> Commits | None:
    """The journal that the file names; None if there is none, or if a crash cut it off before a commit."""
    try:
        return msgspec.json.decode(_read(checkpoint, COMMITS_FILE), type=Commits)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _notes(checkpoint: str) -> list[str]:
    """The names of the notes in a checkpoint elsewhere, without those that a crash left empty."""
    from pyarrow.fs import FileSelector  # As in `_system_of`.

    system, path = _system_of(checkpoint)
    files = system.get_file_info(FileSelector(path))
    return [each.base_name for each in files if each.base_name.startswith(COMMITS_FILE) and each.size]


def _read(checkpoint: str, name: str) -> bytes:
    local = _LOCAL.fullmatch(checkpoint)
    if local is not None:
        return Path(local[1], name).read_bytes()
    system, path = _system_of(checkpoint)
    with system.open_input_stream(f"{path}/{name}") as stream:
        content: bytes = stream.readall()
        return content


def _write(checkpoint: str, content: bytes) -> None:
    """Write the checkpoint's note durably: a commit follows, and must not outlive it.

    A whole file that another driver wrote meanwhile stays.
    """
    local = _LOCAL.fullmatch(checkpoint)
    assert local is not None, "it is on this machine"
    draft = Path(local[1], f".{COMMITS_FILE}.{os.getpid()}.{threading.get_ident()}")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _place(draft, Path(local[1], COMMITS_FILE))
    directory = os.open(local[1], os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_elsewhere(checkpoint: str, name: str, content: bytes) -> None:
    """Write a file of a checkpoint that is not on this machine."""
    system, path = _system_of(checkpoint)
    with system.open_output_stream(f"{path}/{name}") as stream:
        stream.write(content)


def _remove_elsewhere(checkpoint: str, name: str) -> None:
    """Remove a file of a checkpoint that is not on this machine."""
    system, path = _system_of(checkpoint)
    system.delete_file(f"{path}/{name}")


def _place(draft: Path, file: Path) -> None:
    """Give the note `draft` the name `file` in a checkpoint, unless a whole file has that name already."""
    try:
        file.hardlink_to(draft)
    except FileExistsError:
        with suppress(msgspec.DecodeError):
            msgspec.json.decode(file.read_bytes(), type=Commits)
            draft.unlink()
            return
    except OSError:  # The file system has no links.
        pass
    else:
        draft.unlink()
        return
    draft.replace(file)


def _system_of(checkpoint: str) -> tuple[Any, str]:
    """The file system of a checkpoint elsewhere, and its path there, which is no URL to Spark, nor to us."""
    from pyarrow.fs import FileSystem  # Most checkpoints are local, and need none.

    found = _ELSEWHERE.fullmatch(checkpoint)
    if found is None:
        raise ValueError("it names no file system, as 'scheme://authority/path' does")
    scheme = "s3" if found[1] in _S3 else found[1]
    system, root = FileSystem.from_uri(f"{scheme}://{found[2]}/")
    return system, f"{root.rstrip('/')}{found[3]}"
