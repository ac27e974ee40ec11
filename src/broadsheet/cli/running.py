"""Running: the file in which a node's process names itself, for `up`, `down` and `status`.

The file is only a hint: the lock of the data directory alone tells whether the node runs.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from broadsheet.ports import NO_SPACE
from broadsheet.runtime.data_dir import is_locked
from broadsheet.runtime.disk import LocalDisk

FILE: Final = "running.json"
SPARE: Final = f"{FILE}.new"
POLL_SECONDS: Final = 0.02


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a node."""

    node: str
    pid: int
    addresses: dict[str, str]
    """The address (`host:port`) of each door; empty until the node is ready."""

    def write(self, root: Path) -> bool:
        """Write the file into the data directory. Returns whether there was room for it.

        On a full disk it overwrites the file that a node left: one that ended the spare, one that was killed
        its own. Both have about as many bytes.
        """
        content, spare = msgspec.json.encode(self) + b"\n", root / SPARE
        if _overwrote(spare, content):
            spare.replace(root / FILE)
            return True
        spare.unlink(missing_ok=True)
        return (root / FILE).exists() and _overwrote(root / FILE, content)

    @staticmethod
    def forget(root: Path) -> None:
        """Take the file away, when the node ends: it is the spare of the next start, on a full disk, too."""
        with suppress(FileNotFoundError):
            (root / FILE).replace(root / SPARE)

    @classmethod
    def read(cls, root: Path) -> Self | None:
        """The file of the process that holds the data directory; None if there is no such file."""
        if not is_running(root):
            return None
        try:
            return msgspec.json.decode((root / FILE).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still exists and is a node's."""
        try:
            command = Path(f"/proc/{self.pid}/cmdline").read_bytes()
            if b"serve" in command.split(b"\0"):  # The process id may have been given to another program.
                os.kill(self.pid, number)
        except (FileNotFoundError, ProcessLookupError):
            return


def _overwrote(file: Path, content: bytes) -> bool:
    """Write a file in the blocks that it has, if it is there. Returns whether there was room for all."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as out:
            is_whole = out.write(content) == len(content)
            out.truncate()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        return False
    return is_whole


def ending_signals() -> list[signal.Signals]:
    """The signals that end a node, or the command that started it, in good order.

    A terminal that is closed sends SIGHUP. `nohup` has it ignored, and then it is left so.
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
    """Wait until no process holds the data directory. Returns whether that happened within `seconds`."""
    until = time.monotonic() + seconds
    while is_running(root):
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True
