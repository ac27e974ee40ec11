"""Log: the record log of tier 1, which keeps the promises of the WAL without its bytes.

Positions count records from 0. Appends of one instant are one batch; one batch is on its way while the next
collects.
    record: COLLECTING --batch--> IN_FLIGHT --synced--> DURABLE; a crash keeps a prefix of what was in flight.
A lying disk acknowledges what only a power cut's survivors keep. Damage below the durable end quarantines
the log (W6), unless what was damaged is void or trimmed. Generations rise; a reset or trim that was not
synced is undone by a crash, as the WAL's is. It does not do: sectors, checksums, segments; those are the
WAL's own tests over `SimDisk`. `tests/simulator/test_log.py` tells the same stories of both.
Source: W1-W9; log.1-19.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from broadsheet.errors import LocalProtocolError
from simulator.entropy import Draws
from simulator.health import Health
from simulator.world import Life, World

SYNC_NS: Final = 150_000
"""What a healthy sync takes at least."""


class Truncate(msgspec.Struct, frozen=True):
    """A record that says: everything from `count` on is void."""

    count: int
    generation: int = 0


class Reset(msgspec.Struct, frozen=True):
    """A record that says: everything is void, and the log goes on at `next_offset`."""

    next_offset: int
    generation: int


class Raise(msgspec.Struct, frozen=True):
    """What an append of a greater generation says beside its record."""

    generation: int


class Trim(msgspec.Struct, frozen=True):
    """What a batch says of records that were given up."""

    below: int


class _State(msgspec.Struct):
    """What a log's contents come to."""

    first: int
    records: list[Any]
    generation: int
    is_quarantined: bool


class _Kept(msgspec.Struct):
    """One log's contents, across lives."""

    durable: list[Any] = []
    """Safe records and truncations, in order."""
    lied: int = 0
    """How many at the end of `durable` a power cut may still take."""
    damaged_at: int | None = None
    """A record below the durable end that was damaged."""
    is_tail_cut: bool = False


class LogStore:
    """All logs of one node, across its lives."""

    def __init__(
        self,
        world: World,
        node: str,
        health: Health,
        *,
        crash: Callable[[Life, str], None],
        cut_power: Callable[[], None],
    ) -> None:
        self.world, self.health, self._crash, self.cut_power = world, health, crash, cut_power
        self.incarnation = 0
        self.draws = Draws(world.seed, node, "log")
        self._kept: dict[str, _Kept] = {}
        self._open: dict[str, SimLog] = {}

    def open(self, name: str, life: Life) -> "SimLog":
        """The log `name`, recovered for `life`."""
        log = self._open.get(name)
        if log is None or log.life is not life:
            log = self._open[name] = SimLog(self, self._kept.setdefault(name, _Kept()), life)
        return log

    def exit(self, life: Life, reason: str) -> None:
        """The process of `life` ends itself."""
        self._crash(life, reason)

    def crash(self, *, power_cut: bool) -> None:
        """Keep a prefix of each batch in flight; a power cut also takes what was lied about."""
        for log in self._open.values():
            log.crash(power_cut=power_cut)
        self._open.clear()

    def wipe(self) -> None:
        """The disk is new."""
        self._kept.clear()
        self._open.clear()
        self.incarnation += 1

    def damage(self) -> bool:
        """Damage one durable record of one log; False where there is none."""
        found = [kept for kept in self._kept.values() if len(kept.durable) > kept.lied]
        if not found:
            return False
        kept = found[self.draws.below(len(found))]
        kept.damaged_at = self.draws.below(len(kept.durable))
        return True


class SimLog:
    """One log in one life."""

    def __init__(self, store: LogStore, kept: _Kept, life: Life) -> None:
        self.life = life
        self._store, self._kept = store, kept
        state = _replay(kept.durable, kept.damaged_at)
        self.is_quarantined = state.is_quarantined
        """A record that was durable is damaged: the node may not vote, lead or serve from this log (W6)."""
        self.tail_cut = kept.is_tail_cut
        """A record with a good header was cut: an acknowledged one may have been lost."""
        self.records: list[Any] = state.records
        """What was recovered, truncations and trims applied. It does not grow."""
        self.first_offset = state.first
        """The position of the first record that was not given up."""
        self.next_offset = state.first + len(state.records)
        """Where the next append goes."""
        self.generation = state.generation
        self._collecting: list[tuple[Any, Callable[[], None]]] = []
        self._flying: list[tuple[Any, Callable[[], None]]] = []

    def append(self, record: object, done: Callable[[], None], *, generation: int = 0) -> bool:
        """Append; `done` is called when it and all before it are durable.

        Args:
            generation: not below the log's; 0 is taken as the log's own.

        Returns:
            False where the disk is full: nothing was written, and `done` will not be called.

        Raises:
            LocalProtocolError: a generation below the log's.
        """
        if generation and generation < self.generation:
            raise LocalProtocolError(f"the log is at generation {self.generation}, not {generation}")
        if self._store.health.refuses():
            return False
        if generation > self.generation:
            self.generation = generation
            self._queue(Raise(generation), _nobody)
        self.next_offset += 1
        self._queue(record, done)
        return True

    def truncate(self, count: int, done: Callable[[], None], *, generation: int | None = None) -> None:
        """Void every record from position `count` on, durably.

        Args:
            generation: greater than the log's, and the log's from then on; None: the next one.

        Raises:
            LocalProtocolError: not a greater generation, or a position that the log does not hold.
        """
        generation = self.generation + 1 if generation is None else generation
        if generation <= self.generation or not self.first_offset <= count <= self.next_offset:
            raise LocalProtocolError(
                f"cannot truncate [{self.first_offset}, {self.next_offset}) of generation {self.generation}"
                f" from {count} with generation {generation}"
            )
        self.generation, self.next_offset = generation, count
        self._queue(Truncate(count, generation), done)

    def reset(
        self,
        next_offset: int = 0,
        done: Callable[[], None] | None = None,
        *,
        generation: int | None = None,
    ) -> None:
        """Forget everything, a quarantine included: this replica's data begin anew, by repair.

        A crash before it is durable undoes it.

        Raises:
            LocalProtocolError: not a greater generation.
        """
        generation = self.generation + 1 if generation is None else generation
        if generation <= self.generation:
            raise LocalProtocolError(f"the log is at generation {self.generation}: reset with a greater one")
        self.records, self.is_quarantined = [], False
        self.first_offset = self.next_offset = next_offset
        self.generation = generation
        self._queue(Reset(next_offset, generation), done or _nobody)

    def trim(self, below: int) -> None:
        """Give up every record below `below`, with the next batch; until then a crash brings them back."""
        below = min(below, self.next_offset)
        if below > self.first_offset:
            self.first_offset = below
            self._queue(Trim(below), _nobody)

    def crash(self, *, power_cut: bool) -> None:
        """What the store does when the life ends."""
        kept, draws = self._kept, self._store.draws
        if power_cut and kept.lied:
            del kept.durable[len(kept.durable) - draws.below(kept.lied + 1) :]
            kept.is_tail_cut = True
        if power_cut:
            kept.lied = 0
        survivors = draws.below(len(self._flying) + 1)
        kept.durable.extend(record for record, _ in self._flying[:survivors])
        if survivors < len(self._flying) and draws.chance(300_000):
            kept.is_tail_cut = True
        self._collecting, self._flying = [], []

    def _queue(self, record: object, done: Callable[[], None]) -> None:
        if self.life.is_dead:
            return
        self._collecting.append((record, done))
        if not self._flying and len(self._collecting) == 1:
            self._store.world.soon(self.life, self._fly)

    def _fly(self) -> None:
        if self._flying or not self._collecting:
            return
        store = self._store
        if store.health.power_fails():
            self._flying, self._collecting = self._collecting, []
            store.cut_power()
            return
        self._flying, self._collecting = self._collecting, []
        delay = SYNC_NS + store.draws.below(SYNC_NS) + store.health.slow_ns
        store.world.at(store.world.now + delay, None, self._landed)

    def _landed(self) -> None:
        if self.life.is_dead:
            return
        store, kept = self._store, self._kept
        health = store.health
        if health.took("sync_errors"):
            store.exit(self.life, "fsync failed: EIO")
            return
        landed, self._flying = self._flying, []
        kept.durable.extend(record for record, _ in landed)
        kept.lied = kept.lied + len(landed) if health.is_lying else 0
        store.world.soon(self.life, self._tell, landed)

    def _tell(self, landed: list[tuple[Any, Callable[[], None]]]) -> None:
        counts = self._store.world.trace.counts
        for _, done in landed:
            counts.disk += 1
            done()
        self._fly()


def _replay(kept: list[Any], damaged_at: int | None) -> _State:
    """What `kept` comes to; what stands before its entry `damaged_at`, where that is still needed."""
    first = generation = 0
    records: list[tuple[int, Any]] = []
    last_reset = max((at for at, each in enumerate(kept) if isinstance(each, Reset)), default=-1)
    for at, each in enumerate(kept):
        if at == damaged_at and at >= last_reset and isinstance(each, Truncate | Reset | Raise | Trim):
            return _State(first, [record for _, record in records], generation, is_quarantined=True)
        match each:
            case Truncate():
                del records[max(0, each.count - first) :]
                generation = max(generation, each.generation)
            case Reset():
                first, records, generation = each.next_offset, [], each.generation
            case Raise():
                generation = each.generation
            case Trim():
                del records[: each.below - first]
                first = max(first, each.below)
            case _:
                records.append((at, each))
    sound = [record for at, record in records if damaged_at is None or at < damaged_at]
    is_quarantined = any(at == damaged_at for at, _ in records)
    return _State(first, sound if is_quarantined else [r for _, r in records], generation, is_quarantined)


def _nobody() -> None:
    """Nobody waits for it."""
