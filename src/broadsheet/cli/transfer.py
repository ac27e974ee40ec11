"""Transfer: the content of a journal into the files of a directory, and from files into a journal.

An export is a directory of parts, each named by its span of the journal and the SHA-1 of its content, as a
fragment is, beside `journal.json`, which tells whose they are. A part is written whole or not at all, so an
export that was broken off, or that is made again later, goes on behind the last one. An import appends at
explicit offsets, so it goes on where the journal ends, after the sums of what both have were compared. At its
end the sums of all are. Units: bytes, byte offsets.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from broadsheet.base.types import ByteOffset
from broadsheet.client import Client
from broadsheet.errors import ConfigError, Corrupt, InvalidArgument, WrongAppendOffset
from broadsheet.journal.core.fragment import Codec, Fragment, parse_name
from broadsheet.journal.core.spec import framing_of
from broadsheet.journal.messages import Chunk, JournalInfo
from broadsheet.message.columns import frames_of
from broadsheet.message.framing import FRAME_BYTES_MAX, Framing
from broadsheet.runtime.data_dir import sync_directory

MANIFEST: Final = "journal.json"
PARTIAL: Final = ".partial"
PART_BYTES: Final = 64 << 20
"""A part is closed when it is longer."""
PIECE_BYTES: Final = 4 << 20
"""How much one append of an import has, if frames or lines let it be cut."""
PATIENCE_SECONDS: Final = 120.0
"""For so long a node may be away, or refuse. Said again, the command goes on."""
Advance = Callable[[int], None]
"""Is called with the number of bytes that were read, or appended."""


class Exported(msgspec.Struct, frozen=True):
    """The file `journal.json` of an export."""

    journal: JournalInfo
    """As it was when the export began."""


class Part(NamedTuple):
    """A file of an export, or any other file that is imported."""

    path: Path
    begin: int
    end: int
    sum: bytes
    """SHA-1 of its content; empty if its name does not tell."""


def parts_of(directory: Path) -> list[Part]:
    """The parts of an export, by offset.

    Raises:
        ConfigError: they are not of one export: one is missing, two overlap, or one has another length.
    """
    found = []
    for path in directory.iterdir():
        fragment = parse_name(path.name)
        if fragment is not None and fragment.codec is Codec.NONE:
            found.append(Part(path, fragment.begin, fragment.end, fragment.sum))
    found.sort(key=lambda part: part.begin)
    for part, following in pairwise(found):
        if part.end != following.begin:
            raise ConfigError(
                f"{directory}: {following.path.name} does not begin where {part.path.name} ends: put back"
                " what is missing"
            )
    for part in found:
        if (size := part.path.stat().st_size) != part.end - part.begin:
            raise ConfigError(f"{part.path} has {size} bytes, and its name tells {part.end - part.begin}")
    return found


async def exported(
    client: Client, info: JournalInfo, directory: Path, *, end: int, advance: Advance
) -> tuple[int, int]:
    """Write the content of a journal up to `end` into parts, behind those that are there; the span of all.

    Raises:
        ConfigError: the directory holds something else, or another journal; or another export writes there.
        Trimmed: content behind the last part was removed meanwhile, or is lost.
        OSError: the directory takes no more. What is there counts, and the next call goes on.
    """
    with _alone_in(directory):
        _claim(directory, info)
        parts = parts_of(directory)
        begin = parts[0].begin if parts else (await client.journals.status(info.name)).begin or 0
        at = parts[-1].end if parts else begin
        advance(at - begin)
        writing = _Writing(directory, at)
        try:
            if at < end:
                async for chunk in _reading(client, info, at, end):
                    await asyncio.to_thread(writing.add, chunk.data)
                    advance(len(chunk.data))
            await asyncio.to_thread(writing.finish)
        finally:
            writing.close()
        return begin, writing.begin


def _reading(client: Client, info: JournalInfo, begin: int, end: int) -> AsyncGenerator[Chunk]:
    """All of `[begin, end)`, which is committed, also while the node is away for a while."""
    return client.journals.read(
        info.name,
        begin,
        end=end,
        is_whole=True,
        patience=PATIENCE_SECONDS,
        create_revision=info.create_revision,
    )


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Make the directory of an export, and keep others from writing there."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another export writes into {directory}: wait for it, or end it") from error
        yield
    finally:
        os.close(descriptor)


def _claim(directory: Path, info: JournalInfo) -> None:
    """Write `journal.json` into an empty directory, or see that it tells of this journal."""
    file = directory / MANIFEST
    if not file.exists():
        if strangers := [path.name for path in directory.iterdir() if not path.name.startswith(PARTIAL)]:
            raise ConfigError(f"{directory} is no export, and not empty (it holds {min(strangers)})")
        new = directory / f"{PARTIAL}.json"
        with new.open("wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(Exported(info))) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        new.rename(file)
        return
    found = manifest_of(directory).journal
    if (found.name, found.create_revision) != (info.name, info.create_revision):
        raise ConfigError(
            f"{directory} is an export of journal {found.name}, created at revision {found.create_revision},"
            f" and not of {info.name}, created at {info.create_revision}: name another directory"
        )


def manifest_of(directory: Path) -> Exported:
    """The file `journal.json` of an export.

    Raises:
        ConfigError: it is missing, or of another form.
    """
    try:
        return msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Exported)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{directory} is no export: {MANIFEST}: {error}") from error


class _Writing:
    """Writes the parts of an export. Blocking."""

    def __init__(self, directory: Path, begin: int) -> None:
        self.begin = self._end = begin
        """The span of the part that is open."""
        self._directory, self._sum = directory, hashlib.sha1(usedforsecurity=False)
        self._file = (directory / PARTIAL).open("wb")

    def add(self, content: bytes) -> None:
        self._file.write(content)
        self._sum.update(content)
        self._end += len(content)
        if self._end - self.begin > PART_BYTES:
            self.finish()
            self._file = (self._directory / PARTIAL).open("wb")

    def finish(self) -> None:
        """Give the open part its name, durably, if it has content."""
        if self._end > self.begin:
            self._file.flush()
            os.fsync(self._file.fileno())
            begin, end = ByteOffset(self.begin), ByteOffset(self._end)
            name = Fragment(begin=begin, end=end, sum=self._sum.digest(), codec=Codec.NONE).name
            (self._directory / PARTIAL).rename(self._directory / name)
            sync_directory(self._directory)
            self.begin, self._sum = self._end, hashlib.sha1(usedforsecurity=False)
        self._file.close()

    def close(self) -> None:
        self._file.close()
        (self._directory / PARTIAL).unlink(missing_ok=True)


def source_of(place: Path) -> list[Part]:
    """What is imported: the parts of an export, or one file.

    Raises:
        ConfigError: as `parts_of`; or there is no such file, or no part.
    """
    if place.is_dir():
        manifest_of(place)
        if not (found := parts_of(place)):
            raise ConfigError(f"{place} has no part of a journal")
        return found
    if not place.is_file():
        raise ConfigError(f"there is no file or directory {place}, which can be read again from any place")
    return [Part(place, 0, place.stat().st_size, b"")]


async def imported(
    client: Client, info: JournalInfo, parts: Sequence[Part], *, advance: Advance
) -> tuple[int, int]:
    """Append what `parts` hold to a journal, behind what it has of them already.

    Returns:
        Where the append began, and the journal's end.

    Raises:
        InvalidArgument: the journal has other content, or more. Nothing was appended.
        Corrupt: a part is not what its name says, or the journal has other content afterwards.
        WrongAppendOffset: somebody else appends to it. What was appended stays.
    """
    name, base, total = info.name, parts[0].begin, parts[-1].end - parts[0].begin
    begin = at = await client.journals.end(name)
    if at > total:
        raise InvalidArgument(
            f"journal {name} has {at} bytes, and what is imported only {total}: name another"
        )
    have = hashlib.sha256()
    for piece in _pieces(parts, base, base + at):
        await asyncio.to_thread(have.update, piece)
    if have.digest() != await _sum_of(client, info, at, advance):
        raise InvalidArgument(
            f"the {at} bytes of journal {name} are not the first ones of what is imported: none was appended"
        )
    framing, buffer = framing_of(info.spec), bytearray()
    for piece in _pieces(parts, base + at, base + total):
        have.update(piece)
        buffer += piece
        while len(buffer) >= PIECE_BYTES and (cut := _cut(framing, buffer)):
            at = await _append(client, info, at, _taken(buffer, cut))
            advance(cut)
    while buffer:
        cut = _cut(framing, buffer) or len(buffer)
        at = await _append(client, info, at, _taken(buffer, cut))
        advance(cut)
    if have.digest() != await _sum_of(client, info, at, lambda _count: None):
        raise Corrupt(f"journal {name}: its content is not what was imported: do not use it, and delete it")
    return begin, at


async def _append(client: Client, info: JournalInfo, at: int, piece: bytes) -> int:
    try:
        commit = await client.journals.append(
            info.name, piece, offset=at, create_revision=info.create_revision, timeout=PATIENCE_SECONDS
        )
    except WrongAppendOffset as error:
        text = f"{error}; somebody else appends to it: an import needs the journal for itself"
        raise WrongAppendOffset(text) from error
    return commit.end


def _taken(buffer: bytearray, count: int) -> bytes:
    piece = bytes(buffer[:count])
    del buffer[:count]
    return piece


def _cut(framing: Framing | None, buffer: bytearray) -> int:
    """Where to cut: behind the last whole frame, or line; 0 if there is none, and one may yet come."""
    if framing is not None:
        content = bytes(buffer)
        try:
            frames = frames_of(framing, content, 0)
        except Corrupt:
            return len(content)
        if len(frames.end):
            return int(frames.end[-1])
        return 0 if len(buffer) <= FRAME_BYTES_MAX else len(buffer)
    return buffer.rfind(b"\n", 0, PIECE_BYTES) + 1 or min(len(buffer), PIECE_BYTES)


def _pieces(parts: Sequence[Part], begin: int, end: int) -> Iterator[bytes]:
    """The content of `[begin, end)`, read from the files, each of which was found to fit its name before.

    Raises:
        Corrupt: one does not.
    """
    for part in parts:
        low, high = max(begin, part.begin), min(end, part.end)
        if low >= high:
            continue
        with part.path.open("rb") as file:
            if part.sum:
                found = hashlib.file_digest(file, lambda: hashlib.sha1(usedforsecurity=False))
                if found.digest() != part.sum:
                    raise Corrupt(f"{part.path} has the SHA-1 {found.hexdigest()}, not that of its name")
            file.seek(low - part.begin)
            while low < high:
                piece = file.read(min(PIECE_BYTES, high - low))
                if not piece:
                    raise Corrupt(f"{part.path} ends {high - low} bytes early")
                low += len(piece)
                yield piece


async def _sum_of(client: Client, info: JournalInfo, end: int, advance: Advance) -> bytes:
    """The SHA-256 of the first `end` bytes of a journal."""
    digest = hashlib.sha256()
    if end:
        async for chunk in _reading(client, info, 0, end):
            digest.update(chunk.data)
            advance(len(chunk.data))
    return digest.digest()
