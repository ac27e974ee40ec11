"""Ports: everything that a node may ask of the world (node.3).

Each port has a production implementation (`runtime/`), a simulated one (`simulator/`) and, for disk and
objects, one that injects faults. One conformance suite runs against all of them (`tests/runtime`).

Names of files are relative to the disk's root, use `/`, and were validated by whoever made them.
"""

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from broadsheet.base.time import Duration, Instant, WallTime
from broadsheet.base.types import Buffer

T = TypeVar("T")

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk without space. Nothing changed but the range of a refused write, and all else is sound."""
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or a system, that may open no more files. Nothing changed, and no sync has failed."""
NO_ROOM: Final = (*NO_SPACE, *NO_DESCRIPTOR)
"""Both: a later try may succeed."""


class Time(Protocol):
    """The clocks of one node; not `Clock`, for that word is a producer's."""

    def now(self) -> Instant:
        """The monotonic clock, suspended time included."""
        ...

    def wall(self) -> WallTime:
        """The wall clock, which may jump either way."""
        ...

    def boot_id(self) -> str:
        """The kernel's id of this boot: equal ids mean that the page cache lived on."""
        ...


class Timer(Protocol):
    """A pending call, as `Timers.call_after` returned it."""

    def cancel(self) -> None:
        """Prevent the call; no effect if it was made already."""
        ...


class Timers(Protocol):
    """Calls on the node's loop, at its own clock's pace."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the callbacks that are ready now have run."""
        ...

    def call_after(self, delay: Duration, callback: Callable[[], None]) -> Timer:
        """Call `callback` no earlier than `delay` from now."""
        ...


class Random(Protocol):
    """Entropy, seeded by the operating system; in simulation by (world, node, boot, purpose)."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def getrandbits(self, k: int, /) -> int:
        """An integer in [0, 2**k)."""
        ...

    def randrange(self, start: int, stop: int) -> int:
        """An integer in [start, stop)."""
        ...

    def randbytes(self, n: int) -> bytes:
        """`n` bytes."""
        ...


class File(Protocol):
    """A port: an open file. All but `persist` and `flush` block: on the loop only at start-up or below 1 ms.

    Raises:
        OSError: of any method; `errno` says which. After a failed write or sync the bytes written since the
            last good sync are in doubt, and a later sync that succeeds would prove nothing: the process must
            end. ENOSPC and EDQUOT are the exception, and only a *write* raises them: the bytes of its range
            are in doubt, but the rest of the file is sound. A sync that finds no room raises EIO.
    """

    @property
    def name(self) -> str:
        """The name that it was opened by."""
        ...

    def size(self) -> int:
        """Length in bytes."""
        ...

    def read_at(self, at: int, length: int) -> bytes:
        """The bytes of [at, at + length), fewer only at the end of the file.

        Raises:
            OSError: EIO, in a thread: these bytes cannot be read, while others can. `DISK_AWAY` of
                `runtime.rereading`: the disk reads nothing, and nothing is known of these bytes (ADR 0198).
        """
        ...

    def write_at(self, at: int, parts: Sequence[Buffer]) -> None:
        """Write `parts` back to back from `at` on, all of them; a short write is continued."""
        ...

    def truncate(self, length: int) -> None:
        """Cut or extend with zeros to `length` bytes. Durable after the next sync."""
        ...

    def allocate(self, length: int) -> None:
        """Make [0, length) zero-filled and resident, so that a later overwrite journals no metadata."""
        ...

    def reserve(self, begin: int, end: int) -> bool:
        """Hint that [begin, end), at or behind the file's end, will be written soon, which is cheaper then.

        Neither length nor content changes, and `truncate` to the present length takes the hint back.

        Returns:
            False: the file system cannot, or has no space. Nothing changed, and it is not worth asking again.
        """
        ...

    def sync(self) -> None:
        """Make everything written before this call durable."""
        ...

    async def persist(self, at: int, parts: Sequence[Buffer]) -> None:
        """`write_at`, then `sync`, in one hop off the loop. `parts` stay untouched until it returns."""
        ...

    async def flush(self) -> None:
        """`sync`, off the loop."""
        ...

    async def write_back(self, begin: int, end: int) -> None:
        """Hint, off the loop, that a sync of [begin, end) will follow: the disk may begin with it.

        Nothing is durable by it. What fails of it is raised by the sync.
        """
        ...

    async def uncache(self, begin: int, end: int) -> None:
        """Hint, off the loop, that the synced bytes of [begin, end) need not stay in memory."""
        ...

    def close(self) -> None:
        """Release the file without a sync; idempotent."""
        ...


class DiskLock(Protocol):
    """Exclusive ownership of a lock file, which ends with the process."""

    def release(self) -> None:
        """Release the lock; idempotent."""
        ...


class Disk(Protocol):
    """A port: one directory tree. Blocking, but for `run`."""

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> File:
        """Open a file of the disk for reading and writing.

        A created file survives a crash only after `sync_dir` of its directory.

        Raises:
            FileNotFoundError: the file is absent and `create` is false.
            FileExistsError: the file exists and `exclusive` is true.
        """
        ...

    def exists(self, name: str) -> bool:
        """Whether a file or directory of that name exists."""
        ...

    def list(self, directory: str) -> list[str]:
        """The sorted names in `directory`; empty if it is absent."""
        ...

    def make_dir(self, name: str) -> None:
        """Create the directory and its parents where absent, and sync each parent."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Replace `new` by `old` atomically. Durable after `sync_dir` of both directories."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file. Durable after `sync_dir`."""
        ...

    def remove_dir(self, name: str) -> None:
        """Remove an empty directory. Durable after `sync_dir` of the one above it.

        Raises:
            FileNotFoundError: the directory is absent. OSError: it is not empty. Nothing changed.
        """
        ...

    def sync_dir(self, directory: str) -> None:
        """Make creates, renames and removes in `directory` durable."""
        ...

    def free(self) -> int:
        """Bytes that may still be written."""
        ...

    def size(self) -> int:
        """Bytes that are in use, by any process, or may still be written: 100 percent for `df`."""
        ...

    def lock(self, name: str) -> DiskLock:
        """Take the lock file `name`, without waiting.

        Raises:
            BlockingIOError: another process holds it.
        """
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """Do blocking `work` off the loop: hashes over 1 MiB, recovery, long listings."""
        ...


class Transport(Protocol):
    """The sending half of one connection: the part of `asyncio.Transport` that we use."""

    def write(self, data: Buffer) -> None:
        """Queue `data`; it is owned by the transport until sent."""
        ...

    def writelines(self, list_of_data: Sequence[Buffer]) -> None:
        """Queue many buffers, as one write where possible."""
        ...

    def get_write_buffer_size(self) -> int:
        """Bytes queued and not yet taken by the kernel."""
        ...

    def pause_reading(self) -> None:
        """Deliver no more bytes, so that the peer is held back."""
        ...

    def resume_reading(self) -> None:
        """Deliver bytes again."""
        ...

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        ...

    def close(self) -> None:
        """Send what is queued, then close."""
        ...

    def abort(self) -> None:
        """Close at once, and drop what is queued."""
        ...


class ByteProtocol(Protocol):
    """The receiving half: `asyncio.BufferedProtocol`, by which bytes arrive in buffers that we own."""

    def connection_made(self, transport: Transport) -> None:
        """Take the transport of a new connection."""
        ...

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go; never empty."""
        ...

    def buffer_updated(self, nbytes: int) -> None:
        """Take `nbytes` that were put into the buffer."""
        ...

    def eof_received(self) -> bool | None:
        """The peer sends no more."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; nothing follows."""
        ...

    def pause_writing(self) -> None:
        """The send buffer is above its high mark."""
        ...

    def resume_writing(self) -> None:
        """The send buffer fell below its low mark."""
        ...


class Listener(Protocol):
    """The port of an address that is bound for connections."""

    @property
    def address(self) -> str:
        """`host:port` as bound, with the real port where 0 was asked for."""
        ...

    async def close(self) -> None:
        """Accept no more; existing connections are not touched."""
        ...


class Network(Protocol):
    """Byte streams between addresses `host:port`."""

    async def listen(self, address: str, factory: Callable[[], ByteProtocol]) -> Listener:
        """Accept connections, each with a protocol of its own.

        Raises:
            OSError: the address cannot be bound.
        """
        ...

    async def dial(self, address: str, factory: Callable[[], ByteProtocol]) -> ByteProtocol:
        """Open a connection; returns when it is established.

        Raises:
            OSError: refused or unreachable. The caller bounds the time.
        """
        ...


class ObjectInfo(Protocol):
    """An entry of an object store's listing."""

    @property
    def name(self) -> str:
        """The full name of the object in the store."""
        ...

    @property
    def size_bytes(self) -> int:
        """The length of the object."""
        ...

    @property
    def modified(self) -> WallTime:
        """The time at which it was stored, by the store's clock."""
        ...


class ObjectStore(Protocol):
    """Immutable named objects: a local directory, S3, GCS, Azure, or our own files."""

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        """Store `body` durably as the object `name`, whole or not at all.

        Args:
            body: pieces, made as they are asked for, perhaps in a thread, and as often as is needed.

        Returns:
            False if an object of that name existed already; it is untouched.

        Raises:
            OSError: the object may or may not be stored; repeat the call.
        """
        ...

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """The bytes of [begin, end) of an object.

        Raises:
            FileNotFoundError: there is no such object.
            Corrupt: bytes of it are damaged, and another call does not help.
            OSError: the store does not answer: repeat the call.
        """
        ...

    async def list(self, prefix: str) -> Sequence[ObjectInfo]:
        """Every object whose name starts with `prefix`, sorted by name."""
        ...

    async def delete(self, name: str) -> None:
        """Remove an object; no error if it is absent."""
        ...
