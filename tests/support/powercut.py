"""Real power cuts: an ext4 image on a loop device, shut down without flushing its journal.

    with ext4_volume(tmp_path) as volume:        # tests that use it are marked `needs_root` and `needs_ext4`
        process = subprocess.Popen([..., "--data-dir", str(volume.path / "node")]) ... volume.cut(process)
        # every byte that was not synced is gone; the volume is mounted again ...

The processes are stopped, thread by thread, before the cut: without that, an fdatasync that was on its way
returned 0 for bytes that did not survive, in 8 of 100 cycles, and the process acknowledged them. What this
cannot show: sectors torn within themselves, and a disk that lies. The simulated disk does.

Source: EXT4_IOC_SHUTDOWN of the Linux kernel.
"""

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

EXT4_IOC_SHUTDOWN: Final = 0x8004_587D
NO_LOG_FLUSH: Final = 2
WAIT_SECONDS_MAX: Final = 10.0
SIZE_MIB: Final = 128
STOPPED: Final = "tT"
GONE: Final = "ZX"


class Volume:
    """A mounted ext4 file system whose power can be cut."""

    def __init__(self, directory: Path, *, size_mib: int = SIZE_MIB) -> None:
        """Make and mount the image below `directory`.

        Raises:
            subprocess.CalledProcessError: no root, no loop device or no mkfs.ext4.
        """
        self.path = directory / "volume"
        """Where it is mounted."""
        self._image = directory / "volume.img"
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(size_mib << 20)
        _command("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        self._mount()

    def cut(self, *processes: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
        """Cut the power under `processes` and all their threads, end them, and mount again.

        Children of theirs that have files open here must be given too. Their pipes stay readable, so that
        what they acknowledged before the cut can be counted.
        """
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        for process in processes:
            _await_stop(process.pid)
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(directory)
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        self._unmount()
        self._mount()

    def take_away(self) -> None:
        """Let the device answer EIO to each read and write from now on; only the page cache is left."""
        os.truncate(self._image, 0)

    def close(self) -> None:
        """Unmount and remove the image; idempotent."""
        if self._image.exists():
            self._unmount()
            self._image.unlink()

    def _mount(self) -> None:
        _command("mount", "-o", "loop", str(self._image), str(self.path))

    def _unmount(self) -> None:
        """Unmount, as soon as the kernel has let go of the files of the ended processes."""
        end = time.monotonic() + WAIT_SECONDS_MAX
        while os.path.ismount(self.path):
            done = subprocess.run(["umount", str(self.path)], capture_output=True, check=False)
            if done.returncode != 0:
                assert time.monotonic() < end, f"umount {self.path}: {done.stderr!r}"
                time.sleep(0.01)


@contextmanager
def ext4_volume(directory: Path, *, size_mib: int = SIZE_MIB) -> Iterator[Volume]:
    """A volume that is unmounted at the end."""
    volume = Volume(directory, size_mib=size_mib)
    try:
        yield volume
    finally:
        volume.close()


def _await_stop(pid: int) -> None:
    """Wait until no thread of `pid` runs: one that is inside a sync stops when the sync returns."""
    end = time.monotonic() + WAIT_SECONDS_MAX
    while any(state not in STOPPED + GONE for state in _states(pid)):
        assert time.monotonic() < end, f"process {pid} does not stop: threads are {_states(pid)}"
        time.sleep(0.001)


def _states(pid: int) -> list[str]:
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            states.append(task.joinpath("stat").read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended just now.
    return states


def _command(program: str, *arguments: str) -> None:
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    subprocess.run([path or program, *arguments], check=True, capture_output=True)
