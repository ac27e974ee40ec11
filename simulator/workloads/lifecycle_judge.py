"""Lifecycle's judge: looks at a node that has started, and has an operator go the documented ways out.

What is shown must be what was promised, or damage must have been done to it and be told, with all that it
took; what is told as lost an operator accepts, and then nothing else may be gone. After few commands each
journal takes appends again. Then changes go on, and once nothing is against the node it does what it owes:
it stores, trims, and removes. Source: J1-J7, J10, J11, journals.15, journals.32, control.16; W6, W7;
`docs/operations/damage.md`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from broadsheet.base.time import Duration
from broadsheet.base.types import ByteOffset
from broadsheet.errors import BroadsheetError, Corrupt, InvalidArgument, Trimmed
from broadsheet.journal.committed_reads import next_begin, read
from broadsheet.journal.core.pipeline_events import RollAsked
from broadsheet.journal.core.spec import spec_key
from broadsheet.journal.keys import decode_info
from broadsheet.journal.messages import LossReply, SpecChange
from broadsheet.journal.replica import Replica
from simulator.journalmodel import Standing
from simulator.journalnode import status_of
from simulator.lifemodel import ENDLESS, Incarnation, Span, fragment_of, judged, missing
from simulator.workloads.lifecycle_life import OPENS_SECONDS, ROUND_SECONDS, LifecycleNode

COMMANDS_MAX: Final = 4
"""After so many documented commands a journal takes appends."""
NOTHING: Final[Mapping[int, Sequence[Span]]] = MappingProxyType({})
DRAINS_SECONDS: Final = 400
"""Once nothing is against it, a node stores in this time all that is closed."""


class Harm(NamedTuple):
    """What was done to a disk and its store."""

    what: str = ""
    is_log: bool = False
    """The journals' log: each journal may have lost something."""
    is_keyspace: bool = False
    revisions: tuple[int, ...] = ()
    """Of the journals in whose directories it was."""
    objects: tuple[str, ...] = ()
    is_gone: bool = False
    """Some of these are gone."""
    existing: int = 0
    """How many journals had been made: later ones are whole."""
    is_newest: bool = False
    """It was in the newest batch, which nothing vouches for: the last appends may be gone without a word."""

    def and_(self, other: "Harm") -> "Harm":
        """Both."""
        return Harm(
            ", ".join(each.what for each in (self, other) if each.what),
            self.is_log or other.is_log,
            self.is_keyspace or other.is_keyspace,
            (*self.revisions, *other.revisions),
            (*self.objects, *other.objects),
            self.is_gone or other.is_gone,
            max(self.existing, other.existing),
            self.is_newest or other.is_newest,
        )


class _Content(NamedTuple):
    """What a reader is shown of a journal."""

    served: list[tuple[int, bytes]]
    refused: list[tuple[int, int, BroadsheetError]]


class Judge:
    """One look at a node."""

    def __init__(
        self,
        node: LifecycleNode,
        harm: Harm,
        random: Random,
        *,
        must_tell: Mapping[int, Sequence[Span]] = NOTHING,
    ) -> None:
        """Look at `node`.

        Args:
            must_tell: what of each incarnation a start told as lost.
        """
        self._must_tell = must_tell
        self._newest_then: dict[int, int] = {}
        """Where the newest stored fragment of each journal began as the node had started: that one stays."""
        self.node, self.harm, self.random = node, harm, random
        self.account = node.account

    async def judge(self) -> str | None:
        """What is wrong; None where nothing is."""
        node = self.node
        if (wrong := self._map()) is not None:
            return wrong
        self._newest_then = {it.number: self._newest(it) for it in self._live()}
        if node.store.is_shut:
            await asyncio.sleep(self.random.choice((0.1, 7, 20)))
            node.heal()
        for it in self._live():
            try:
                async with asyncio.timeout(10 * OPENS_SECONDS):
                    wrong = await self._journal(it) or await self._way_out(it)
            except (BroadsheetError, OSError, TimeoutError) as error:
                wrong = f"{error!r}: {self._reason(it)}"
            if wrong is not None:
                return f"{it.key}: {wrong}"
        node.check()
        return None

    def _live(self) -> list[Incarnation]:
        found = (self.account.must_be(name) for name in self.account.names())
        return [it for it in found if it is not None]

    def _reason(self, it: Incarnation) -> str:
        status = self.node.running.broker.status(it.name)
        return f"it is {status.state} ({status.reason})"

    # --- the map

    def _map(self) -> str | None:
        """Whether each name is what was told; what was not known is known from now on."""
        account, node, keyspace = self.account, self.node, self.node.running.keyspace
        for name in account.names():
            pair, must = keyspace.get(spec_key(name)), account.must_be(name)
            info = decode_info(pair) if pair is not None else None
            it = None
            if info is not None and not info.spec.is_deleting:
                it = account.shown(info.spec, info.create_revision)
                if it is None or it.is_gone:
                    return f"K: {name} is {info.spec}, which nobody made, or which was deleted"
                if it.revision not in (0, info.create_revision):
                    return f"K: {it.key} was made at {it.revision}, and now at {info.create_revision}"
                if info.spec not in it.specs:
                    return f"K: {it.key} is {info.spec}, not {it.specs}"
            if must is not None and it is not must:
                return f"K: {must.key} was made, and {it and it.key} is there"
            for other in account.of_name(name):
                if other is not it and not other.is_gone and not other.is_orphan:
                    is_doomed = other.is_doomed and other.is_made
                    told = ("deleted", other.number, other.revision + 1, keyspace.revision + 1)
                    node.note(told if is_doomed else ("never", other.number))
            if it is not None and info is not None:
                node.note(("made", it.number, info.create_revision, info.spec))
                node.note(("spec", it.number, info.spec))
                if it.is_doomed:
                    node.note(("spared", it.number))
        return None

    # --- a journal

    async def _opened(self, it: Incarnation) -> Replica:
        broker = self.node.running.broker
        async with asyncio.timeout(OPENS_SECONDS):
            while True:
                try:
                    replica = await broker.replica(it.name)
                except BroadsheetError:
                    await asyncio.sleep(1)
                    continue
                if replica.is_listed:
                    return replica
                await asyncio.sleep(0.2)

    async def _journal(self, it: Incarnation) -> str | None:
        """Whether it shows what was promised, and says what it does not show."""
        replica = await self._opened(it)
        told = replica.stop_reason or replica.damage or replica.log_registers is None
        is_hurt = self._is_hurt(it) or it.is_muddled or bool(self._objects_hurt(it))
        if told and not is_hurt:
            return f"W6: nothing of it was damaged, and {self._reason(it)}"
        content = await self._content(it, replica)
        found: list[Standing] = []
        for begin, served in content.served:
            is_cut = any(at == begin + len(served) for at, _, _ in content.refused)
            for standing in self.account.parse(it, begin, served, is_cut=is_cut):
                if isinstance(standing, str):
                    return standing
                found.append(standing)
        if it.is_muddled:
            return None
        if (wrong := judged(it, found)) is not None:
            return wrong
        if replica.begin < it.trimmed and not told:  # Or its log has lost where it begins, and says so.
            return f"journals.32: it was trimmed, to begin at {it.trimmed}, and begins at {replica.begin}"
        if (wrong := await self._told(it, replica, found, content)) is not None:
            return wrong
        self._known(it, found, is_whole=not (replica.begin or replica.stop_reason or content.refused))
        return None

    def _known(self, it: Incarnation, found: Sequence[Standing], *, is_whole: bool) -> None:
        """What is shown now is shown for ever; what is not never was, if the journal `is_whole`."""
        for append, begin in found:
            self.node.note(("shown", append.number, begin))
        shown = {each.append.number for each in found}
        if not is_whole or it.lost:
            return
        for append in self.account.model.appends:
            is_unknown = append.number not in it.acknowledged and append.number not in it.refused
            if append.journal == it.key and append.number not in shown and is_unknown:
                self.node.note(("refused", append.number))

    async def _content(self, it: Incarnation, replica: Replica) -> _Content:
        """Everything that a reader is shown, around what is refused."""
        edges = sorted(it.acknowledged.values())
        content = _Content([], [])
        at, end = int(replica.begin), int(replica.end)
        while at < end:
            parts: list[bytes] = []
            begin = at
            try:
                async for chunk in read(replica, ByteOffset(at), ByteOffset(end), block=False):
                    parts.append(chunk.data)
                    at = chunk.end
                beyond = end
            except (Corrupt, Trimmed) as error:
                is_gap = isinstance(error, Trimmed) and at < replica.spool.begin
                beyond = next_begin(replica, ByteOffset(at)) if is_gap else end
                if not is_gap:
                    beyond = next((edge for edge in edges if edge > at), end)
                content.refused.append((at, beyond, error))
            if parts:
                content.served.append((begin, b"".join(parts)))
            at = beyond
        return content

    def _is_hurt(self, it: Incarnation) -> bool:
        """Whether what was damaged may have been the journal's."""
        harm = self.harm
        if it.number >= harm.existing:
            return False
        return harm.is_log or harm.is_keyspace or it.revision in harm.revisions

    def _objects_hurt(self, it: Incarnation) -> list[Span]:
        found = [fragment_of(name) for name in self.harm.objects if name.rpartition("/")[0] == it.name]
        return [(each.begin, each.end) for each in found if each is not None]

    def _may_go(self, it: Incarnation, each: Standing, end: int) -> bool:
        """Whether a trim or a retention may be about to remove it."""
        at = ENDLESS
        for name, stored in self.account.stored.items():
            fragment = fragment_of(name)
            if (
                fragment
                and name.rpartition("/")[0] == it.name
                and fragment.begin <= each.begin < fragment.end
            ):
                at = min(at, stored.at)
        now = self.node.clock.wall()
        return self.account.may_remove(it, (each.begin, each.end), at=at, now=now, end=end)

    async def _told(
        self, it: Incarnation, replica: Replica, found: Sequence[Standing], content: _Content
    ) -> str | None:
        """Whether what is not shown was damaged, and that is told."""
        gone = missing(it, found, self.account.model)
        gone = [each for each in gone if not self._may_go(it, each, replica.end)]
        refused = [(at, end) for at, end, error in content.refused if isinstance(error, Corrupt)]
        trimmed = [(at, end) for at, end, error in content.refused if isinstance(error, Trimmed)]
        trimmed.append((0, replica.begin))
        hurt, report = self._objects_hurt(it), None
        for each in gone:
            is_told = _touches(refused, each)
            if is_told and (_touches(hurt, each) or self._is_hurt(it)):
                continue
            is_asked_for = _touches(self._must_tell.get(it.number, ()), each)
            if self.harm.is_gone and _touches(hurt, each) and not is_asked_for:
                continue  # Only what the log still names is demanded of a store.
            what = f"append {each.append.number} was acknowledged at {each.begin}, and is not served"
            if not self._is_hurt(it) and not _touches(hurt, each):
                return f"J2: {what}, and nothing of it was damaged; {self._reason(it)}"
            if _touches(trimmed, each) and not _touches(
                hurt, each
            ):  # Nobody knows of an object that is gone.
                return f"J2: {what}: readers are told that it was trimmed; {self._reason(it)}"
            if replica.stop_reason and each.end > replica.end:
                continue  # It stands still, and shows this once the loss of what else is told is accepted.
            report = report or await self._report(it)
            if report is not None and (each.begin >= report.head or _touches(_spans(report), each)):
                continue
            if self.harm.is_newest and each.append.number not in it.shown:
                self.node.note(("lost", it.number, each.begin, ()))
                continue
            return f"J2: {what}, and nothing says so: {report}; {self._reason(it)}"
        return None

    async def _report(self, it: Incarnation) -> LossReply | None:
        try:
            return await self.node.running.broker.accept_loss(
                it.name, None, head=None, may_act=False, is_head_only=False
            )
        except InvalidArgument:
            return None

    async def lost(self) -> dict[int, list[Span]]:
        """What each journal tells as lost, up to where it would go on."""
        found: dict[int, list[Span]] = {}
        for it in self._live():
            await self._opened(it)
            if (report := await self._report(it)) is not None:
                found[it.number] = _spans(report)
        return found

    # --- ways out

    async def _way_out(self, it: Incarnation) -> str | None:
        """Have an operator do what the status says, until the journal takes an append."""
        has_accepted = False
        for _ in range(COMMANDS_MAX):
            replica = await self._opened(it)
            run = self.node.append(it, replica, self.random.randrange(200))
            status = await asyncio.wait_for(status_of(run.answered), OPENS_SECONDS)
            reason = self.node.running.broker.status(it.name).reason
            is_taken = status.name == "OK"
            if is_taken and ("accept-loss" not in reason or self.random.random() < 0.3):
                return await self._journal(it) if has_accepted else None
            if "accept-loss" in reason:
                has_accepted = True
                await self._accept(it, is_head_only=not is_taken and self.random.random() < 0.3)
            else:
                await asyncio.sleep(5)  # It is healed, or has no descriptor.
        if not it.is_muddled:
            return f"no way out: {self._reason(it)}"
        return None if await self.node.delete(it) else f"it is not even deleted: {self._reason(it)}"

    async def _accept(self, it: Incarnation, *, is_head_only: bool) -> None:
        """`journals accept-loss`, or `reset-head`, which may say that more than the head is in doubt."""
        broker = self.node.running.broker
        told = await broker.accept_loss(it.name, None, head=None, may_act=False, is_head_only=False)
        self.node.note(("lost", it.number, told.head, tuple(_spans(told))))
        try:
            await broker.accept_loss(it.name, None, head=None, may_act=True, is_head_only=is_head_only)
        except InvalidArgument:
            if not is_head_only:
                raise
            await broker.accept_loss(it.name, None, head=None, may_act=True, is_head_only=False)

    # --- life goes on

    async def go_on(self) -> str | None:
        """Changes after a start, as if nothing had been."""
        node, random = self.node, self.random
        for it in self._live():
            chance = random.random()
            if chance < 0.25:
                if not await self._altered(it):
                    return f"{it.key}: an alteration is refused: {self._reason(it)}"
            elif chance < 0.45:
                await node.trim(it, random.choice([*it.acknowledged.values(), 0]))
            elif (chance < 0.6 or it.is_muddled) and not await node.delete(it):
                return f"{it.key}: its deletion is refused: {self._reason(it)}"
        for name in self.account.names():
            if self.account.must_be(name) is None and random.random() < 0.6:
                made = await self._made(name)
                if isinstance(made, str):
                    return made
        if random.random() < (0.7 if self.account.is_map_lost else 0.3):
            await asyncio.sleep(ROUND_SECONDS)
        node.check()
        return None

    async def _altered(self, it: Incarnation) -> bool:
        """Alter it. If its retention rests, a change of something else may be refused: it is said again."""
        change, does_rest = self.node.change(), "its retention rests" in self._reason(it)
        if does_rest and await self.node.alter(it, SpecChange(labels={"changed": "else"})):
            await asyncio.sleep(ROUND_SECONDS)
        if await self.node.alter(it, change):
            return True
        if not does_rest:
            return False
        age, most = Duration(change.retention or 0), change.retained_bytes or 0
        change = msgspec.structs.replace(change, retention=age, retained_bytes=most)
        return await self.node.alter(it, change)

    async def _made(self, name: str) -> str | Incarnation:
        """Make a journal of a name that is free, or will be; it must be empty."""
        for _ in range(DRAINS_SECONDS // 5):
            made = await self.node.make(self.account.of_name(name)[0].name)
            if made is not None:
                break
            await asyncio.sleep(5)
        else:
            return f"{name} cannot be made again"
        wrong = await self._journal(made) or await self._way_out(made)
        return f"{made.key}: {wrong}" if wrong is not None else made

    async def drain(self) -> str | None:
        """Nothing is against the node any more: it owes what it may not owe for ever."""
        node = self.node
        node.heal()
        for it in self._live():
            replica = await self._opened(it)
            if "accept-loss" in node.running.broker.status(it.name).reason:
                await self._accept(it, is_head_only=False)
                replica = await self._opened(it)
            for _ in range(3):
                run = node.append(it, replica, self.random.randrange(200))
                if (status := await status_of(run.answered)).name != "OK":
                    return f"{it.key}: nothing is against it, and an append is refused: {status.name}"
                replica.deliver(RollAsked())
        for _ in range(DRAINS_SECONDS):
            sound = [it for it in self._live() if not self._objects_hurt(it)]
            left = [it for it in sound if (await self._opened(it)).closed]
            if not left:
                break
            await asyncio.sleep(1)
        else:
            return f"{left[0].key}: closed fragments of it are not stored: {self._reason(left[0])}"
        await asyncio.sleep(2 * ROUND_SECONDS)
        for it in self._live():
            if (wrong := await self._owed(it)) is not None:
                return f"{it.key}: {wrong}"
        for name, stored in self.account.stored.items():
            whose = self.account.of_object(name, stored)
            if whose is not None and whose.is_gone and not self.account.is_map_ever_lost:
                return f"{name} of {whose.key}, which was deleted, is in the store"
        node.check()
        return None

    def _newest(self, it: Incarnation) -> int:
        found = [fragment_of(name) for name in self.account.stored if name.rpartition("/")[0] == it.name]
        return max((each.begin for each in found if each is not None), default=0)

    async def owed_by_age(self) -> str | None:
        """A start that finds nothing in the way removes what is old: a former one looks again in an hour."""
        begun = self.node.clock.wall()
        await asyncio.sleep(ROUND_SECONDS)
        for it in self._live():
            if (wrong := await self._owed(it, begun=begun, newest=self._newest_then[it.number])) is not None:
                return f"{it.key}: {wrong}"
        return None

    async def _owed(self, it: Incarnation, *, begun: int = 0, newest: int = 0) -> str | None:
        """What a retention should have removed by now.

        Args:
            begun: by age, what was old then.
            newest: where the newest stored fragment began then.
        """
        replica, spec = await self._opened(it), it.specs[0].fragment
        reason = self.node.running.broker.status(it.name).reason
        newest = newest or self._newest(it)
        is_hurt = it.is_muddled or bool(self._objects_hurt(it)) or replica.log_registers is None
        if is_hurt or "its retention rests" in reason:
            return None
        here = {name: fragment_of(name) for name in self.account.stored if name.rpartition("/")[0] == it.name}
        for name, fragment in here.items():
            if fragment is None or fragment.begin >= newest:
                continue
            if any(
                each and each.begin <= fragment.begin and each.end > fragment.end for each in here.values()
            ):
                continue  # It was stored before its journal went on in the same fragment, with which it goes.
            stored = self.account.stored[name]
            # It looks when a fragment is stored: what the open one has grown by it finds then.
            is_far = spec.retained_bytes and fragment.end <= replica.spool.begin - spec.retained_bytes
            is_old = spec.retention and stored.at + spec.retention <= begun
            if is_far or is_old:
                return f"journals.32: {name} should be removed by {it.kept}, and is not: {reason}"
        return None


def _touches(spans: Sequence[Span], each: Standing) -> bool:
    return any(begin < each.end and each.begin < end for begin, end in spans)


def _spans(told: LossReply) -> list[Span]:
    return [(int(each.begin), int(each.end)) for each in told.lost]
