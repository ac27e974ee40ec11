"""Group commit of 256 writers x 4 KiB: the log against a bare write+fdatasync loop, in one run.

    python -m benchmarks.wal [--directory DIR] [--seconds S] [--json]

Both write batches of the same payloads to a prefilled file on the same disk, in turns of a tenth of a
second, many times over; what counts is the median of the ratios of neighbours, with its quartiles. All
256 writers append again as soon as they are acknowledged, so nothing overlaps: what the log does for a
batch stands before its write. Beside the rates stand the CPU microseconds per append of both sides, of all
threads, and where the log's go: in `append`, in sealing and encoding, in acknowledging and trimming.
`many_*` are the same records from one caller, 256 in each call of `append_many`.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from broadsheet.base.types import LogStreamId, Offset
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.loop import run
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import LoopTimers, SystemTime
from broadsheet.runtime.turn import Turn
from broadsheet.wal import Log, WALConfig
from broadsheet.wal.batch import Batch

WRITERS = 256
PAYLOAD_BYTES = 4096
KEPT = 64
"""Records that each stream keeps; older ones are trimmed."""
SEGMENT_BYTES = 64 << 20
TARGET_RATIO = 0.7
TOGETHER = LogStreamId(WRITERS + 1)


class Appenders:
    """256 closed loops: each appends again when it was acknowledged."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._payloads = [(os.urandom(PAYLOAD_BYTES),) for _ in range(WRITERS)]
        self._done = [self._loop_of(writer) for writer in range(WRITERS)]
        self._left = self.appends = 0
        self._is_over = False
        self._over = asyncio.Event()

    async def run(self, seconds: float) -> float:
        """Append for a while; appends per second."""
        self.appends, self._left, self._is_over = 0, WRITERS, False
        self._over = asyncio.Event()
        begun = time.perf_counter()
        asyncio.get_running_loop().call_later(seconds, self._end)
        for writer in range(WRITERS):
            self._log.append(LogStreamId(writer + 1), self._payloads[writer], done=self._done[writer])
        await self._over.wait()
        return self.appends / (time.perf_counter() - begun)

    def _end(self) -> None:
        self._is_over = True

    def _loop_of(self, writer: int) -> Callable[[], None]:
        log, stream, payload = self._log, LogStreamId(writer + 1), self._payloads[writer]

        def done() -> None:
            self.appends += 1
            if self._is_over:
                self._left -= 1
                if self._left == 0:
                    self._over.set()
                return
            offset = log.append(stream, payload, done=done)
            if offset % KEPT == 0 and offset > KEPT:
                log.trim(stream, Offset(offset - KEPT))

        return done


class Together:
    """One closed loop: as many records in one call as the writers have, again when they were acknowledged."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(WRITERS)]
        self.appends = 0
        self._until = 0.0
        self._over = asyncio.Event()
        for stream in log.streams():  # They append no more, and would pin the oldest segment.
            log.trim(stream, log.next_offset(stream))

    async def run(self, seconds: float) -> float:
        """Append for a while; appends per second."""
        self.appends, self._over = 0, asyncio.Event()
        begun = time.perf_counter()
        self._until = begun + seconds
        self._log.append_many(TOGETHER, self._payloads, done=self._done)
        await self._over.wait()
        return self.appends / (time.perf_counter() - begun)

    def _done(self) -> None:
        self.appends += WRITERS
        if time.perf_counter() >= self._until:
            self._over.set()
            return
        offset = self._log.append_many(TOGETHER, self._payloads, done=self._done)
        self._log.trim(TOGETHER, offset)


class Split:
    """CPU of the loop's thread, by what the log was doing."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        self.calls: dict[str, int] = {}

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Time the log's functions while this lasts. It costs a microsecond per append: not for ratios."""
        wrapped = [(Log, "append"), (Log, "trim"), (Batch, "seal"), (Batch, "encode")]
        plain = [getattr(owner, name) for owner, name in wrapped]
        for (owner, name), function in zip(wrapped, plain, strict=True):
            setattr(owner, name, self._timed(name, function))
        try:
            yield
        finally:
            for (owner, name), function in zip(wrapped, plain, strict=True):
                setattr(owner, name, function)

    def _timed(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        self.ns[name] = self.calls[name] = 0
        empty = min(_clock() for _ in range(1000))

        def timed(*arguments: object, **options: object) -> object:
            begun = time.thread_time_ns()
            result = function(*arguments, **options)
            self.ns[name] += time.thread_time_ns() - begun - empty
            self.calls[name] += 1
            return result

        return timed

    def per_append(self) -> dict[str, float]:
        """Microseconds of each, per append."""
        return {
            f"us_{name}": round(ns / max(1, self.calls["append"]) / 1000, 2) for name, ns in self.ns.items()
        }


def _clock() -> int:
    """What reading the clock twice costs."""
    return -time.thread_time_ns() + time.thread_time_ns()


def bare(fd: int, payloads: list[bytes], seconds: float) -> tuple[float, int]:
    """Write and sync the same batches in a loop, in place, in a file that is filled; appends per second."""
    size, at, appends = WRITERS * PAYLOAD_BYTES, 0, 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        os.pwritev(fd, payloads, at)
        os.fdatasync(fd)
        appends += WRITERS
        at = (at + size) % (SEGMENT_BYTES - size)
    return appends / (time.perf_counter() - begun), appends


def fill(path: Path) -> int:
    """A file of zeros, durable."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for at in range(0, SEGMENT_BYTES, 1 << 20):
        os.pwrite(fd, bytes(1 << 20), at)
    os.fsync(fd)
    return fd


async def measure(directory: Path, seconds: float, rounds: int) -> dict[str, object]:
    """Interleave both, many times."""
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
    while log.status().lap_head < 6:  # Every segment once: the first pass pays for fresh pages.
        await appenders.run(seconds)
    result = await _compare(appenders, fd, payloads, seconds=seconds, rounds=rounds)
    many = await _compare(Together(log), fd, payloads, seconds=seconds, rounds=rounds)
    split = Split()
    with split.planted():
        # `done` calls the log by its attributes, which are bound anew in another set of writers.
        await Appenders(log).run(1.0)
    status = log.status()
    os.close(fd)
    await scope.close()
    disk.close()
    return {
        **result,
        "many_appends_per_second": many["log_appends_per_second"],
        "many_ratio": many["ratio"],
        "many_ratio_quartiles": many["ratio_quartiles"],
        "many_cpu_us_per_append": many["log_cpu_us_per_append"],
        **split.per_append(),
        "bytes_per_batch": round(status.synced_bytes / status.batch_count),
    }


async def _compare(
    appenders: Appenders | Together, fd: int, payloads: list[bytes], *, seconds: float, rounds: int
) -> dict[str, object]:
    logs, bares, ratios = [], [], []
    log_cpu = bare_cpu = 0.0
    log_appends = bare_appends = 0
    gc.disable()  # The log makes no cycles; what the harness has loaded is not to be walked meanwhile.
    for number in range(rounds):
        rate, count, cpu = 0.0, 0, time.process_time()
        if number % 2:
            rate, count = bare(fd, payloads, seconds)
            bare_cpu += time.process_time() - cpu
        cpu = time.process_time()
        logs.append(await appenders.run(seconds))
        log_cpu += time.process_time() - cpu
        log_appends += appenders.appends
        cpu = time.process_time()
        if not number % 2:
            rate, count = bare(fd, payloads, seconds)
            bare_cpu += time.process_time() - cpu
        bares.append(rate)
        bare_appends += count
        ratios.append(logs[-1] / bares[-1])
    gc.enable()
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "writers": WRITERS,
        "payload_bytes": PAYLOAD_BYTES,
        "rounds": rounds,
        "log_appends_per_second": round(statistics.median(logs)),
        "bare_appends_per_second": round(statistics.median(bares)),
        "ratio": round(middle, 3),
        "ratio_quartiles": [round(low, 3), round(high, 3)],
        "target": TARGET_RATIO,
        "log_cpu_us_per_append": round(log_cpu / log_appends * 1e6, 2),
        "bare_cpu_us_per_append": round(bare_cpu / bare_appends * 1e6, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=41)
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
