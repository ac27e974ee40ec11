"""Ports that fail on request: a `Disk` and an `ObjectStore` around others.

    disk = FaultyDisk(LocalDisk(tmp_path))
    disk.plan(Fault("persist", error=errno.EIO, name="wal/*", after=2, times=1))
    disk.space = 64 << 10                    # ENOSPC once so many bytes more were written

They lie about nothing else: what they do not fail they pass on, and what they fail they leave undone, but
for `partly`. Faults are tried in order; the first that matches and still has `times` left acts.
`faults_hit` counts per operation.
"""

import asyncio
import errno
import fnmatch
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from broadsheet.base.time import Duration, in_seconds
from broadsheet.base.types import Buffer
from broadsheet.ports import Disk, DiskLock, File, ObjectInfo, ObjectStore

T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """One fault of a plan."""

    op: str
    """Name of a method of `File`, `Disk` or `ObjectStore`. `persist` counts as `write_at` and `sync` too."""
    error: int = 0
    """The errno to raise; 0 for none, which leaves the delay."""
    name: str = "*"
    """A glob over file or object names."""
    after: int = 0
    """Let so many matching calls pass first."""
    times: int = -1
    """Act on so many calls; -1 for ever."""
    partly: bool = False
    """Of a write: half of the bytes arrive before the error. Of a put: all of them do."""
    delay: Duration = Duration(0)
    """Of an awaited call: wait so long first."""


class Plan:
    """Faults, and how often each was met."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._faults = tuple(faults)
        self._seen, self._hit = [0] * len(faults), [0] * len(faults)
        self.faults_hit: dict[str, int] = {}

    def take(self, op: str, name: str) -> Fault | None:
        """The fault that acts on this call, counted; None for none."""
        for index, fault in enumerate(self._faults):
            if fault.op != op or not fnmatch.fnmatchcase(name, fault.name):
                continue
            self._seen[index] += 1
            if self._seen[index] <= fault.after or self._hit[index] == fault.times:
                continue
            self._hit[index] += 1
            self.faults_hit[op] = self.faults_hit.get(op, 0) + 1
            return fault
        return None

    def check(self, op: str, name: str) -> None:
        """Raise what is planned for a call that is done whole or not at all."""
        if (fault := self.take(op, name)) is not None and fault.error:
            raise OSError(fault.error, f"planned: {os.strerror(fault.error)}", name)


class FaultyDisk:
    """A disk around another."""

    def __init__(self, inner: Disk, faults: Sequence[Fault] = ()) -> None:
        self.inner = inner
        self.faults = Plan(faults)
        self.space: int | None = None
        """Bytes that may still be written before ENOSPC; None for no bound but the inner disk's."""

    def plan(self, *faults: Fault) -> None:
        """Replace the plan; counts begin anew."""
        self.faults = Plan(faults)

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> File:
        """As `Disk.open`."""
        self.faults.check("open", name)
        return FaultyFile(self, self.inner.open(name, create=create, exclusive=exclusive))

    def exists(self, name: str) -> bool:
        """As `Disk.exists`."""
        return self.inner.exists(name)

    def list(self, directory: str) -> list[str]:
        """As `Disk.list`."""
        self.faults.check("list", directory)
        return self.inner.list(directory)

    def make_dir(self, name: str) -> None:
        """As `Disk.make_dir`."""
        self.faults.check("make_dir", name)
        self.inner.make_dir(name)

    def rename(self, old: str, new: str) -> None:
        """As `Disk.rename`; a fault is found by the old name."""
        self.faults.check("rename", old)
        self.inner.rename(old, new)

    def remove(self, name: str) -> None:
        """As `Disk.remove`."""
        self.faults.check("remove", name)
        self.inner.remove(name)

    def remove_dir(self, name: str) -> None:
        """As `Disk.remove_dir`."""
        self.faults.check("remove_dir", name)
        self.inner.remove_dir(name)

    def sync_dir(self, directory: str) -> None:
        """As `Disk.sync_dir`."""
        self.faults.check("sync_dir", directory)
        self.inner.sync_dir(directory)

    def free(self) -> int:
        """As `Disk.free`, within `space`."""
        free = self.inner.free()
        return free if self.space is None else min(free, self.space)

    def size(self) -> int:
        """As `Disk.size`."""
        return self.inner.size()

    def lock(self, name: str) -> DiskLock:
        """As `Disk.lock`."""
        self.faults.check("lock", name)
        return self.inner.lock(name)

    async def run(self, work: Callable[[], T]) -> T:
        """As `Disk.run`."""
        return await self.inner.run(work)


class FaultyFile:
    """A file of a `FaultyDisk`."""

    def __init__(self, disk: FaultyDisk, inner: File) -> None:
        self._disk, self._inner = disk, inner

    @property
    def name(self) -> str:
        """As `File.name`."""
        return self._inner.name

    def size(self) -> int:
        """As `File.size`."""
        return self._inner.size()

    def read_at(self, at: int, length: int) -> bytes:
        """As `File.read_at`."""
        self._disk.faults.check("read_at", self.name)
        return self._inner.read_at(at, length)

    def write_at(self, at: int, parts: Sequence[Buffer]) -> None:
        """As `File.write_at`."""
        self._meet_write(self._disk.faults.take("write_at", self.name), at, parts)
        self._inner.write_at(at, parts)

    def truncate(self, length: int) -> None:
        """As `File.truncate`."""
        self._disk.faults.check("truncate", self.name)
        self._inner.truncate(length)

    def allocate(self, length: int) -> None:
        """As `File.allocate`; takes of `space` what the file grows by."""
        self._disk.faults.check("allocate", self.name)
        self._spend(max(0, length - self.size()))
        self._inner.allocate(length)

    def reserve(self, begin: int, end: int) -> bool:
        """As `File.reserve`."""
        return self._inner.reserve(begin, end)

    def sync(self) -> None:
        """As `File.sync`."""
        self._disk.faults.check("sync", self.name)
        self._inner.sync()

    async def persist(self, at: int, parts: Sequence[Buffer]) -> None:
        """As `File.persist`."""
        fault = self._disk.faults.take("persist", self.name) or self._disk.faults.take("write_at", self.name)
        if fault is not None:
            await asyncio.sleep(in_seconds(fault.delay))
        self._meet_write(fault, at, parts)
        try:
            self._disk.faults.check("sync", self.name)
        except OSError:
            self._inner.write_at(at, parts)
            raise
        await self._inner.persist(at, parts)

    async def flush(self) -> None:
        """As `File.flush`."""
        self._disk.faults.check("sync", self.name)
        fault = self._disk.faults.take("flush", self.name)
        if fault is not None:
            await asyncio.sleep(in_seconds(fault.delay))
            if fault.error:
                raise OSError(fault.error, "planned", self.name)
        await self._inner.flush()

    async def write_back(self, begin: int, end: int) -> None:
        """As `File.write_back`."""
        await self._inner.write_back(begin, end)

    async def uncache(self, begin: int, end: int) -> None:
        """As `File.uncache`."""
        await self._inner.uncache(begin, end)

    def close(self) -> None:
        """As `File.close`."""
        self._inner.close()

    def _meet_write(self, fault: Fault | None, at: int, parts: Sequence[Buffer]) -> None:
        if fault is not None and fault.error:
            if fault.partly:
                content = b"".join(parts)
                self._inner.write_at(at, (content[: len(content) // 2],))
            raise OSError(fault.error, f"planned: {os.strerror(fault.error)}", self.name)
        end = at + sum(len(part) for part in parts)
        self._spend(max(0, end - max(at, self.size())))

    def _spend(self, grown: int) -> None:
        """Take of `space` what a file grows by: a write over what is there needs none."""
        if self._disk.space is None:
            return
        if grown > self._disk.space:
            raise OSError(errno.ENOSPC, "planned: the space is used up", self.name)
        self._disk.space -= grown


class FaultyObjects:
    """An object store around another."""

    def __init__(self, inner: ObjectStore, faults: Sequence[Fault] = ()) -> None:
        self.inner = inner
        self.faults = Plan(faults)

    def plan(self, *faults: Fault) -> None:
        """Replace the plan; counts begin anew."""
        self.faults = Plan(faults)

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        """As `ObjectStore.put_if_absent`."""
        fault = await self._meet("put_if_absent", name)
        if fault is not None and fault.error:
            if fault.partly:
                await self.inner.put_if_absent(name, body)
            raise OSError(fault.error, "planned", name)
        return await self.inner.put_if_absent(name, body)

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """As `ObjectStore.get`."""
        fault = await self._meet("get", name)
        if fault is not None and fault.error:
            raise OSError(fault.error, "planned", name)
        return await self.inner.get(name, begin, end)

    async def list(self, prefix: str) -> Sequence[ObjectInfo]:
        """As `ObjectStore.list`."""
        fault = await self._meet("list", prefix)
        if fault is not None and fault.error:
            raise OSError(fault.error, "planned", prefix)
        return await self.inner.list(prefix)

    async def delete(self, name: str) -> None:
        """As `ObjectStore.delete`."""
        fault = await self._meet("delete", name)
        if fault is not None and fault.error:
            raise OSError(fault.error, "planned", name)
        await self.inner.delete(name)

    async def _meet(self, op: str, name: str) -> Fault | None:
        fault = self.faults.take(op, name)
        if fault is not None:
            await asyncio.sleep(in_seconds(fault.delay))
        return fault
