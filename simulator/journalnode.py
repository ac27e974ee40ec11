"""Journal node: a node without doors, whose key space and journals roles use the ports that a run gives.

The fragment store is an object store whose writes are durable at once, and recorded on the tape. A run may
make it unavailable. `journalmodel` judges what the node shows.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec.structs import replace

from broadsheet.base.time import Duration, WallTime
from broadsheet.base.types import Buffer, ByteOffset, JournalName, NodeId
from broadsheet.errors import BroadsheetError, Status
from broadsheet.journal import spool_file, staging_area
from broadsheet.journal.broker import Broker
from broadsheet.journal.committed_reads import read
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core import block_sums
from broadsheet.journal.messages import Commit
from broadsheet.journal.replica import Replica
from broadsheet.journal.role import JournalsRole
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.streamed_append import StreamedAppend
from broadsheet.keyspace.core.transaction import Limits
from broadsheet.keyspace.local.keyspace import KeyspaceConfig
from broadsheet.keyspace.local.role import KeyspaceRole
from broadsheet.keyspace.port import Keyspace
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.role import Ports, Services
from broadsheet.runtime.scope import Scope
from broadsheet.wal.config import KIB, WALConfig
from simulator.disk_state import Tape

KEYSPACE: Final = KeyspaceConfig(
    wal=WALConfig(segment_bytes=272 * KIB, segments_initial=3, initial_fill_bytes=16 * KIB),
    limits=Limits(
        key_bytes_max=512,
        operations_max=4096,
        transaction_bytes_max=4 * KIB,
        value_bytes_max=2 * KIB,
        map_bytes_max=16 * KIB,
    ),
    snapshot_chunk_bytes=2 * KIB,
)
JOURNALS: Final = JournalsConfig(
    store="file:///fragments/",
    checkpoint_bytes=5 * KIB,
    staged_memory_bytes=1 * KIB,
    used_percent_max=100,
    free_bytes_min=0,
    wal=WALConfig(
        segment_bytes=48 * KIB,
        segments_initial=3,
        segments_max=8,
        initial_fill_bytes=48 * KIB,
        record_bytes_max=12 * KIB,
    ),
)
SPOOL_BLOCK_BYTES: Final = 1 << 10
SLICE_BYTES: Final = 2 << 10


def journals_of(knobs: dict[str, int], vouch_delay: Duration) -> JournalsConfig:
    """Small ones, as a seed wants them."""
    wal = replace(JOURNALS.wal, segments_max=knobs["segments_max"], vouch_delay=vouch_delay)
    return replace(JOURNALS, checkpoint_bytes=knobs["checkpoint_bytes"], wal=wal)


@contextmanager
def small_blocks() -> Generator[None, None, None]:
    """Spool files are summed, and appends placed, in small blocks: nothing here would have two large ones."""
    chosen = [
        (spool_file, "BLOCK_BYTES", SPOOL_BLOCK_BYTES),
        (block_sums, "BLOCK_BYTES", SPOOL_BLOCK_BYTES),
        (staging_area, "SLICE_BYTES", SLICE_BYTES),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in chosen]
    for module, name, size in chosen:
        setattr(module, name, size)
    try:
        yield
    finally:
        for module, name, size in before:
            setattr(module, name, size)


class Stored(msgspec.Struct, frozen=True):
    """An object as a listing tells of it."""

    name: str
    size_bytes: int
    modified: WallTime = WallTime(0)


class Shelf:
    """An object store that is durable at once, and says so on the tape."""

    def __init__(self, tape: Tape | None, objects: dict[str, bytes]) -> None:
        self.tape, self.objects = tape, objects
        self.is_shut = False
        """Whether it answers nothing but errors."""

    def at(self, _url: str) -> "Shelf":
        """The store at that URL."""
        return self

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        """Store an object, whole or not at all."""
        await self._wait()
        if name in self.objects:
            return False
        self.objects[name] = b"".join(body)
        if self.tape is not None:
            self.tape.mark(("stored", name, self.objects[name]))
        return True

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """The bytes of [begin, end)."""
        await self._wait()
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name][begin:end]

    async def list(self, prefix: str) -> Sequence[Stored]:
        """Every object below a prefix."""
        await self._wait()
        names = sorted(name for name in self.objects if name.startswith(prefix))
        return [Stored(name, len(self.objects[name])) for name in names]

    async def delete(self, name: str) -> None:
        """Remove an object."""
        self.objects.pop(name, None)

    async def _wait(self) -> None:
        await asyncio.sleep(0)
        if self.is_shut:
            raise OSError(errno.EIO, "the store is shut")


class Running:
    """The roles of one node that runs."""

    def __init__(self, services: Services) -> None:
        self.broker = services.one(Broker)
        self.keyspace: Keyspace = services.one(Keyspace)  # type: ignore[type-abstract]  # Its port.

    async def content_of(self, name: JournalName) -> tuple[Replica, bytes]:
        """A journal, and every byte of it that a reader is shown."""
        replica = await self.broker.replica(name)
        parts = [chunk.data async for chunk in read(replica, replica.begin, None, block=False)]
        return replica, b"".join(parts)


async def start(
    scope: Scope,
    ports: Ports,
    services: Services,
    *,
    node: NodeId,
    keyspace: KeyspaceConfig,
    journals: JournalsConfig,
) -> None:
    """Start both roles in `scope`; they offer what `Running` is made of.

    Raises:
        OSError, BroadsheetError: as the roles do.
    """
    services.offer(Identity, Identity(node=node, cluster="c", peers={node: ""}, version=""))
    await KeyspaceRole().start(scope.child("keyspace"), ports, keyspace, services)
    await JournalsRole().start(scope.child("journals"), ports, journals, services)


async def status_of(answered: Awaitable[Commit]) -> Status:
    """The status of an append's answer."""
    try:
        await answered
    except BroadsheetError as error:
        return error.status
    return Status.OK


class UnaryTold(UnaryAppend):
    """An append that says what becomes of it."""

    __slots__ = ("_told",)

    def __init__(self, content: bytes, told: Callable[[Status, int, int], None]) -> None:
        super().__init__(content)
        self._told = told

    def answer(self, status: Status, begin: ByteOffset, end: ByteOffset, message: str) -> None:
        """Its client is told."""
        self._told(status, begin, end)
        super().answer(status, begin, end, message)


class StreamedTold(StreamedAppend):
    """The same in a stream."""

    told: Callable[[Status, int, int], None]

    def answer(self, status: Status, begin: ByteOffset, end: ByteOffset, message: str) -> None:
        """Its client is told."""
        self.told(status, begin, end)
        super().answer(status, begin, end, message)
