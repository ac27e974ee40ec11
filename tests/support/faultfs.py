"""A fault layer on real files: a FUSE file system over a directory, with rules that a test sets.

    with mounted(tmp_path) as faults:            # tests that use it are marked `needs_fuse`
        start_node(data_dir=faults.path)
        faults.set(Rule("fsync", error="EIO", path="*/wal/*", after=3, times=1))
        ...
        assert faults.hits() == [1]

The kernel's page cache is bypassed (direct IO), so each write, read and sync of the process under test
reaches the rules. With `write_back=True` the layer plays the page cache itself: what was not synced is lost
at `reboot()`, and a sync that is answered with EIO leaves its pages clean: reads go on returning the lost
bytes, and the next sync says 0, which is what ext4 does. Rules are tried in order; the first that matches and
still has `times` left acts.

Source: FAST'17 Ganesan (errfs).
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

MOUNT_SECONDS_MAX: Final = 10.0
SERVER: Final = Path(__file__).with_name("faultfs_server.py")


@dataclass(frozen=True)
class Rule:
    """One fault: what to hit, when, and how."""

    op: str
    """write, read, fsync (fdatasync too), fsyncdir, create, open, rename, link, unlink, mkdir or truncate."""
    error: str = ""
    """Name of an errno to answer with, such as "EIO" or "ENOSPC"; nothing is done then."""
    path: str = "*"
    """A glob over the path below the mount, which begins with `/`; `*` crosses directories."""
    after: int = 0
    """Let so many matching calls pass first."""
    times: int = -1
    """Act on so many calls, then no more; -1 for ever."""
    short: bool = False
    """Of a write: take the first half only, and say so."""
    flip_bit: int = -1
    """Of a read: invert this bit of the file, counted from the file's start, wherever it is read."""
    delay_ms: int = 0
    """Wait so long first; with nothing else set the call then goes on as usual. The whole layer waits."""


class FaultFS:
    """One mount."""

    def __init__(self, directory: Path, *, write_back: bool = False) -> None:
        """Mount below `directory`, in which three directories are made.

        Raises:
            RuntimeError: it does not mount; the message has FUSE's own words.
        """
        self.path = directory / "mounted"
        """Where the process under test works."""
        self.behind = directory / "behind"
        """The plain directory that it ends up in: what is here is on the disk."""
        self._cache = directory / "cache" if write_back else None
        self._control = directory / "rules.json"
        self._hits = directory / "hits.json"
        self._rules: tuple[Rule, ...] = ()
        self._generation = 0
        self._server: subprocess.Popen[bytes] | None = None
        for made in (self.path, self.behind):
            made.mkdir(parents=True, exist_ok=True)
        self.set()
        self._mount()

    def set(self, *rules: Rule) -> None:
        """Replace all rules; their counts begin anew. They hold for every call that begins after this."""
        self._generation += 1
        self._rules = rules
        partial = self._control.with_suffix(".new")
        partial.write_text(
            json.dumps({"generation": self._generation, "rules": [asdict(rule) for rule in rules]})
        )
        partial.replace(self._control)

    def hits(self) -> list[int]:
        """How often each rule acted, in their order."""
        try:
            said = json.loads(self._hits.read_text())
        except FileNotFoundError:
            said = {"generation": -1}
        counts: list[int] = said["hits"] if said["generation"] == self._generation else [0] * len(self._rules)
        return counts

    def reboot(self) -> None:
        """Unmount, forget what was not synced (`write_back`), clear the rules and mount again.

        The process under test must have ended.
        """
        self.close()
        self.set()
        self._mount()

    def close(self) -> None:
        """Unmount; idempotent. `behind` stays for the test to look at."""
        if self._server is None:
            return
        subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=False, capture_output=True)
        try:
            self._server.wait(timeout=MOUNT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None

    def _mount(self) -> None:
        if self._cache is not None:
            shutil.rmtree(self._cache, ignore_errors=True)
            shutil.copytree(self.behind, self._cache, symlinks=True)
        command = [
            sys.executable,
            str(SERVER),
            str(self.behind),
            str(self.path),
            str(self._control),
            str(self._hits),
        ]
        command += [str(self._cache)] if self._cache is not None else []
        log = self._control.with_name("server.log")
        with log.open("wb") as output:
            self._server = subprocess.Popen(command, stdout=output, stderr=output)
        end = time.monotonic() + MOUNT_SECONDS_MAX
        while not os.path.ismount(self.path):
            if self._server.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError(f"the fault layer does not mount at {self.path}: {log.read_text()}")
            time.sleep(0.01)


@contextmanager
def mounted(directory: Path, *, write_back: bool = False) -> Iterator[FaultFS]:
    """A fault layer that is unmounted at the end."""
    faults = FaultFS(directory, write_back=write_back)
    try:
        yield faults
    finally:
        faults.close()
