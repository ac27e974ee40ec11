"""The process behind `faultfs.FaultFS`: passes every call to a directory, unless a rule says otherwise.

Runs alone (`faultfs_server.py BEHIND MOUNT RULES HITS [CACHE]`), one call at a time, so it must not import
the tests. With CACHE it is a write-back cache: content lives there and reaches BEHIND at a sync, names
reach both at once.
"""

# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH208 - this file speaks in the kernel's calls.

import errno
import fnmatch
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import mfusepy as fuse

STAT_FIELDS = (
    "st_mode",
    "st_nlink",
    "st_uid",
    "st_gid",
    "st_size",
    "st_atime_ns",
    "st_mtime_ns",
    "st_ctime_ns",
)
STATVFS_FIELDS = (
    "f_bavail",
    "f_bfree",
    "f_blocks",
    "f_bsize",
    "f_favail",
    "f_ffree",
    "f_files",
    "f_frsize",
    "f_namemax",
)
BITS = 8


class Rules:
    """The rules of the control file, and how often each matched and acted."""

    def __init__(self, control: Path, hits: Path) -> None:
        self._control, self._hits_path = control, hits
        self._stamp: tuple[int, int] | None = None
        self._generation = 0
        self._rules: list[dict[str, Any]] = []
        self._seen: list[int] = []
        self._hits: list[int] = []

    def take(self, op: str, path: str) -> dict[str, Any] | None:
        """The rule that acts on this call, if any; counted. Raises its error, after its delay."""
        self._refresh()
        for index, rule in enumerate(self._rules):
            if rule["op"] != op or not fnmatch.fnmatchcase(path, rule["path"]):
                continue
            self._seen[index] += 1
            if self._seen[index] <= rule["after"] or self._hits[index] == rule["times"]:
                continue
            self._hits[index] += 1
            self._tell()
            time.sleep(rule["delay_ms"] / 1000)
            if rule["error"]:
                raise fuse.FuseOSError(getattr(errno, rule["error"]))
            return rule
        return None

    def _refresh(self) -> None:
        status = self._control.stat()
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp != self._stamp:
            said = json.loads(self._control.read_text())
            self._stamp, self._generation, self._rules = stamp, said["generation"], said["rules"]
            self._seen, self._hits = [0] * len(self._rules), [0] * len(self._rules)

    def _tell(self) -> None:
        partial = self._hits_path.with_suffix(".new")
        partial.write_text(json.dumps({"generation": self._generation, "hits": self._hits}))
        partial.replace(self._hits_path)


class Layer(fuse.Operations):  # type: ignore[misc]  # the package is untyped.
    """The calls of the kernel."""

    use_ns = True

    def __init__(self, behind: str, cache: str | None, rules: Rules) -> None:
        self._behind, self._cache, self._rules = behind, cache, rules
        self._shown = cache or behind
        self._dirty: dict[str, list[tuple[int, int]]] = {}
        """Per path, the spans of CACHE that BEHIND does not have yet."""

    def _at(self, path: str) -> str:
        return self._shown + path

    def _both(self, path: str) -> list[str]:
        return [self._shown + path] + ([self._behind + path] if self._cache else [])

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        status = os.lstat(self._at(path))
        return {field.removesuffix("_ns"): getattr(status, field) for field in STAT_FIELDS}

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._at(path))
        return {field: getattr(status, field) for field in STATVFS_FIELDS}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def access(self, path: str, amode: int) -> int:
        return 0

    def create(self, path: str, mode: int, fi: object = None) -> int:
        self._rules.take("create", path)
        for each in self._both(path)[1:]:
            os.close(os.open(each, os.O_RDWR | os.O_CREAT, mode))
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        self._rules.take("open", path)
        return os.open(self._at(path), flags & ~(os.O_APPEND | os.O_NONBLOCK))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        rule = self._rules.take("read", path)
        content = os.pread(fh, size, offset)
        if rule is None or rule["flip_bit"] < 0:
            return content
        at, bit = divmod(rule["flip_bit"], BITS)
        if not offset <= at < offset + len(content):
            return content
        flipped = bytearray(content)
        flipped[at - offset] ^= 1 << bit
        return bytes(flipped)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        rule = self._rules.take("write", path)
        if rule is not None and rule["short"] and len(data) > 1:
            data = data[: len(data) // 2]
        written = os.pwrite(fh, data, offset)
        if self._cache:
            self._dirty.setdefault(path, []).append((offset, written))
        return written

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._rules.take("truncate", path)
        for each in self._both(path):
            os.truncate(each, length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        dirty = self._dirty.pop(path, [])  # Clean from now on, whatever comes of it: that is the fsync gate.
        self._rules.take("fsync", path)
        if not self._cache:
            os.fsync(fh)
            return 0
        behind = os.open(self._behind + path, os.O_RDWR)
        try:
            for offset, length in dirty:
                os.pwrite(behind, os.pread(fh, length, offset), offset)
        finally:
            os.close(behind)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._rules.take("fsyncdir", path)
        return 0

    def flush(self, path: str, fh: int) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def unlink(self, path: str) -> int:
        self._rules.take("unlink", path)
        self._dirty.pop(path, None)
        for each in self._both(path):
            os.unlink(each)
        return 0

    def rename(self, old: str, new: str) -> int:
        self._rules.take("rename", old)
        self._dirty.pop(new, None)
        if old in self._dirty:
            self._dirty[new] = self._dirty.pop(old)
        for source, target in zip(self._both(old), self._both(new), strict=True):
            os.rename(source, target)
        return 0

    def link(self, target: str, source: str) -> int:
        self._rules.take("link", source)
        if source in self._dirty:
            self._dirty[target] = list(self._dirty[source])
        for made, original in zip(self._both(target), self._both(source), strict=True):
            os.link(original, made)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._rules.take("mkdir", path)
        for each in self._both(path):
            os.mkdir(each, mode)
        return 0

    def rmdir(self, path: str) -> int:
        for each in self._both(path):
            os.rmdir(each)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._at(path), mode)
        return 0

    def utimens(self, path: str, times: tuple[int, int]) -> int:
        os.utime(self._at(path), ns=times)
        return 0


def main() -> None:
    """Mount, and serve until unmounted."""
    behind, mount, control, hits, *cache = sys.argv[1:]
    layer = Layer(behind, cache[0] if cache else None, Rules(Path(control), Path(hits)))
    fuse.FUSE(layer, mount, foreground=True, nothreads=True, direct_io=True, attr_timeout=0, entry_timeout=0)


if __name__ == "__main__":
    main()
