"""Publishers and readers of messages in tier 2, over the journals of `append`: real clients, one real node.

Each client publishes messages that commit by themselves, and transactions over several journals. All clients
share one commit journal, so that they fence each other, again and again; some leave in the middle of a
transaction or of its commit. Readers keep positions, and go on from them. Checked (`checkers/messages.py`):
what was published is seen once, what was rolled back never, a transaction in all of its journals or in none,
and a reader that goes on sees what one that began anew sees. Source: pipelines.6-10; P10; docs/adr/0201.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, ClassVar, Final

from broadsheet.consume.reader import MessageReader
from broadsheet.errors import BroadsheetError, Fenced, Refused
from broadsheet.message.position import Position
from broadsheet.ports import Random
from broadsheet.publish.commits import NOT_COMMITTED
from broadsheet.publish.publisher import MessagePublisher
from simulator.checkers.messages import Begun, Sent, Shown, check_messages
from simulator.services import ServiceContext
from simulator.workload import Episode
from simulator.workloads.append import TIMEOUT_SECONDS, AppendServiceWorkload, NodeClient

COMMITS: Final = "sim/commits"
INPUT: Final = "sim/input"
"""A journal that is only named: where a transaction's input ends in it is the number of its operation."""
PATIENCE_SECONDS: Final = 4.0


class PublishWorkload(AppendServiceWorkload):
    """One node of journals, publishers that fence each other, and readers."""

    name: ClassVar[str] = "publish"
    scope: ClassVar[tuple[str, ...]] = ("sink/core", "publish", "consume")

    def __init__(self) -> None:
        super().__init__()
        self.working = self.clients
        self.rested = asyncio.Event()
        """Nobody publishes any more."""

    def knobs(self, draw: Random) -> dict[str, int]:
        """Those of appends; how many messages a transaction has, and how long a client stays a publisher."""
        return {
            **super().knobs(draw),
            "journals": draw.randrange(1, 4),
            "messages": draw.randrange(1, 12),
            "padding_bytes": (0, 30, 2_000)[draw.randrange(0, 3)],
            "turns": draw.randrange(1, 12),
        }

    async def client(self, context: ServiceContext, run: Episode) -> None:
        """One operation at a time; then, when nobody publishes any more, a last look."""
        client = _Client(context, run)
        try:
            await client.work()
        finally:
            self.working -= 1
            if not self.working:
                self.rested.set()
        await self.rested.wait()
        await client.look_back()
        await client.pool.close()

    def verify(self, run: Episode) -> None:
        """Each message once, or never; each transaction whole, or not at all."""
        check_messages(run.history.operations)


class _Client(NodeClient):
    """One program that publishes and reads."""

    def __init__(self, context: ServiceContext, run: Episode) -> None:
        super().__init__(context, run)
        self.names = [f"sim/j{number}" for number in range(self.knobs["journals"])]
        self.entropy = context.random("publisher")  # One stream: producer ids are never given twice.
        self.kept: dict[str, tuple[Position, tuple[str, ...]]] = {}

    async def work(self) -> None:
        """Be a publisher for a few turns, then another one."""
        for name in self.names:
            await self.create(name)
        while not self.context.is_stopping:
            operation = self.run.history.invoke(self.context.node, COMMITS, "enter")
            try:
                async with self._publisher() as publisher:
                    self.run.history.ok(operation, _begun(publisher))
                    for _ in range(self.knobs["turns"]):
                        if not await self._turn(publisher):
                            break
            except Fenced:
                self.run.history.reject(operation, "overtaken")
                await asyncio.sleep(self.random.randrange(0, 40) / 1000)  # Or they do nothing but fence.
            except BroadsheetError:
                self.run.history.lose(operation)
                await self._pause()

    async def look_back(self) -> None:
        """Finish what others committed, then read everything."""
        operation = self.run.history.invoke(self.context.node, COMMITS, "finish")
        for _ in range(20):
            try:
                async with self._publisher() as publisher:
                    self.run.history.ok(operation, _begun(publisher))
                    break
            except BroadsheetError:
                await self._pause()
        else:
            self.run.history.lose(operation)
        for name in self.names:
            await self._read(name)

    def _publisher(self) -> MessagePublisher:
        def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            return self.context.scope.spawn(work, name=name)

        return MessagePublisher(
            self.journals,
            COMMITS,
            patience=PATIENCE_SECONDS,
            time=self.context.ports.time,
            random=self.entropy,
            spawn=spawn,
        )

    async def _turn(self, publisher: MessagePublisher) -> bool:
        """One operation; False if the publisher, or the time, is over."""
        await self._pause()
        if self.context.is_stopping:
            return False
        chance = self.random.random()
        if chance < 0.2:
            await self._read(self._any())
            return True
        if chance < 0.6:
            return await self._publish(publisher)
        return await self._transact(publisher)

    async def _publish(self, publisher: MessagePublisher) -> bool:
        name, messages = self._any(), [self._message() for _ in range(self.random.randrange(1, 4))]
        operation = self.run.history.invoke(
            self.context.node, name, "publish", Sent({name: tuple(each["id"] for each in messages)})
        )
        try:
            async with asyncio.timeout(2 * PATIENCE_SECONDS):
                await publisher.publish_many(name, messages)  # One append.
        except Refused as error:
            self.run.history.reject(operation, type(error).__name__)
            return True
        except (BroadsheetError, TimeoutError):
            self.run.history.lose(operation)
            return True
        self.run.history.ok(operation)
        return True

    async def _transact(self, publisher: MessagePublisher) -> bool:
        sent: dict[str, list[str]] = {}
        placed = [(self._any(), self._message()) for _ in range(self.knobs["messages"])]
        for name, message in placed:
            sent.setdefault(name, []).append(message["id"])
        history = self.run.history
        operation = history.invoke(
            self.context.node, COMMITS, "transact", Sent({name: tuple(ids) for name, ids in sent.items()})
        )
        leaves = self.random.random() < 0.1 and self.run.healed_at is None  # Afterwards nothing is unknown.
        leaves_after = self.random.randrange(0, 30) / 1000 if leaves else 60.0
        gives_up = self.random.random() < 0.1
        try:
            async with asyncio.timeout(leaves_after), publisher.transaction() as transaction:
                for name, message in placed:
                    await transaction.publish(name, message)
                transaction.positions[INPUT] = Position(operation.number, 1)
                if gives_up:
                    transaction.roll_back()
            if gives_up:
                history.reject(operation, "rolled back")
                return True
        except (BroadsheetError, TimeoutError) as error:
            notes = getattr(error.__cause__ if isinstance(error, TimeoutError) else error, "__notes__", [])
            # Without a note it never came to a decision: a message did not arrive, and all is rolled back.
            if isinstance(error, Refused) or not notes or NOT_COMMITTED in notes[0]:
                history.reject(operation, type(error).__name__)
            else:
                history.lose(operation)
            return not isinstance(error, TimeoutError) and not notes
        history.ok(operation)
        return True

    async def _read(self, name: str) -> None:
        """From the begin, or from a position that an earlier read gave."""
        start: Position | str = "earliest"
        before: tuple[str, ...] = ()
        if name in self.kept and self.random.random() < 0.8:  # To read all costs the more, the longer it is.
            start, before = self.kept[name]
        operation = self.run.history.invoke(self.context.node, name, "read")
        found: list[str] = []
        reader = MessageReader(self.journals, name, start, patience=PATIENCE_SECONDS)
        try:
            async with asyncio.timeout(10 * TIMEOUT_SECONDS):
                async for message in reader:
                    found.append(message.json()["id"])
                    if self.random.random() < 0.1:
                        self.kept[name] = message.position, (*before, *found)
        except (BroadsheetError, TimeoutError):
            self.run.history.lose(operation)
            return
        self.run.history.ok(operation, Shown((*before, *found)))

    def _any(self) -> str:
        return self.names[self.random.randrange(0, len(self.names))]

    def _message(self) -> Mapping[str, str]:
        self.serial += 1
        return {"id": f"{self.context.node}.{self.serial}", "padding": "x" * self.knobs["padding_bytes"]}

    async def _pause(self) -> None:
        await asyncio.sleep(self.random.randrange(0, 2 * self.knobs["think_ms"]) / 1000)


def _begun(publisher: MessagePublisher) -> Begun:
    position = publisher.positions.get(INPUT)
    return Begun(None if position is None else position.offset)
