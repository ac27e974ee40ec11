"""What the ground costs: a host per event, the hop to a disk's writer, and the way back.

    python benchmarks/ground.py [--directory DIR] [--seconds S]

Each figure is the lowest of several rounds, next to the same work without the layer in the same run.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from broadsheet.base.machine import Effect, Event
from broadsheet.base.time import Instant
from broadsheet.observe.story import Story
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.host import Host
from broadsheet.runtime.loop import run
from broadsheet.runtime.time import LoopTimers, SystemTime

EVENTS = 20_000
ROUNDS = 7


class Ran(Event, frozen=True):
    """One run of records arrived."""

    count: int


class Persist(Effect, frozen=True):
    """Write it."""

    token: int


class Counter:
    """The least machine that does something: one effect per event."""

    def __init__(self) -> None:
        self.state = "open"
        self.tokens = 0

    def step(self, event: Event, now: Instant) -> list[Persist]:
        """Wish for one write."""
        self.tokens += 1
        return [Persist(token=self.tokens)]

    def deadline(self) -> Instant | None:
        """Never."""
        return None

    def check(self) -> None:
        """Nothing can be wrong."""


def _perform(_effect: Persist) -> None:
    """Take it."""


def _crash(error: BaseException, _story: Story) -> None:
    raise error


def _lowest(work: Callable[[], None], count: int) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        work()
        times.append((time.perf_counter_ns() - start) / count)
    return min(times)


def bench_host(timers: LoopTimers) -> None:
    """Nanoseconds per event: machine and performer alone, then hosted, one by one and by reads of 16."""
    clock = SystemTime()
    events = [Ran(count=number) for number in range(EVENTS)]
    machine = Counter()

    def alone() -> None:
        step = machine.step
        for event in events:
            for effect in step(event, Instant(0)):
                _perform(effect)

    host = Host(
        Counter(), {Persist: _perform}, time=clock, timers=timers, crash=_crash, story=Story("counter")
    )

    def hosted() -> None:
        deliver = host.deliver
        for event in events:
            deliver(event)

    bare, full = _lowest(alone, EVENTS), _lowest(hosted, EVENTS)
    print(f"host deliver {full:7.0f} ns/event, of which machine and performer {bare:.0f}")


async def bench_persist(directory: Path, seconds: float) -> None:
    """Microseconds: persist, the same write and fdatasync on the loop's own thread, and an empty hop."""
    disk = LocalDisk(directory)
    file = disk.open("log", create=True, exclusive=True)
    file.allocate(8 << 20)
    file.sync()
    for size in (4 << 10, 64 << 10, 1 << 20):
        parts: Sequence[bytes] = [os.urandom(size)]
        away: list[int] = []
        inline: list[int] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.perf_counter_ns()
            await file.persist(0, parts)
            middle = time.perf_counter_ns()
            file.write_at(0, parts)
            file.sync()
            away.append(middle - start)
            inline.append(time.perf_counter_ns() - middle)
        print(
            f"persist {size >> 10:5} KiB {statistics.median(away) / 1e3:8.1f} us, "
            f"write and fdatasync alone {statistics.median(inline) / 1e3:8.1f} us"
        )
    hops = []
    for _ in range(3_000):
        start = time.perf_counter_ns()
        await disk.run(int)
        hops.append(time.perf_counter_ns() - start)
    print(f"hop to a thread and back  {statistics.median(hops) / 1e3:8.1f} us")
    file.close()
    disk.close()


async def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--directory", type=Path, default=None, help="where to write; the default is a temporary one"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="per size")
    arguments = parser.parse_args()
    bench_host(LoopTimers(asyncio.get_running_loop()))
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        await bench_persist(Path(directory), arguments.seconds)


if __name__ == "__main__":
    run(main())
