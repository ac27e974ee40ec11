"""Running: what a node's process says of itself beside its data, for `up`, `down` and `status`.

The file is a hint, never a proof: whether a node runs is told by the lock of its data directory alone.
"""

import errno
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from broadsheet.runtime.data_dir import is_locked
from broadsheet.runtime.disk import LocalDisk

FILE: Final = "running.json"
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
POLL_SECONDS: Final = 0.02


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a node."""

    node: str
    pid: int
    addresses: dict[str, str]
    """Door to `host:port`; empty until it is ready."""

    def write(self, root: Path) -> bool:
        """Leave it in the data directory; whether there was room for it.

        On a full disk it takes the place of the one that is there, whose bytes are as many or a few more.
        """
        content, new = msgspec.json.encode(self) + b"\n", root / f"{FILE}.new"
        try:
            new.write_bytes(content)
            new.replace(root / FILE)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        else:
            return True
        with suppress(FileNotFoundError):
            new.unlink()
        try:
            with (root / FILE).open("r+b", buffering=0) as file:
                is_whole = file.write(content) == len(content)
                file.truncate()
        except OSError as error:
            if error.errno not in (*NO_ROOM, errno.ENOENT):
                raise
            return False
        return is_whole

    @staticmethod
    def forget(root: Path) -> None:
        """Take it away, at a clean end."""
        (root / FILE).unlink(missing_ok=True)

    @classmethod
    def read(cls, root: Path) -> Self | None:
        """What the process that holds the data directory wrote; None where none holds it, or none wrote."""
        if not is_running(root):
            return None
        try:
            return msgspec.json.decode((root / FILE).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is a node's and still there."""
        try:
            command = Path(f"/proc/{self.pid}/cmdline").read_bytes()
            if b"serve" in command.split(b"\0"):  # A process id may be someone else's by now.
                os.kill(self.pid, number)
        except (FileNotFoundError, ProcessLookupError):
            return


def ending_signals() -> list[signal.Signals]:
    """What ends a node, or who started it, in good order.

    A terminal that goes away sends SIGHUP; under `nohup` that is ignored, and stays so.
    """
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if is_nohup else [signal.SIGHUP])]


def is_running(root: Path) -> bool:
    """Whether a process holds the data directory."""
    if not root.is_dir():
        return False
    disk = LocalDisk(root)
    try:
        return is_locked(disk)
    finally:
        disk.close()


def wait_until_ended(root: Path, *, seconds: float) -> bool:
    """Wait for the data directory's lock to be free; whether it is."""
    until = time.monotonic() + seconds
    while is_running(root):
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True
