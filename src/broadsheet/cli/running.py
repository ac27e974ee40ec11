"""Running: the file in which a node's process names itself, for `up`, `down` and `status`.

The file is only a hint: the lock of the data directory alone tells whether the node runs.
"""

import errno
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
POLL_SECONDS: Final = 0.02


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a node."""

    node: str
    pid: int
    addresses: dict[str, str]
    """The address (`host:port`) of each door; empty until the node is ready."""

    def write(self, root: Path) -> bool:
        """Write the file into the data directory. Returns whether there was room for it.

        On a full disk it overwrites the former file, which has about as many bytes.
        """
        content, new = msgspec.json.encode(self) + b"\n", root / f"{FILE}.new"
        try:
            new.write_bytes(content)
            new.replace(root / FILE)
        except OSError as error:
            if error.errno not in NO_SPACE:
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
            if error.errno not in (*NO_SPACE, errno.ENOENT):
                raise
            return False
        return is_whole

    @staticmethod
    def forget(root: Path) -> None:
        """Remove the file, when the node ends."""
        (root / FILE).unlink(missing_ok=True)

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
