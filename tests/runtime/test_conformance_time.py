"""What every clock and every timer keeps: the words of `ports.Time` and `ports.Timers`."""

import asyncio
from functools import partial
from pathlib import Path

from broadsheet.base.time import MILLISECOND, Duration
from tests.runtime.conformance import TIMES, Clocks, Implementation, over


@over(TIMES)
def test_the_monotonic_clock_never_goes_back(implementation: Implementation, tmp_path: Path) -> None:
    """Deadlines are computed from it."""

    async def story(clocks: Clocks) -> None:
        readings = []
        for _ in range(100):
            readings.append(clocks.time.now())
            await asyncio.sleep(0)

        assert readings == sorted(readings)
        assert all(isinstance(reading, int) for reading in readings)
        assert clocks.time.wall() > 0

    implementation.run(story, tmp_path)


@over(TIMES)
def test_the_boot_id_stays_while_we_run(implementation: Implementation, tmp_path: Path) -> None:
    """Recovery compares it to know whether the page cache lived on."""

    async def story(clocks: Clocks) -> None:
        assert clocks.time.boot_id() == clocks.time.boot_id()
        assert clocks.time.boot_id()

    implementation.run(story, tmp_path)


@over(TIMES)
def test_a_timer_never_fires_early(implementation: Implementation, tmp_path: Path) -> None:
    """A lease that ends a millisecond early is held twice."""

    async def story(clocks: Clocks) -> None:
        late = []
        done = asyncio.Event()
        delays = [Duration(delay) for delay in (0, 1, 400_000, 999_999, 1_500_000, 7_300_000, 20_000_000)]
        for delay in delays:
            start = clocks.time.now()

            def fired(start: int = start, delay: int = delay) -> None:
                late.append(clocks.time.now() - start - delay)
                if len(late) == len(delays):
                    done.set()

            clocks.timers.call_after(delay, fired)
        await done.wait()

        assert min(late) >= 0

    implementation.run(story, tmp_path)


@over(TIMES)
def test_a_cancelled_timer_does_not_fire(implementation: Implementation, tmp_path: Path) -> None:
    """The host has one timer and moves it."""

    async def story(clocks: Clocks) -> None:
        fired: list[str] = []
        done = asyncio.Event()
        clocks.timers.call_after(Duration(2 * MILLISECOND), lambda: fired.append("cancelled")).cancel()
        kept = clocks.timers.call_after(Duration(3 * MILLISECOND), lambda: fired.append("kept"))
        clocks.timers.call_after(Duration(12 * MILLISECOND), done.set)
        await done.wait()
        kept.cancel()

        assert fired == ["kept"]

    implementation.run(story, tmp_path)


@over(TIMES)
def test_timers_fire_in_the_order_of_their_times(implementation: Implementation, tmp_path: Path) -> None:
    """Far enough apart, at least: a later deadline does not overtake."""

    async def story(clocks: Clocks) -> None:
        fired: list[int] = []
        done = asyncio.Event()
        for delay in (30, 10, 20):
            clocks.timers.call_after(Duration(delay * MILLISECOND), partial(fired.append, delay))
        clocks.timers.call_after(Duration(45 * MILLISECOND), done.set)
        await done.wait()

        assert fired == [10, 20, 30]

    implementation.run(story, tmp_path)


@over(TIMES)
def test_call_soon_runs_after_what_is_ready_in_order(implementation: Implementation, tmp_path: Path) -> None:
    """The end of a turn is built on it."""

    async def story(clocks: Clocks) -> None:
        ran: list[str] = []

        def first() -> None:
            ran.append("first")
            clocks.timers.call_soon(lambda: ran.append("third"))

        clocks.timers.call_soon(first)
        clocks.timers.call_soon(lambda: ran.append("second"))
        assert ran == []
        for _ in range(3):
            await asyncio.sleep(0)

        assert ran == ["first", "second", "third"]

    implementation.run(story, tmp_path)
