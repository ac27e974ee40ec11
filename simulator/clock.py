"""Clock: the clocks of a simulated node, which drift, jump, and start anew with each boot of its kernel.

`ppm` is the drift in parts per million. The monotonic clock drifts and never jumps; the wall clock does
both. After a power cut the kernel boots anew: the boot id is another one, and the monotonic clock starts at
another value. After a kill both stay.
"""

from collections.abc import Callable
from typing import Final

from broadsheet.base.buggify import buggify
from broadsheet.base.time import Duration, Instant, WallTime
from broadsheet.ports import Timer
from simulator.entropy import Draws
from simulator.world import Call, Life, World

MILLION: Final = 1_000_000
LATE_NS: Final = 40_000_000
BUSY_NS: Final = 3_000_000
"""How long a turn of the loop may take: what it has put off waits so long, and others come in between."""
EPOCH_NS: Final = 1_750_000_000_000_000_000
"""Wall time at the beginning of every run."""


class NodeClock:
    """One machine's clocks, across the lives of its processes."""

    def __init__(self, world: World, node: str) -> None:
        self._world = world
        self._draws = Draws(world.seed, node, "clock")
        self._base_world = self._base_node = 0
        self._ppm = 0
        self._base_wall = EPOCH_NS
        self.boot_id = ""
        self.reboot()

    def reboot(self) -> None:
        """The kernel started: a new boot id, and an unrelated monotonic clock."""
        self.boot_id = f"{self._draws.bits():016x}"
        self._base_node, self._base_wall = self._draws.below(1 << 40) + 1, self.wall()
        self._base_world = self._world.now

    def drift(self, ppm: int) -> None:
        """Run that much too fast from now on."""
        self._base_node, self._base_wall, self._base_world = self.now(), self.wall(), self._world.now
        self._ppm = ppm

    def jump(self, by_ns: int) -> None:
        """The wall clock was set."""
        self._base_wall += by_ns

    def now(self) -> int:
        """The monotonic clock."""
        passed = self._world.now - self._base_world
        return self._base_node + passed + passed * self._ppm // MILLION

    def wall(self) -> int:
        """The wall clock."""
        passed = self._world.now - self._base_world
        return self._base_wall + passed + passed * self._ppm // MILLION

    def world_time(self, instant: int) -> int:
        """When the monotonic clock shows `instant`, if its drift stays; rounded up."""
        passed = instant - self._base_node
        return self._base_world - (-passed * MILLION // (MILLION + self._ppm))


class SimTime:
    """The `Time` port of one node."""

    __slots__ = ("_clock",)

    def __init__(self, world: World, clock: NodeClock) -> None:
        self._clock = clock

    def now(self) -> Instant:
        """The node's monotonic clock."""
        return Instant(self._clock.now())

    def wall(self) -> WallTime:
        """The node's wall clock."""
        return WallTime(self._clock.wall())

    def boot_id(self) -> str:
        """The node's kernel boot."""
        return self._clock.boot_id


class SimTimers:
    """The `Timers` port of one life."""

    __slots__ = ("_clock", "_held", "_life", "_world")

    def __init__(self, world: World, life: Life, clock: NodeClock) -> None:
        self._world, self._life, self._clock = world, life, clock
        self._held: list[Call] | None = None
        """What comes when a turn of the loop that takes long has ended, in order."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call after all that is ready now, or somewhat later where the loop is busy."""
        call = Call(self._life, callback, ())
        if self._held is not None:
            self._held.append(call)
        elif buggify("timer.busy"):
            self._held = [call]
            self._world.at(self._world.now + BUSY_NS, self._life, self._release)
        else:
            self._world.push_ready(call)

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for call in held:
            self._world.push_ready(call)

    def call_after(self, delay: Duration, callback: Callable[[], None]) -> Timer:
        """Call when the node's clock has advanced by `delay`."""
        clock = self._clock
        late = LATE_NS if buggify("timer.late") else 0  # Never early; late, where the loop was busy.
        return self._world.at(clock.world_time(clock.now() + delay) + late, self._life, callback)
