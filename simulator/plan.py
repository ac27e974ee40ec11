"""Plans: what happens to a cluster, and when. A seed makes a plan; a plan alone makes a run.

Times are nanoseconds of world time; intensities are integers whose unit the kind names. A plan is JSON on
disk, with a format version, and is replayable by itself: regressions store plans, since a seed means
something else after the next commit. Nothing here draws or performs faults (`faults.py` does).
"""

from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from broadsheet.errors import ConfigError

FORMAT: Final = 2
"""2 added `Fault.on` and `Fault.passage`; plans of format 1 are read as they are."""


class Tier(Enum):
    """Which simulator runs it."""

    MACHINES = 1
    SERVICES = 2
    CRASHES = 3
    """Crash states of recorded histories (`crash_episode.py`)."""


class Kind(Enum):
    """What is done to the cluster.

    `target` grammar: `a` a node; `a,b|c` both ways; `a,b>c` one way; `*` all.
    """

    KILL = "kill"
    """kill -9 of the process; the page cache lives. It restarts `lasts_ns` later."""
    STOP = "stop"
    """The process is asked to end, as by SIGTERM, and has to; it restarts `lasts_ns` after it has."""
    POWER_CUT = "power_cut"
    """The machine loses power: unsynced bytes are lost or torn. It restarts `lasts_ns` later."""
    WIPE = "wipe"
    """Power cut, and the disk comes back empty: a new incarnation."""
    CRASH_IN_IO = "crash_in_io"
    """A power cut in the middle of the `amount`-th disk operation from now."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT `lasts_ns` later: timers and messages wait, then come at once."""
    PARTITION = "partition"
    """Nothing passes between the sides (or one way, by the target) for `lasts_ns`."""
    CLOG = "clog"
    """Everything between the sides waits `amount` nanoseconds longer."""
    DROP = "drop"
    """`amount` datagrams in a million are lost."""
    DUPLICATE = "duplicate"
    """`amount` datagrams in a million come twice."""
    RESET = "reset"
    """Standing connections between the sides are reset."""
    HALF_OPEN = "half_open"
    """Standing connections between the sides die without either end being told."""
    SYNC_EIO = "sync_eio"
    """The next sync fails; reads return the lost bytes until reboot, and the sync after it succeeds."""
    READ_EIO = "read_eio"
    """The next read fails, and every other one for `lasts_ns`. Nothing is lost: then they work again."""
    DISK_FULL = "disk_full"
    """ENOSPC for `lasts_ns`, sometimes after a part was written."""
    DISK_FLAPS = "disk_flaps"
    """Each write that needs space is refused with a chance of `amount` in a million, for `lasts_ns`."""
    SHORT_WRITE = "short_write"
    """The next write reaches the cache in two parts."""
    SLOW_SYNC = "slow_sync"
    """Syncs take `amount` nanoseconds longer."""
    LYING_SYNC = "lying_sync"
    """Syncs return before the bytes are safe, for `lasts_ns`. Damage."""
    BIT_FLIP = "bit_flip"
    """`amount` bits of synced bytes flip. Damage."""
    STALE_SECTOR = "stale_sector"
    """One sector of the next sync is not written. Damage."""
    MISDIRECTED_WRITE = "misdirected_write"
    """One sector of the next sync lands elsewhere. Damage."""
    CLOCK_DRIFT = "clock_drift"
    """The node's clocks run `amount` parts in a million fast (slow where negative), for `lasts_ns`."""
    CLOCK_JUMP = "clock_jump"
    """The wall clock jumps by `amount` nanoseconds."""
    ACTION = "action"
    """The workload's own: `Workload.act` performs it (an operator's command, a change of members)."""


DAMAGE: Final = (Kind.WIPE, Kind.LYING_SYNC, Kind.BIT_FLIP, Kind.STALE_SECTOR, Kind.MISDIRECTED_WRITE)
"""What counts against `Budget.damaged_nodes_max`."""

CRASHES: Final = (Kind.KILL, Kind.STOP, Kind.POWER_CUT, Kind.CRASH_IN_IO, Kind.PAUSE)
NETWORK: Final = (Kind.PARTITION, Kind.CLOG, Kind.DROP, Kind.DUPLICATE, Kind.RESET, Kind.HALF_OPEN)
DISK: Final = (
    Kind.SYNC_EIO,
    Kind.READ_EIO,
    Kind.DISK_FULL,
    Kind.DISK_FLAPS,
    Kind.SHORT_WRITE,
    Kind.SLOW_SYNC,
)
CLOCKS: Final = (Kind.CLOCK_DRIFT, Kind.CLOCK_JUMP)

MEETS: Final = (
    Kind.KILL,
    Kind.STOP,
    Kind.POWER_CUT,
    Kind.WIPE,
    Kind.CRASH_IN_IO,
    Kind.PARTITION,
    Kind.SYNC_EIO,
    Kind.DISK_FULL,
    Kind.DISK_FLAPS,
)
"""The crashes, partitions and disk faults that make a seed count where they meet an open operation
(simulation.3)."""


class Fault(msgspec.Struct, frozen=True):
    """One thing that is done to the cluster."""

    at_ns: int
    kind: Kind
    target: str
    lasts_ns: int = 0
    amount: int = 0
    action: str = ""
    """For `ACTION`: what the workload shall do."""
    on: str = ""
    """`node:moment`: not at `at_ns`, but when the node passes that moment afterwards (`moments.py`)."""
    passage: int = 1
    """For `on`: at which passage, counted from `at_ns`."""


class Budget(msgspec.Struct, frozen=True):
    """What the properties of a workload survive (docs/guarantees.md). No plan exceeds it."""

    kinds: tuple[Kind, ...] = (*CRASHES, *NETWORK, *DISK, *CLOCKS)
    """Faults that may happen, any number of times."""
    damage: tuple[Kind, ...] = ()
    """Damage that may happen, to at most `damaged_nodes_max` nodes."""
    damaged_nodes_max: int = 0
    drift_ppm_max: int = 200_000
    """How far a clock may run fast or slow; half of the bound where drift between two is bounded (kv.22)."""


class Plan(msgspec.Struct, frozen=True):
    """All that a run needs."""

    workload: str
    tier: Tier
    seed: int
    knobs: dict[str, int]
    faults: tuple[Fault, ...]
    safety_ns: int = 6_000_000_000
    """How long faults may happen."""
    liveness_ns: int = 60_000_000_000
    """How long after healing every client must have had an operation acknowledged."""
    format: int = FORMAT
    found: str = ""
    """Where it came from: commit, and one line on what it found."""
    digest: str = ""
    """The digest of the run that wrote it; only comparable on the same commit."""


def save(plan: Plan, path: Path) -> None:
    """Write `plan` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")


def load(path: Path) -> Plan:
    """Read a plan.

    Raises:
        ConfigError: it is not a plan, or one of a newer format. The message says which field.
    """
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    except (msgspec.MsgspecError, OSError) as error:
        raise ConfigError(f"{path} is not a fault plan: {error}") from error
    if plan.format > FORMAT:
        raise ConfigError(f"{path} has plan format {plan.format}, this build reads up to {FORMAT}")
    return plan
