"""Production clocks and timers: CLOCK_BOOTTIME, the kernel's boot id, and the running loop.

A timer never fires early: uvloop counts whole milliseconds from a cached reading, so a call that comes too
soon is armed again. Linux only; elsewhere there is no boot id, and a log could not tell a reboot from a
restart.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, cast

from broadsheet.base.time import SECOND, Duration, Instant, WallTime
from broadsheet.errors import ConfigError

BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
LATE_NS: Final = 500_000
"""Added when a timer is armed again, so that rounding down to a millisecond cannot bring it early twice."""


class SystemTime:
    """The clocks of this machine."""

    def __init__(self) -> None:
        """Read the kernel's boot id, once.

        Raises:
            ConfigError: this is not Linux.
        """
        try:
            self._boot_id = BOOT_ID_PATH.read_text(encoding="ascii").strip()
        except OSError as error:
            raise ConfigError(f"no boot id at {BOOT_ID_PATH}: Broadsheet runs on Linux only") from error
        self.now = cast(Callable[[], Instant], partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME))
        """The monotonic clock, suspended time included. Bound: each delivery reads it."""
        self.wall = cast(Callable[[], WallTime], time.time_ns)
        """The wall clock, which may jump either way."""

    def boot_id(self) -> str:
        """The kernel's id of this boot."""
        return self._boot_id


class LoopTimer:
    """One pending call on a loop. `due` is on the loop's own monotonic clock, in nanoseconds."""

    __slots__ = ("_callback", "_due", "_handle", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, delay: Duration, callback: Callable[[], None]
    ) -> None:
        self._loop, self._callback = loop, callback
        self._due = time.monotonic_ns() + delay
        self._handle = loop.call_later(delay / SECOND, self._fire)

    def cancel(self) -> None:
        """Make sure that the call does not come; harmless when it has."""
        self._handle.cancel()

    def _fire(self) -> None:
        early = self._due - time.monotonic_ns()
        if early > 0:
            self._handle = self._loop.call_later((early + LATE_NS) / SECOND, self._fire)
            return
        self._callback()


class LoopTimers:
    """Calls on one asyncio or uvloop loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.call_soon = cast(Callable[[Callable[[], None]], None], loop.call_soon)
        """Call a callback once the callbacks that are ready now have run. Bound: each turn asks for some."""

    def call_after(self, delay: Duration, callback: Callable[[], None]) -> LoopTimer:
        """Call `callback` no earlier than `delay` from now."""
        return LoopTimer(self._loop, delay, callback)
