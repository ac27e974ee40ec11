"""The example in tier 2: the same cells as real hosts on real ports, behind a small framed protocol.

Frames are a 4-byte length and a MessagePack body. A cell appends each record to one file as (length, crc32,
body) and syncs it; a batch is on its way while the next collects. It shows a domain how to plug its roles
into tier 2.
    file: whole records, then perhaps a torn one, which recovery cuts and overwrites.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, ClassVar, Final
from zlib import crc32

import msgspec

from broadsheet.base.machine import Effect
from broadsheet.base.time import MILLISECOND, Duration, in_seconds
from broadsheet.base.types import NodeId
from broadsheet.observe.story import Story
from broadsheet.ports import Disk, File, Random, Transport
from broadsheet.runtime.host import Host
from simulator.checkers.linearizable import check_linearizable
from simulator.checkers.versioned import check_versioned
from simulator.plan import CLOCKS, CRASHES, NETWORK, Budget, Kind
from simulator.services import ServiceContext, ServiceWorkload
from simulator.workload import Episode
from simulator.workloads.register import (
    NO_TAG,
    Answer,
    Cell,
    Persist,
    Persisted,
    Queried,
    Query,
    Store,
    Stored,
    Tag,
    Told,
)

BODY_MAX: Final = 65_536
HEADER: Final = struct.Struct("<II")
FILE: Final = "cell.log"
TIMEOUT: Final = Duration(500 * MILLISECOND)


class Wire(msgspec.Struct, array_like=True):
    """Any message of the example."""

    query: Query | None = None
    store: Store | None = None
    told: Told | None = None


class Framed:
    """A `ByteProtocol` of length-prefixed messages."""

    def __init__(
        self, receive: Callable[["Framed", Wire], None], lost: Callable[["Framed"], None], *, number: int = 0
    ) -> None:
        self.number = number
        self.transport: Transport | None = None
        self._receive, self._lost = receive, lost
        self._buffer = memoryview(bytearray(BODY_MAX))
        self._filled = 0

    def send(self, message: Wire) -> None:
        """Send one message, where the connection still stands."""
        body = msgspec.msgpack.encode(message)
        if self.transport is not None:
            self.transport.writelines([len(body).to_bytes(4, "big"), body])

    def connection_made(self, transport: Transport) -> None:
        """It stands."""
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """What is left of the one buffer."""
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take whole messages off the front."""
        self._filled += nbytes
        begin = 0
        while self._filled - begin >= 4:
            end = begin + 4 + int.from_bytes(self._buffer[begin : begin + 4], "big")
            if end > self._filled:
                break
            self._receive(self, msgspec.msgpack.decode(self._buffer[begin + 4 : end], type=Wire))
            begin = end
        rest = bytes(self._buffer[begin : self._filled])
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)

    def eof_received(self) -> bool:
        """Close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self.transport = None
        self._lost(self)

    def pause_writing(self) -> None:
        """Messages are small and few: nothing to hold back."""

    def resume_writing(self) -> None:
        """As above."""


class RecordFile:
    """The cell's file."""

    def __init__(self, disk: Disk) -> None:
        self.file: File = disk.open(FILE, create=True)
        disk.sync_dir("")
        self.records, self._end = self._recover()

    def _recover(self) -> tuple[list[Any], int]:
        content = self.file.read_at(0, self.file.size())
        at, records = 0, []
        while at + HEADER.size <= len(content):
            length, crc = HEADER.unpack_from(content, at)
            body = content[at + HEADER.size : at + HEADER.size + length]
            if not length or len(body) < length or crc32(body) != crc:
                break
            records.append(msgspec.msgpack.decode(body))
            at += HEADER.size + length
        self.file.truncate(at)
        # What was read may be the page cache's alone: it is written again before anyone is answered from it.
        self.file.write_at(0, [content[:at]])
        self.file.sync()
        return records, at

    async def append(self, records: list[tuple[str, Tag, int]]) -> None:
        """Append and sync."""
        bodies = [msgspec.msgpack.encode(record) for record in records]
        parts = [part for body in bodies for part in (HEADER.pack(len(body), crc32(body)), body)]
        begin = self._end
        self._end += sum(map(len, parts))
        await self.file.persist(begin, parts)


class CellService:
    """One boot of one cell."""

    def __init__(self, context: ServiceContext, cell: Callable[[dict[str, tuple[Tag, int]]], Cell]) -> None:
        self.log = RecordFile(context.ports.disk)
        durable: dict[str, tuple[Tag, int]] = {}
        for key, tag, value in self.log.records:
            if tuple(tag) > durable.get(key, (NO_TAG, 0))[0]:
                durable[key] = ((tag[0], tag[1]), value)
        self._context = context
        self._queue: asyncio.Queue[Persist] = asyncio.Queue()
        self._connections: dict[str, Framed] = {}
        self._accepted = 0
        performers: dict[type[Effect], Callable[..., None]] = {
            Persist: self._queue.put_nowait,
            Answer: self._answer,
        }
        self.host: Host[Any, Any] = Host(
            cell(durable),
            performers,
            time=context.ports.time,
            timers=context.ports.timers,
            crash=lambda error, _: context.ports.crash(error),
            story=Story(f"{context.life!r}.cell"),
        )

    async def start(self) -> None:
        """Listen."""
        self._context.scope.spawn(self._write(), name="log")
        await self._context.ports.network.listen(self._context.address, self._connection)

    def _connection(self) -> Framed:
        self._accepted += 1
        return Framed(self._receive, self._lost, number=self._accepted)

    def _receive(self, connection: Framed, message: Wire) -> None:
        client = NodeId(f"c{connection.number}")
        self._connections[client] = connection
        if message.query is not None:
            self.host.deliver(Queried(client, message.query.request, message.query.key))
        elif (store := message.store) is not None:
            self.host.deliver(Stored(client, store.request, store.key, store.tag, store.value))

    def _lost(self, connection: Framed) -> None:
        self._connections.pop(NodeId(f"c{connection.number}"), None)

    def _answer(self, effect: Answer) -> None:
        connection = self._connections.get(effect.client)
        if connection is not None:
            connection.send(Wire(told=Told(effect.request, effect.tag, effect.value)))

    async def _write(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self.log.append([(each.key, each.tag, each.value) for each in batch])
            self.host.deliver(Persisted(batch[-1].token))


class RegisterServiceWorkload(ServiceWorkload):
    """As `register`, with files and connections."""

    name: ClassVar[str] = "register"
    clients: ClassVar[int] = 3
    budget: ClassVar[Budget] = Budget(
        kinds=(*CRASHES, *NETWORK, *CLOCKS, Kind.SYNC_EIO, Kind.DISK_FULL, Kind.SHORT_WRITE, Kind.SLOW_SYNC)
    )
    cell: ClassVar[Callable[[dict[str, tuple[Tag, int]]], Cell]] = Cell

    def knobs(self, draw: Random) -> dict[str, int]:
        """How many registers, and how hurried the clients are."""
        return {"keys": draw.randrange(1, 4), "think_ms": draw.randrange(5, 40)}

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """Three cells."""
        return (NodeId("a"), NodeId("b"), NodeId("c"))

    async def serve(self, context: ServiceContext, run: Episode) -> None:
        """A cell from its file."""
        await CellService(context, type(self).cell).start()

    async def client(self, context: ServiceContext, run: Episode) -> None:
        """Read or write, one operation at a time."""
        session = _Session(context, self.nodes(run.plan.knobs))
        history, knobs, random = run.history, run.plan.knobs, context.random("operations")
        value = 0
        while not context.is_stopping:
            key = f"k{random.randrange(0, knobs['keys'])}"
            if random.random() < 0.5:
                value += 1
                mine = int(context.node.removeprefix("client")) + 10 * value
                operation = history.invoke(context.node, key, "write", mine)
                found = await session.write(key, mine)
            else:
                operation = history.invoke(context.node, key, "read")
                found = await session.read(key)
            if found is None:
                history.lose(operation)
            else:
                tag, read = found
                client = int(tag[1].removeprefix("client")) if tag[1] else 0
                history.ok(operation, read or None, version=tag[0] * 100 + client)
            await asyncio.sleep(random.randrange(0, 2 * knobs["think_ms"]) / 1000)

    def verify(self, run: Episode) -> None:
        """Both checkers, one against the other."""
        check_versioned(run.history.operations)
        check_linearizable(run.history.operations)


class _Session:
    """A client's two-phase operations over its connections."""

    def __init__(self, context: ServiceContext, cells: tuple[NodeId, ...]) -> None:
        self.context, self.cells = context, cells
        self.request = self.counter = 0
        self._connections: dict[NodeId, Framed] = {}
        self._told: dict[NodeId, Told] = {}
        self._news = asyncio.Event()

    async def read(self, key: str) -> tuple[Tag, int] | None:
        """The newest (tag, value), held by a majority before it is returned."""
        told = await self._majority(lambda request: Wire(query=Query(request, key)))
        if told is None:
            return None
        newest = max(told, key=lambda one: one.tag)
        if newest.tag == NO_TAG:
            return NO_TAG, 0
        store = newest.tag, newest.value
        back = await self._majority(lambda request: Wire(store=Store(request, key, *store)))
        return None if back is None else store

    async def write(self, key: str, value: int) -> tuple[Tag, int] | None:
        """The tag under which a majority holds `value`."""
        told = await self._majority(lambda request: Wire(query=Query(request, key)))
        if told is None:
            return None
        self.counter = max(self.counter, *(one.tag[0] for one in told)) + 1
        tag = (self.counter, str(self.context.node))
        back = await self._majority(lambda request: Wire(store=Store(request, key, tag, value)))
        return None if back is None else (tag, 0)

    async def _majority(self, make: Callable[[int], Wire]) -> list[Told] | None:
        """Ask every cell, dialling where needed, until a majority has answered; None when time is up."""
        self.request += 1
        self._told.clear()
        asking = [asyncio.ensure_future(self._ask(cell, make(self.request))) for cell in self.cells]
        try:
            async with asyncio.timeout(in_seconds(TIMEOUT)):
                while len(self._told) * 2 <= len(self.cells):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            for cell, connection in list(self._connections.items()):
                if cell not in self._told and connection.transport is not None:
                    connection.transport.abort()  # Silent for so long: dial anew next time.
            return None
        finally:
            for task in asking:
                task.cancel()
        return list(self._told.values())

    async def _ask(self, cell: NodeId, message: Wire) -> None:
        try:
            if cell not in self._connections:
                address = self.context.address_of(cell)
                dialled = await self.context.ports.network.dial(address, lambda: self._connection(cell))
                assert isinstance(dialled, Framed)
                self._connections[cell] = dialled
            self._connections[cell].send(message)
        except OSError:
            return  # Down or unreachable: the others may do.

    def _connection(self, cell: NodeId) -> Framed:
        def receive(_: Framed, message: Wire) -> None:
            if message.told is not None and message.told.request == self.request:
                self._told[cell] = message.told
                self._news.set()

        def lost(connection: Framed) -> None:
            if self._connections.get(cell) is connection:
                del self._connections[cell]

        return Framed(receive, lost)
