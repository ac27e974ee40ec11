"""Group commit of 256 writers x 4 KiB: the log against a bare write+fdatasync loop, in one run.

    python -m benchmarks.wal [--directory DIR] [--seconds S] [--json]

Both write the same bytes per batch to a prefilled file on the same disk, in turns of a few tenths of a
second, from the same thread; what counts is the ratio. It prints the microseconds per `append()` and
where they go.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from broadsheet.base.types import LogStreamId, Offset
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.loop import run
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import LoopTimers, SystemTime
from broadsheet.runtime.turn import Turn
from broadsheet.wal import Log, WALConfig

WRITERS = 256
PAYLOAD_BYTES = 4096
SEGMENT_BYTES = 64 << 20
TARGET_RATIO = 0.7


class Appenders:
    """256 closed loops: each appends again when it was acknowledged."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(WRITERS)]
        self.appends = 0
        self.append_ns = 0
        self._left = 0
        self._ready: list[int] = []
        self._over = asyncio.Event()

    async def run(self, seconds: float) -> float:
        """Append for a while; appends per second."""
        self.appends, self._over = 0, asyncio.Event()
        begun = time.perf_counter()
        self._end = begun + seconds
        self._left = WRITERS
        for writer in range(WRITERS):
            self._append(writer)
        await self._over.wait()
        return self.appends / (time.perf_counter() - begun)

    def _append(self, writer: int) -> None:
        stream = LogStreamId(writer + 1)
        begun = time.perf_counter_ns()
        offset = self._log.append(stream, (self._payloads[writer],), done=lambda: self._done(writer))
        self.append_ns += time.perf_counter_ns() - begun
        if offset % 64 == 0 and offset > 64:
            self._log.trim(stream, Offset(offset - 64))

    def _done(self, writer: int) -> None:
        self.appends += 1
        if time.perf_counter() < self._end:
            self._append(writer)
            return
        self._left -= 1
        if self._left == 0:
            self._over.set()


def bare(fd: int, payloads: list[bytes], seconds: float) -> float:
    """Write and sync the same batches in a loop, in place, in a file that is filled; appends per second."""
    size, at, appends = WRITERS * PAYLOAD_BYTES, 0, 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        os.pwritev(fd, payloads, at)
        os.fdatasync(fd)
        appends += WRITERS
        at = (at + size) % (SEGMENT_BYTES - size)
    return appends / (time.perf_counter() - begun)


def fill(path: Path) -> int:
    """A file of zeros, durable."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for at in range(0, SEGMENT_BYTES, 1 << 20):
        os.pwrite(fd, bytes(1 << 20), at)
    os.fsync(fd)
    return fd


async def measure(directory: Path, seconds: float, rounds: int) -> dict[str, object]:
    """Interleave both, a few times."""
    loop = asyncio.get_running_loop()

    def crash(error: BaseException) -> None:
        raise SystemExit(f"the log failed: {error}")

    disk = LocalDisk(directory)
    scope = Scope("bench", crash=crash)
    log = await Log.open(
        disk, "wal", config=WALConfig(segment_bytes=SEGMENT_BYTES), time=SystemTime(),
        random=random.Random(), turn=Turn(LoopTimers(loop)), scope=scope, crash=crash,
    )  # fmt: skip
    while log.status().segment_free_count < 3:  # noqa: ASYNC110 - filled once, in the background.
        await asyncio.sleep(0.05)
    fd = fill(directory / "bare")
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(WRITERS)]
    appenders = Appenders(log)
    await appenders.run(1.0)  # Every segment once: the first pass pays for fresh pages.
    appenders.append_ns = 0
    logs, bares, ratios, total = [], [], [], 0
    cpu = time.process_time()
    cpu_log = 0.0
    for _ in range(rounds):
        bares.append(bare(fd, payloads, seconds))
        cpu = time.process_time()
        logs.append(await appenders.run(seconds))
        cpu_log += time.process_time() - cpu
        total += appenders.appends
        ratios.append(logs[-1] / bares[-1])
    status = log.status()
    os.close(fd)
    await scope.close()
    disk.close()
    return {
        "writers": WRITERS,
        "payload_bytes": PAYLOAD_BYTES,
        "log_appends_per_second": round(statistics.median(logs)),
        "bare_appends_per_second": round(statistics.median(bares)),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "target": TARGET_RATIO,
        "append_us": round(appenders.append_ns / total / 1000, 2),
        "cpu_us_per_append": round(cpu_log / total * 1e6, 2),
        "bytes_per_batch": round(status.synced_bytes / status.batch_count),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        result = run(measure(Path(directory), options.seconds, options.rounds))
    if options.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:26} {value}")


if __name__ == "__main__":
    main()
