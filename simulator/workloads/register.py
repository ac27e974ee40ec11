"""The example: registers kept by three cells, read and written by clients through majorities (ABD).

A tag is (counter, client), ordered. A cell keeps one (tag, value) for each key and answers only from what
is durable.
    cell, per key: (tag, value) --Stored greater tag--> persisting --Persisted--> answered
It shows a domain how to plug a machine into tier 1, and `canary` breaks it on purpose. It is no part of the
product. Source: Attiya, Bar-Noy, Dolev, "Sharing memory robustly in message-passing systems" (1995).
"""

from collections.abc import Callable
from typing import ClassVar

import msgspec

from broadsheet.base.machine import Effect, Event, Tick
from broadsheet.base.time import MILLISECOND, Duration, Instant
from broadsheet.base.types import NodeId, Token
from broadsheet.ports import Random
from simulator.checkers.linearizable import check_linearizable
from simulator.checkers.versioned import check_versioned
from simulator.node_context import ClientContext, NodeContext
from simulator.workload import Episode, MachineWorkload

Tag = tuple[int, str]
NO_TAG: Tag = (0, "")


class Queried(Event, frozen=True):
    """`client` asks what is stored under `key`."""

    client: NodeId
    request: int
    key: str


class Stored(Event, frozen=True):
    """`client` asks to store `value`; a tag that is not greater changes nothing and is answered too."""

    client: NodeId
    request: int
    key: str
    tag: Tag
    value: int


class Persisted(Event, frozen=True):
    """Everything through `token` is durable."""

    token: Token


class Persist(Effect, frozen=True):
    """Make (key, tag, value) durable, then report `token`."""

    token: Token
    key: str
    tag: Tag
    value: int


class Answer(Effect, frozen=True):
    """Tell `client` what is durable under the key that it asked for."""

    client: NodeId
    request: int
    tag: Tag
    value: int


class Cell:
    """One copy of every register."""

    def __init__(self, durable: dict[str, tuple[Tag, int]]) -> None:
        self.durable = durable
        self.token = Token(0)
        self.waiting: dict[Token, Stored] = {}

    def step(self, event: Queried | Stored | Persisted | Tick, now: Instant) -> list[Persist | Answer]:
        """Apply one event."""
        match event:
            case Queried():
                return [self._answer(event)]
            case Stored():
                if event.tag <= self.durable.get(event.key, (NO_TAG, 0))[0]:
                    return [self._answer(event)]  # Late or repeated: it is held, or was overtaken.
                self.token = Token(self.token + 1)
                self.waiting[self.token] = event
                return [Persist(self.token, event.key, event.tag, event.value)]
            case Persisted():
                return self._on_persisted(event)
            case Tick():
                return []

    def deadline(self) -> Instant | None:
        """Nothing here waits for time."""
        return None

    def check(self) -> None:
        """Tokens rise, and those waited for were given out."""
        assert all(token <= self.token for token in self.waiting), "waits for tokens of its own"
        assert list(self.waiting) == sorted(self.waiting), "in order"

    def _on_persisted(self, event: Persisted) -> list[Persist | Answer]:
        answers: list[Persist | Answer] = []
        for token in [token for token in self.waiting if token <= event.token]:
            stored = self.waiting.pop(token)
            if stored.tag > self.durable.get(stored.key, (NO_TAG, 0))[0]:
                self.durable[stored.key] = (stored.tag, stored.value)
            answers.append(self._answer(stored))
        return answers

    def _answer(self, asked: Queried | Stored) -> Answer:
        tag, value = self.durable.get(asked.key, (NO_TAG, 0))
        return Answer(asked.client, asked.request, tag, value)


class Query(msgspec.Struct, frozen=True):
    """A client's question, on the wire."""

    request: int
    key: str


class Store(msgspec.Struct, frozen=True):
    """A client's order, on the wire."""

    request: int
    key: str
    tag: Tag
    value: int


class Told(msgspec.Struct, frozen=True):
    """A cell's answer, on the wire."""

    request: int
    tag: Tag
    value: int


class RegisterWorkload(MachineWorkload):
    """Clients read and write a few registers; every key must be linearizable."""

    name: ClassVar[str] = "register"
    clients: ClassVar[int] = 4
    cell: ClassVar[Callable[[dict[str, tuple[Tag, int]]], Cell]] = Cell

    def knobs(self, draw: Random) -> dict[str, int]:
        """How many registers, and how hurried the clients are."""
        return {"keys": draw.randrange(1, 4), "think_ms": draw.randrange(5, 40)}

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """Three cells."""
        return (NodeId("a"), NodeId("b"), NodeId("c"))

    def boot(self, context: NodeContext) -> None:
        """A cell from its log."""
        log = context.log()
        durable: dict[str, tuple[Tag, int]] = {}
        for key, tag, value in log.records:
            if tag > durable.get(key, (NO_TAG, 0))[0]:
                durable[key] = (tag, value)
        performers: dict[type[Effect], Callable[..., None]] = {}
        host = context.host(type(self).cell(durable), performers)

        def persist(effect: Persist) -> None:
            record = (effect.key, effect.tag, effect.value)
            log.append(record, lambda: host.deliver(Persisted(effect.token)))

        performers[Persist] = persist
        performers[Answer] = lambda e: context.send(e.client, Told(e.request, e.tag, e.value))

        def receive(sender: NodeId, message: Query | Store) -> None:
            if isinstance(message, Query):
                host.deliver(Queried(sender, message.request, message.key))
            else:
                host.deliver(Stored(sender, message.request, message.key, message.tag, message.value))

        context.on_message = receive

    async def client(self, context: ClientContext, run: Episode) -> None:
        """Read or write, one operation at a time."""
        session = _Session(context, self.nodes(run.plan.knobs))
        history, knobs, draws = run.history, run.plan.knobs, context.draws("operations")
        value = 0
        while not context.is_stopping:
            key = f"k{draws.below(knobs['keys'])}"
            if draws.below(2):
                value += 1
                mine = int(context.name.removeprefix("client")) + 10 * value
                operation = history.invoke(context.name, key, "write", mine)
                written = await session.write(key, mine)
                if written is None:
                    history.lose(operation)
                else:
                    history.ok(operation, version=_version(written))
            else:
                operation = history.invoke(context.name, key, "read")
                found = await session.read(key)
                if found is None:
                    history.lose(operation)
                else:
                    history.ok(operation, found[1] or None, version=_version(found[0]))
            await context.sleep(Duration(draws.below(2 * knobs["think_ms"]) * MILLISECOND))

    def verify(self, run: Episode) -> None:
        """Both checkers, one against the other."""
        check_versioned(run.history.operations)
        check_linearizable(run.history.operations)


def _version(tag: Tag) -> int:
    """A tag as one number, in the same order."""
    return tag[0] * 100 + (int(tag[1].removeprefix("client")) if tag[1] else 0)


class _Session:
    """A client's two-phase operations."""

    def __init__(self, context: ClientContext, cells: tuple[NodeId, ...]) -> None:
        self.context, self.cells = context, cells
        self.request = self.counter = 0

    async def read(self, key: str) -> tuple[Tag, int] | None:
        """The newest (tag, value), held by a majority before it is returned."""
        told = await self._majority(lambda request: Query(request, key))
        if told is None:
            return None
        newest = max(told, key=lambda one: one.tag)
        if newest.tag == NO_TAG:
            return NO_TAG, 0
        back = await self._majority(lambda request: Store(request, key, newest.tag, newest.value))
        return None if back is None else (newest.tag, newest.value)

    async def write(self, key: str, value: int) -> Tag | None:
        """The tag under which a majority holds `value`."""
        told = await self._majority(lambda request: Query(request, key))
        if told is None:
            return None
        self.counter = max(self.counter, *(one.tag[0] for one in told)) + 1
        tag = (self.counter, self.context.name)  # Above my own lost ones too: a tag never has two values.
        back = await self._majority(lambda request: Store(request, key, tag, value))
        return None if back is None else tag

    async def _majority(self, make: Callable[[int], Query | Store]) -> list[Told] | None:
        """Ask all cells until a majority has answered this request; None after half a second."""
        self.request += 1
        message = make(self.request)
        told: dict[NodeId, Told] = {}
        deadline = self.context.now() + 500 * MILLISECOND
        again = 0
        while self.context.now() < deadline:
            if self.context.now() >= again:
                for cell in self.cells:
                    if cell not in told:
                        self.context.send(cell, message)
                again = self.context.now() + 100 * MILLISECOND
            got = await self.context.receive(Duration(min(again, deadline) - self.context.now()))
            if got is not None and got[1].request == self.request:
                told[got[0]] = got[1]
            if len(told) * 2 > len(self.cells):
                return list(told.values())
        return None
