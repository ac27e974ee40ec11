"""Log model: records the state of every stream after each operation, and judges what a restart shows.

The model records which operations were asked of the log, in order, and which were acknowledged. After a
restart a stream must be in the state after one of its operations, at least after the acknowledged ones (W2).
If bytes were damaged it may be in an earlier state, and must then say so (W4, W6): as `tail_cut` if the loss
is in the last batch, for which no later batch vouches, and otherwise as a quarantine. Only a reset or a drop
ends a quarantine. The model uses neither the bytes nor the code of the log.
Source: W1-W7 in `docs/guarantees.md`.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from broadsheet.base.types import Offset
from broadsheet.wal.format import RowFlag
from broadsheet.wal.record import Run
from simulator.logimage import Kept

Trims = list[tuple[int, int]]
STARTED: Final = ("started",)
"""A mark: a start has told what there is."""


class Standing(NamedTuple):
    """A stream after one of its operations."""

    next: int = 0
    content: dict[int, bytes] = {}  # noqa: RUF012 - a default that nobody changes.
    """Every record since `base`, those that were trimmed included."""
    chains: dict[int, int] = {}  # noqa: RUF012 - as above.
    """The chain before each offset of them, and before `next`."""
    base: int = 0
    generation: int = 0
    since: int = 0
    """The operation by which it began anew: trims before it count no more."""
    is_lost: bool = False
    """A restart has found it quarantined."""
    is_there: bool = False
    """False where it was dropped, or never was."""

    @property
    def chain(self) -> int:
        """That before the next record."""
        return self.chains.get(self.next, 0)


class Damage(NamedTuple):
    """What was done to the bytes of a disk."""

    what: str
    is_last_hit: bool
    """The last batch has part of it, and the one before it was not lost whole."""
    nameless: tuple[int, ...] = ()
    """Streams of which nothing is left anywhere: of several lost batches nobody knows whom they held."""
    is_torn: bool = False
    """The power had cut a write before. Two faults in one stream: it may say either that it lost records."""


NO_DAMAGE = Damage("", is_last_hit=False)


class Promised:
    """What the marks of a crash state say."""

    def __init__(self, marks: tuple[object, ...]) -> None:
        self.done: dict[int, int] = {}
        self.trims: dict[int, Trims] = {}
        for mark in marks:
            match mark:
                case ("done", int(name), int(number)):
                    self.done[name] = max(self.done.get(name, 0), number)
                case ("started",):
                    pass
                case ("trim", int(name), int(number), int(below)):
                    self.trims.setdefault(name, []).append((number, below))
                case _:
                    raise AssertionError(f"a tape has no mark {mark!r}")


class LogModel:
    """What was asked of one log, and when it was promised."""

    def __init__(self) -> None:
        self.streams: dict[int, list[Standing]] = {}
        self._trims: dict[int, list[tuple[int, int]]] = {}
        self._before: dict[int, dict[tuple[int, bytes], None]] = {}
        """Each record that a stream had before its last start: damage may take what has voided it."""

    def now(self, stream: int) -> Standing:
        """Where `stream` stands if everything that was asked for comes about."""
        return self.streams.setdefault(stream, [Standing()])[-1]

    def number(self, stream: int) -> int:
        """The number that the next operation of `stream` gets."""
        return len(self.streams.setdefault(stream, [Standing()]))

    def append(self, stream: int, payloads: Sequence[bytes], generation: int) -> None:
        """Records behind what is there."""
        before = self.now(stream)
        at, content, chains = before.next, dict(before.content), dict(before.chains)
        for payload in payloads:
            content[at] = payload
            chains[at + 1] = Run.of([payload], offset=Offset(at), seed=chains.get(at, 0)).crc
            at += 1
        self._note(stream, before._replace(next=at, content=content, chains=chains, generation=generation))

    def truncate(self, stream: int, offset: int, generation: int) -> None:
        """Everything from `offset` on is void."""
        before = self.now(stream)
        content = {at: payload for at, payload in before.content.items() if at < offset}
        chains = {at: chain for at, chain in before.chains.items() if at <= offset}
        self._note(
            stream, before._replace(next=offset, content=content, chains=chains, generation=generation)
        )

    def reset(self, stream: int, offset: int, generation: int) -> None:
        """The stream begins anew."""
        self._note(
            stream, Standing(next=offset, base=offset, generation=generation, since=self.number(stream))
        )

    def drop(self, stream: int) -> None:
        """The stream is gone, and may begin anew."""
        self._note(stream, Standing(since=self.number(stream)), is_there=False)

    def _note(self, stream: int, standing: Standing, *, is_there: bool = True) -> None:
        self.streams[stream].append(standing._replace(is_there=is_there, is_lost=False))

    def legal(
        self, stream: int, kept: Kept | None, *, promised: int, trims: Iterable[tuple[int, int]]
    ) -> list[int]:
        """The operations, from number `promised` on, after which `stream` stood as `kept` says.

        Args:
            trims: (number of the operation before it, offset) of each that was asked for.
        """
        standings = self.streams[stream]
        least = min(standing.generation for standing in standings[promised:])
        if kept is not None and kept.point.generation < least:
            return []
        return [
            number
            for number, standing in enumerate(standings)
            if number >= promised and not standing.is_lost and _is(standing, kept, trims)
        ]

    def judge(  # noqa: PLR0911 - one line for each verdict.
        self,
        stream: int,
        kept: Kept | None,
        *,
        promised: int,
        trims: Iterable[tuple[int, int]],
        damage: Damage = NO_DAMAGE,
    ) -> str | None:
        """What is wrong with what a restart tells of `stream`; None where nothing is."""
        standings = self.streams[stream]
        flags = kept.flags if kept is not None else 0
        trims = list(trims)
        told = _told(kept)
        if flags & RowFlag.QUARANTINED:
            if any(each.is_lost for each in standings[promised:]):
                return None
            if not damage.what:
                return f"stream {stream} is quarantined, and nothing was damaged: {told}"
            assert kept is not None
            wrong = [r.offset for r in kept.held if not self._was_ever(stream, r.offset, r.payload)]
            return f"stream {stream} shows other bytes at {wrong}: {told}" if wrong else None
        if self.legal(stream, kept, promised=promised, trims=trims):
            return None
        last = standings[-1]
        said = (
            f"stream {stream} is {told} after {promised} acknowledged of {len(standings) - 1} operations, "
            f"and should stand at {last.next} of generation {last.generation}, whole from {last.base} on"
        )
        if not damage.what:
            return said
        if not flags & RowFlag.TAIL_CUT:
            if kept is None and stream in damage.nameless:
                return None
            return f"{said}, and does not say that it lost anything"
        if damage.is_torn and kept is not None:
            wrong = [r.offset for r in kept.held if not self._was_ever(stream, r.offset, r.payload)]
            return f"stream {stream} shows other bytes at {wrong}: {told}" if wrong else None
        if kept is not None and not kept.point.next and stream in damage.nameless:
            return None  # Of what was being written some frames are left.
        if not damage.is_last_hit:
            return f"{said}, which it takes for a cut tail, and a later batch vouches for what was lost"
        if kept is None or any(_is_part(standing, kept) for standing in standings):
            return None
        return f"{said}: that was never so"

    def restarted(
        self, stream: int, kept: Kept | None, *, promised: int, trims: Iterable[tuple[int, int]]
    ) -> None:
        """What a start has told is so from now on."""
        before = self._before.setdefault(stream, {})
        for standing in self.streams[stream]:
            before.update(dict.fromkeys(standing.content.items()))
        if kept is None:
            self.streams[stream] = [Standing()]
        elif kept.flags & RowFlag.QUARANTINED:
            lost = Standing(
                next=kept.point.next, generation=kept.point.generation, is_lost=True, is_there=True
            )
            content = {int(record.offset): record.payload for record in kept.held}
            self.streams[stream] = [lost._replace(content=content)]
        else:
            trims = list(trims)
            found = self.legal(stream, kept, promised=promised, trims=trims)
            same = self.streams[stream][found[-1] if found else self._part(stream, kept)]
            content = {at: payload for at, payload in same.content.items() if at < kept.point.next}
            chains = {at: chain for at, chain in same.chains.items() if at < kept.point.next}
            chains[kept.point.next] = kept.point.crc
            self.streams[stream] = [
                Standing(
                    next=kept.point.next,
                    content=content,
                    chains=chains,
                    base=kept.first,
                    generation=kept.point.generation,
                    is_there=True,
                )
            ]

    def _was_ever(self, stream: int, offset: int, payload: bytes) -> bool:
        is_since = any(each.content.get(offset) == payload for each in self.streams[stream])
        return is_since or (offset, payload) in self._before.get(stream, {})

    def _part(self, stream: int, kept: Kept) -> int:
        standings = self.streams[stream]
        return next(number for number, each in enumerate(standings) if _is_part(each, kept))


def _is(standing: Standing, kept: Kept | None, trims: Iterable[tuple[int, int]]) -> bool:
    if kept is None:
        return not standing.is_there
    if not standing.is_there and kept.point.next:
        return False
    found = {int(record.offset): record.payload for record in kept.held}
    trimmed = max((below for number, below in trims if number >= standing.since), default=0)
    return (
        kept.point.next == standing.next
        and kept.point.crc == standing.chain
        and kept.first <= max(standing.base, min(standing.next, trimmed))
        and {at: payload for at, payload in standing.content.items() if at >= kept.first} == found
    )


def _is_part(standing: Standing, kept: Kept) -> bool:
    """Whether `kept` is what `standing` was some records earlier."""
    wanted = {at: payload for at, payload in standing.content.items() if kept.first <= at < kept.point.next}
    found = {int(record.offset): record.payload for record in kept.held}
    is_empty = kept.first == kept.point.next
    return found == wanted and (is_empty or standing.chains.get(kept.point.next) == kept.point.crc)


def _told(kept: Kept | None) -> str:
    if kept is None:
        return "absent"
    held = [int(record.offset) for record in kept.held]
    return (
        f"[{kept.first}, {kept.point.next}) of generation {kept.point.generation} with {held} "
        f"and flags {kept.flags}"
    )
