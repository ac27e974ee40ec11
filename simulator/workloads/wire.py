"""The wire by itself in tier 2: calls, streams and runs between real servers and clients over faulty links.

Every request carries an id, and the nodes count what they do to it, however often they are restarted: what
was answered happened once, what was refused never, what is unknown once at most (C1, C2). Answers must be
those of the very request. Some requests are given up on purpose, by a cancel or for want of time, and some
lose their token in the middle; nodes are stopped gracefully. Payloads exceed the first window, a turn's
share, what accounts allow, what the links hold and what a read brings, so that back-pressure and torn frames
are the rule. Each client has a token, a grant and an account of its own. In the end, when nothing fails any
more, each does everything once more and has to be served, and then the nodes must be idle.
Source: C1, C2, C6; access.4-6.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, Final, TypeVar
from zlib import crc32

import msgspec

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.access.tokens import LEEWAY, Tokens
from broadsheet.base.time import MILLISECOND, SECOND, Duration, WallTime
from broadsheet.base.types import NodeId
from broadsheet.errors import BroadsheetError, Refused, Status, Unknown
from broadsheet.ports import Random, Timers
from broadsheet.wire.client import dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY, Call, Empty, Method, Reply, RunOpened, Shape, WireStream
from broadsheet.wire.pool import Pool
from broadsheet.wire.routed import RetryPolicy, Routed
from broadsheet.wire.run import Run
from broadsheet.wire.server import Server
from simulator.checkers.wiretap import Wiretap
from simulator.history import Operation, Outcome
from simulator.plan import Budget, Fault, Kind, Plan
from simulator.services import ServiceContext, ServiceWorkload
from simulator.workload import Episode, Violation
from simulator.workloads.wire_borders import LONGEST, Borders, QuitServing, judge_deadline
from simulator.workloads.wire_checks import (
    Watcher,
    check_client,
    check_ended,
    check_idle,
    check_idle_client,
    demand,
    hold,
)
from simulator.workloads.wire_crowd import Crowd, CrowdServing, Keeper, patient
from simulator.workloads.wire_long import Long, tail
from simulator.workloads.wire_pressure import Pressure, Slots, lingering
from simulator.workloads.wire_requests import Asked, ClientSide, Deeds, Told, is_early
from simulator.workloads.wire_slow import Slow
from simulator.world import Life, World

S = TypeVar("S", bound=ClientSide)
NODES: Final = (NodeId("n1"), NodeId("n2"))
TIMEOUT: Final = Duration(800 * MILLISECOND)
LIMITS: Final = WireLimits(
    frame_bytes_max=256 << 10,
    body_bytes_max=64 << 10,
    window_bytes=768 << 10,
    streams_max=8,
    in_flight_bytes_max=384 << 10,
    node_in_flight_bytes_max=640 << 10,
    reserve_bytes=32 << 10,
    floor_bytes=16 << 10,
    turn_units_max=48,
    send_buffer_bytes_max=2 << 20,
    keepalive_interval=Duration(300 * MILLISECOND),
    dial_timeout=Duration(300 * MILLISECOND),
    drain_timeout=Duration(500 * MILLISECOND),
    call_timeout=Duration(100 * SECOND),
    first_byte_timeout=Duration(400 * MILLISECOND),
    greeting_timeout=Duration(900 * MILLISECOND),
    frame_timeout=Duration(2500 * MILLISECOND),
    crowded_frame_timeout=Duration(SECOND),
    write_timeout=Duration(600 * MILLISECOND),
)
"""Narrow budgets: every run meets the end of a share, of a window and of an account."""
CLUSTER: Final = "sim"
KEY: Final = b"a key of the simulated cluster.."
LIFE: Final = Duration(400 * 3600 * SECOND)
"""Of a token, before and after its client's clock: clocks jump by hours, which is not what is tested."""
AT_RISK: Final = (
    *("wire.turn_waited", "wire.turn_waited", "wire.turn_waited", "wire.held", "wire.row_waited"),
    *("wire.cancelled", "wire.late", "wire.expelled", "wire.narrow"),
)
"""Where a connection that is lost waits for something, or is waited for."""
FEW: Final = 7
"""Places of a node for connections: fewer than four clients take at times."""
DEAF: Final = msgspec.structs.replace(LIMITS, keepalive_misses_max=1 << 20)
"""Of a client that reads nothing and speaks now and then: nobody takes it for gone."""
DEAF_EVERY: Final = 20
EXPIRE_EVERY: Final = 60
TRICKLE_EVERY: Final = 150
LATE_MS: Final = 25
"""How late a handler of many small messages begins: they fill the window until then."""
EVERYDAY: Final = Capability.LIST | Capability.READ | Capability.APPEND
"""Of those that are neither peers nor operators, whose share is another one."""
OPERATOR: Final = "client0"
PROBER: Final = "client1"
NOTICED_SECONDS: Final = 2.5
"""By when a connection that died in the faults has been noticed: three keepalives, and some."""
IDLE_SECONDS: Final = 1.5
"""What was asked has ended by then, given up or not: handlers, sinks and frames on their way."""
SETTLED: Final = Duration(5 * SECOND)
STALL_MS: Final = 2000
"""Longer than a silent connection is kept."""
PROBE_SECONDS: Final = 0.2
PROBED_SECONDS: Final = 1.0
"""By when a small call of a caller that asks for nothing else is answered, whatever the others do."""
PAYLOAD_MAX: Final = 250_000
"""Fits a frame with its body, and is more than is copied where it outlives a read."""
JOINED_BYTES_MAX: Final = 200_000
"""Of frames that most sinks take as one run."""
OTHER: Final = {NODES[0]: NODES[1], NODES[1]: NODES[0]}
POLICY: Final = RetryPolicy(attempts_max=20)


class _Log:
    """A sink that takes runs, at once or after a while, and refuses every seventh.

    Some sinks answer the last run first. None waits for another run: while much is unanswered, no more of the
    connection is read.
    """

    def __init__(self, deeds: Deeds, asked: Asked, timers: Timers) -> None:
        self._deeds, self._asked, self._timers = deeds, asked, timers
        self._is_disorderly = crc32(asked.id.encode()) % 2 == 0
        self._head = 0
        self._held: list[Run] = []
        self.ends: list[str] = []
        """Each time that it was told of the end."""

    def on_run(self, run: Run) -> None:
        """Hold every other one for a while, or until the next."""
        if self._asked.count:
            content, at = b"".join(run.parts), 0
            for _, size in run.frames:
                self._deeds.placed(self._asked.id, int.from_bytes(content[at : at + 4], "little"))
                at += size
        self._held.append(run)
        if run.sequence % 2 or not self._asked.pause_ms:
            self._answer()
        else:
            self._timers.call_after(Duration(self._asked.pause_ms * MILLISECOND), self._answer)

    def on_end(self) -> None:
        """Answer what is held."""
        self.ends.append(self._asked.id)
        self._answer()

    def _answer(self) -> None:
        """Place what is held, and only then answer: each answer may bring more runs at once."""
        held, self._held = self._held, []
        begins: list[int | None] = []
        for run in held:
            is_refused = run.sequence % 7 == 6
            begins.append(None if is_refused else self._head)
            if not is_refused:
                sequence = run.sequence
                for count, _ in run.frames:
                    self._deeds.did(f"{self._asked.id}/{sequence}")
                    sequence += count
                self._head += run.size
        answers = list(zip(held, begins, strict=True))
        for run, begin in reversed(answers) if self._is_disorderly else answers:
            if begin is None:
                run.answer(Status.THROTTLED, message="every seventh")
            else:
                run.answer(Status.OK, begin, begin + run.size)


class WireWorkload(ServiceWorkload):
    """Two nodes without state, and clients that ask either."""

    name: ClassVar[str] = "wire"
    clients: ClassVar[int] = 4
    clients_min: ClassVar[int] = 2  # The others wait for the prober.
    scope: ClassVar[tuple[str, ...]] = ("wire",)
    budget: ClassVar[Budget] = Budget(
        kinds=(
            Kind.KILL,
            Kind.STOP,
            Kind.POWER_CUT,
            Kind.PARTITION,
            Kind.CLOG,
            Kind.RESET,
            Kind.HALF_OPEN,
            Kind.CLOCK_JUMP,
        )
    )
    """No disk, so no fault of one, and no crash in it."""

    def __init__(self) -> None:
        self.deeds = Deeds()
        self.kept = Keeper()
        self.has_halved = False
        """Whether one node has left for good."""
        self.slots: Slots | None = None
        self.servers: dict[str, tuple[Life, Watcher]] = {}
        self.callers: list[_Client] = []

    def listen_in(self, world: World) -> Wiretap:
        """Both sides of each connection are judged by what they say."""
        self.tap = Wiretap(world, LIMITS)
        return self.tap

    def knobs(self, draw: Random) -> dict[str, int]:
        """How hurried the clients are, how large the payloads, how slow the handlers."""
        return {
            "think_ms": draw.randrange(5, 40),
            "payload_bytes": min(PAYLOAD_MAX, 1 << draw.randrange(8, 19)),
            "streams_max": (2, 8, 64, 64)[draw.randrange(0, 4)],
            "pause_ms": draw.randrange(0, 60),
            "leave_every": 6,
            "connections_max": (FEW, LIMITS.connections_max, LIMITS.connections_max)[draw.randrange(0, 3)],
        }

    def stale_calls(self, knobs: dict[str, int]) -> int:
        """Any number where places are few: whoever loses a busy connection to somebody else cannot know."""
        return 1_000_000 if knobs.get("connections_max") == FEW else self.stale_calls_max

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """Two, so that a call can be sent to another one."""
        return NODES

    async def serve(self, context: ServiceContext, run: Episode) -> None:
        """A method of each shape."""
        self.slots = self.slots or Slots(run, _limits(run.plan.knobs).streams_max)
        crowd, quitting = CrowdServing(self.deeds, self.slots.taken), QuitServing(self.deeds)
        methods = [
            _row("sim.echo", 1, Shape.UNARY, partial(self._echo, context, run), Capability.READ),
            _row("sim.sum", 2, Shape.STREAM, partial(self._sum, context, run), Capability.APPEND),
            _row("sim.log", 3, Shape.RUN, partial(self._log, context, run), Capability.APPEND),
            _row("sim.row", 4, Shape.UNARY, crowd.row, Capability.READ),
            _row("sim.moved", 5, Shape.UNARY, partial(self._moved, context, crowd), Capability.READ),
            _row("sim.tail", 6, Shape.STREAM, tail, Capability.READ, is_receiving=False),
            _row("sim.quit", 7, Shape.UNARY, quitting.quit, Capability.APPEND),
            _row("sim.quit_stream", 8, Shape.STREAM, quitting.quit_stream, Capability.APPEND),
        ]
        authorizer = Authorizer(_tokens(), time=context.ports.time)
        ended: list[Server] = []

        async def judge_ended() -> None:
            await asyncio.sleep(0)  # A task that has just ended is told of in the next turn.
            for each in ended:
                check_ended(each)

        context.scope.defer(judge_ended)  # Last of all: the server is closed, and its calls have ended.
        server = Server(
            context.ports,
            context.scope.child("calls"),
            methods,
            authorizer=authorizer,
            limits=_limits(run.plan.knobs),
            cluster=CLUSTER,
        )
        self.servers[context.node] = (context.life, Watcher(server))
        await server.listen(context.address, is_insecure=True)
        context.scope.defer(server.close)
        ended.append(server)

    async def client(self, context: ServiceContext, run: Episode) -> None:
        """Calls, uploads and runs, one at a time."""
        client = _Client(context, run, self.deeds, self.kept)
        self.callers.append(client)
        await client.work()
        await client.finale()
        while not all(each.is_done for each in self.callers):  # noqa: ASYNC110 - of several lives.
            await asyncio.sleep(0.05)
        if context.node == PROBER:
            if client.knobs.get("connections_max") != FEW:  # Whoever waits may lose its place.
                await client.borders.squeeze(Asked(context.node))
                await client.slow.crowd(Asked(context.node))
            await client.long.stall(Asked(f"{context.node}.last", STALL_MS))
            client.has_stalled = True
        while not any(each.has_stalled for each in self.callers):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(IDLE_SECONDS)
        for _, watcher in self.servers.values():  # Each is alive: nothing fails any more.
            check_idle(watcher.server)
        self.tap.check_idle()
        await self._halve(client, run)
        await client.leave()

    async def _halve(self, client: "_Client", run: Episode) -> None:
        """One node leaves for good: whoever asked it goes to the other."""
        client.is_idle = True
        while not all(each.is_idle for each in self.callers):  # noqa: ASYNC110 - of several lives.
            await asyncio.sleep(0.05)
        await client.settle()
        client.is_settled = True
        while not all(each.is_settled for each in self.callers):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if client.context.node == PROBER:
            life, watcher = self.servers[NODES[run.plan.seed % 2]]
            run.world.soon(life, lambda: asyncio.ensure_future(watcher.server.close()))
            await asyncio.sleep(IDLE_SECONDS)
            self.has_halved = True
        while not self.has_halved:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await client.settle()

    def extra_faults(self, draw: Random, plan: Plan) -> list[Fault]:
        """A node leaves now and then, and connections are lost, with much under way."""
        faults = [
            Fault(
                draw.randrange(300 * MILLISECOND, plan.safety_ns),
                Kind.RESET,
                f"{node}|*",
                on=f"{node}:mark.{AT_RISK[draw.randrange(0, len(AT_RISK))]}",
                passage=draw.randrange(1, 20),
            )
            for node in (*NODES, *NODES)
        ]
        return faults + [
            Fault(draw.randrange(300 * MILLISECOND, plan.safety_ns), kind, target, lasts * MILLISECOND)
            for kind in (Kind.STOP, Kind.STOP, Kind.RESET, Kind.RESET)
            for node in (NODES[draw.randrange(0, 2)],)
            for target in ((node if kind is Kind.STOP else f"{node}|*"),)
            for lasts in (draw.randrange(1, 300),)
        ]

    def watch(self, run: Episode) -> None:
        """Between two turns nobody waits for room that there is, and what is held belongs to somebody."""
        self.tap.look()
        for client in self.callers:
            check_client(client.pool)
        for life, watcher in self.servers.values():
            if not life.is_dead:
                hold(watcher.server.check)
                watcher.look()

    def verify(self, run: Episode) -> None:
        """Once, never, or once at most, as the client was told; and the answer was the request's own."""
        for operation in run.history.operations:
            count = self.deeds.counts.get(str(operation.key), 0)
            _check(operation, count)
        self.watch(run)
        self.kept.look()
        for life, watcher in self.servers.values():
            if not life.is_dead:
                check_ended(watcher.server)
                check_idle(watcher.server)
        self.deeds.judge()

    def _moved(
        self, context: ServiceContext, crowd: CrowdServing, call: Call, request: Asked, payload: memoryview
    ) -> object:
        now = context.ports.time.now()
        return crowd.moved(call, request, payload, other=context.address_of(OTHER[context.node]), now=now)

    def _echo(
        self, context: ServiceContext, run: Episode, call: Call, request: Asked, payload: memoryview
    ) -> object:
        judge_deadline(run, call, context.ports.time.now())
        if not request.pause_ms:
            self.deeds.did(request.id)
            return Reply(_told(request, payload), (payload,))
        return self._later(call, request, payload)

    async def _later(self, call: Call, request: Asked, payload: memoryview) -> Reply:
        assert self.slots is not None, "a node serves"
        self.deeds.did(request.id)
        self.kept.keep(payload)
        with self.slots.taken(call):
            await lingering(request, request.pause_ms)
        return Reply(_told(request, payload), (payload,))

    async def _sum(
        self, context: ServiceContext, run: Episode, call: Call, request: Asked, stream: WireStream
    ) -> Reply:
        judge_deadline(run, call, context.ports.time.now())
        assert self.slots is not None, "a node serves"
        with self.slots.taken(call):
            try:
                return await self._summed(request, stream)
            except Refused as error:  # Of its stream: whoever has done something may not say no.
                raise (Unknown(str(error)) if self.deeds.counts.get(request.id) else error) from error

    async def _summed(self, request: Asked, stream: WireStream) -> Reply:
        size = crc = number = 0
        if request.count:
            await lingering(request, LATE_MS)
        while (message := await stream.receive()) is not None:
            number += 1
            if number == 1 and is_early(request.id):
                self.deeds.did(request.id)
            size, crc = size + len(message.payload), crc32(message.payload, crc)
            if request.count:
                continue  # They are many, and nothing comes back.
            self.kept.keep(message.payload)
            await lingering(request, request.pause_ms / 10)
            await stream.send(None, (message.payload,))
        if not (number and is_early(request.id)):
            self.deeds.did(request.id)
        return Reply(Told(request.id, size, crc))

    def _log(self, context: ServiceContext, run: Episode, call: Call, request: Asked) -> object:
        judge_deadline(run, call, context.ports.time.now())
        if crc32(request.id.encode()) % 3:
            return self._log_opened(context, request)
        return self._log_later(context, call, request)

    async def _log_later(self, context: ServiceContext, call: Call, request: Asked) -> RunOpened:
        assert self.slots is not None, "a node serves"
        with self.slots.taken(call):
            await lingering(request, LATE_MS)
        return self._log_opened(context, request)

    def _log_opened(self, context: ServiceContext, request: Asked) -> RunOpened:
        sink, life = _Log(self.deeds, request, context.ports.timers), context.life
        self.deeds.sinks.append((lambda: life.is_dead, request.id, sink.ends))
        return RunOpened(EMPTY, sink, JOINED_BYTES_MAX if crc32(request.id.encode()) % 5 < 3 else 0)


class _Client:
    """One client and what it has asked."""

    def __init__(self, context: ServiceContext, run: Episode, deeds: Deeds, kept: Keeper) -> None:
        self.context, self.run, self.knobs, self.deeds, self.kept = context, run, run.plan.knobs, deeds, kept
        self.random = context.random("operations")
        self.pool = Pool(context.ports, context.scope, limits=_limits(self.knobs), token=self._token)
        self.routed = Routed(self.pool, [context.address_of(node) for node in NODES], policy=POLICY)

        def side(kind: type[S]) -> S:
            return kind(
                context, run, self.routed, deeds, random=self.random, limits=LIMITS, token=self._token
            )

        self.crowd, self.long, self.pressure = side(Crowd), side(Long), side(Pressure)
        self.borders, self.slow = side(Borders), side(Slow)
        self.serial = 0
        self._tokens: dict[tuple[Capability, str], str] = {}
        self.aside: list[asyncio.Future[None]] = []
        """What is asked beside everything else."""
        self.is_done = self.has_stalled = self.is_idle = self.is_settled = False
        """Whether it has asked for everything that it will ask for."""

    async def work(self) -> None:
        """Until the run is over."""
        kinds = self._kinds()
        while not self.context.is_stopping:
            self.serial += 1
            pause = self.random.randrange(0, 2) * self.knobs["pause_ms"]
            asked = Asked(f"{self.context.node}.{self.serial}", pause)
            await kinds[self.random.randrange(0, len(kinds))](asked)
            if self.serial % DEAF_EVERY == DEAF_EVERY // 2:
                self.aside.append(asyncio.ensure_future(self._be_deaf()))
            if self.serial % EXPIRE_EVERY == EXPIRE_EVERY // 4:
                self._begin_to_expire()
            if self.serial % TRICKLE_EVERY == TRICKLE_EVERY // 2:
                await self.pressure.trickle(Asked(f"{self.context.node}.{self.serial}.trickle"))
            if self.serial % self.knobs.get("leave_every", 1 << 30) == 0:  # Plans that are older have none.
                await self._leave()
            await asyncio.sleep(self.random.randrange(0, 2 * self.knobs["think_ms"]) / 1000)
        await asyncio.gather(*self.aside)

    async def finale(self) -> None:
        """Everything once more, when nothing fails any more: the history holds that each call is answered."""
        await asyncio.sleep(NOTICED_SECONDS)
        probes = asyncio.ensure_future(self._probe() if self.context.node == PROBER else asyncio.sleep(0))
        kinds = dict.fromkeys(self._kinds())
        self.serial += 1
        self._begin_to_expire()
        if self.context.node == PROBER:
            self.aside.append(asyncio.ensure_future(self.slow.dawdle(Asked(f"{self.context.node}.slow"))))
        for kind in kinds:
            self.serial += 1
            pause = self.random.randrange(0, 2) * self.knobs["pause_ms"]
            await kind(Asked(f"{self.context.node}.{self.serial}", pause))
        await asyncio.gather(*self.aside)
        probes.cancel()
        await asyncio.gather(probes, return_exceptions=True)
        self.is_done = True

    async def settle(self) -> None:
        """Ask once more: somebody serves it."""
        self.serial += 1
        asked = Asked(f"{self.context.node}.{self.serial}")
        try:
            await self.routed.call("sim.echo", asked, reply=Told, timeout=SETTLED, is_idempotent=True)
        except BroadsheetError as error:
            raise Violation(f"a node is there, and {asked.id} is not served: {error}") from error

    async def leave(self) -> None:
        """Nothing is left over; go."""
        check_idle_client(self.pool)
        await self.pool.close()

    def _kinds(self) -> tuple[Callable[[Asked], Awaitable[None]], ...]:
        crowd, long, borders = self.crowd, self.long, self.borders
        often = (
            *(self._call, self._call, self._call, self._upload, self._append, self._give_up),
            *(crowd.row, crowd.hedge, crowd.flood, crowd.moved),
        )
        pressure = self.pressure
        seldom = (
            *(pressure.parade, pressure.relay, pressure.break_off),
            *(borders.hasty, borders.quit, borders.brief, borders.stuck),
        )
        return (*often, *often, *seldom, crowd.gone, crowd.gone, long.trespass, long.tail)

    def _begin_to_expire(self) -> None:
        asked = Asked(f"{self.context.node}.{self.serial}.expire")
        self.aside.append(asyncio.ensure_future(self.long.expire(asked)))

    async def _probe(self) -> None:
        """Ask for little, as somebody else, while the others ask for much: nobody starves."""
        address, name = self.context.address_of(NODES[0]), f"probe.{self.context.node}"
        if self.knobs.get("connections_max") == FEW:
            return  # Whoever asks seldom may lose its place.
        connection = await dial(self.context.ports, address, token=self._token(prefix=name), limits=LIMITS)
        ask = partial(connection.call, "sim.echo", reply=Told, timeout=LONGEST)
        time, number = self.run.world, 0
        try:
            while True:
                number, began = number + 1, time.now
                await ask(Asked(f"{name}.{number}"))
                took = (time.now - began) / SECOND
                demand(took < PROBED_SECONDS, f"a small call of {name} took {took} s beside those of others")
                await asyncio.sleep(PROBE_SECONDS)
        finally:
            connection.abort("it has probed enough")

    async def _leave(self) -> None:
        """Be gone while messages wait for a handler and runs for their answer: nothing of them may stay."""
        address, name = self.context.address_of(NODES[0]), f"{self.context.node}.{self.serial}.left"
        try:
            connection = await dial(self.context.ports, address, token=self._token(), limits=LIMITS)
            stream = await connection.open("sim.sum", Asked(f"{name}.up", 1000), timeout=TIMEOUT)
            _, run = await connection.open_run("sim.log", Asked(name, 1000), reply=Empty, timeout=TIMEOUT)
            for _ in range(4):
                await asyncio.wait_for(stream.send(None, (b"left",)), 1.0)
            answer = await asyncio.wait_for(run.submit([b"left behind"]), 1.0)
        except (BroadsheetError, TimeoutError):
            return
        await asyncio.sleep(self.random.randrange(5, 50) / 1000)
        connection.abort("it left")
        await asyncio.wait([answer], timeout=1.0)

    async def _be_deaf(self) -> None:
        """Ask for much and read nothing of it: the node gives such a connection up, and all that it holds."""
        address = self.context.address_of(NODES[self.serial % len(NODES)])
        try:
            connection = await dial(self.context.ports, address, token=self._token(), limits=DEAF)
        except BroadsheetError:
            return
        if connection.transport is not None:
            connection.transport.pause_reading()
        name, payload = f"{self.context.node}.{self.serial}.deaf", bytes(LIMITS.frame_bytes_max // 2)
        ask = partial(connection.call, "sim.echo", payload=(payload,), reply=Told, timeout=LONGEST)
        calls = [asyncio.ensure_future(ask(Asked(f"{name}.{n}"))) for n in range(LIMITS.streams_max)]
        await asyncio.wait(calls, timeout=3.0)
        connection.abort("it was deaf")
        await asyncio.gather(*calls, return_exceptions=True)

    def _token(
        self, capabilities: Capability = EVERYTHING, *, seconds: int | None = None, prefix: str = ""
    ) -> str:
        """A token for the names of this client, which ends after `seconds`, or never in this run."""
        if self.context.node != OPERATOR or prefix:
            capabilities &= EVERYDAY
        known = self._tokens.get((capabilities, prefix)) if seconds is None else None
        if known is not None:
            return known
        issued = WallTime(self.context.ports.time.wall() - LIFE)
        lifetime = Duration(2 * LIFE if seconds is None else LIFE + seconds * SECOND - LEEWAY)
        prefixes = [f"{prefix or self.context.node}."]
        token = _tokens().sign(capabilities, prefixes=prefixes, now=issued, lifetime=lifetime)
        if seconds is None:
            self._tokens[(capabilities, prefix)] = token
        return token

    async def _give_up(self, asked: Asked) -> None:
        """A few calls at once, of which some are cancelled, and some have no time."""
        deeds, payload = self.deeds, self._payload()

        async def one(name: str, timeout: Duration) -> None:
            slow = Asked(name, 30)
            deeds.given_up[name] = False
            try:
                await self.routed.call("sim.echo", slow, (payload,), reply=Told, timeout=timeout)
            except Refused:
                deeds.given_up[name] = True
            except BroadsheetError:
                pass  # Unknown: once at most.

        calls = [
            asyncio.ensure_future(
                one(f"{asked.id}.{number}", Duration((12 + 400 * (number % 2)) * MILLISECOND))
            )
            for number in range(self.random.randrange(2, 12))
        ]
        await asyncio.sleep(self.random.randrange(0, 40) / 1000)
        for call in calls[::3]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _payload(self) -> bytes:
        size = self.random.randrange(0, self.knobs["payload_bytes"])
        return self.random.randrange(0, 1 << 32).to_bytes(4, "little") * (size // 4)

    async def _call(self, asked: Asked) -> None:
        operation = self.run.history.invoke(self.context.node, asked.id, "call")
        payload = self._payload()
        try:
            told, rest = await self.routed.call(
                "sim.echo", asked, (payload,), reply=Told, timeout=patient(TIMEOUT, self.run)
            )
        except BroadsheetError as error:
            self._ended(operation, error)
        else:
            self.run.history.ok(operation, told == _told(asked, payload) and rest == payload)
            self.kept.keep(rest)

    async def _upload(self, asked: Asked) -> None:
        """Send and receive at once; the echoes must be what was sent, in order."""
        operation = self.run.history.invoke(self.context.node, asked.id, "upload")
        payloads = [self._payload() for _ in range(self.random.randrange(0, 12))]
        try:
            stream = await self.routed.open(
                "sim.sum", asked, timeout=patient(Duration(3 * TIMEOUT), self.run)
            )
        except BroadsheetError as error:
            self._ended(operation, error)
            return
        echoes: list[bytes] = []

        async def receive() -> None:
            while (message := await stream.receive()) is not None:
                echoes.append(bytes(message.payload))
                self.kept.keep(message.payload)

        receiver = asyncio.ensure_future(receive())
        try:
            for payload in payloads:
                await stream.send(None, (payload,))
            told = await stream.reply(Told)
            await receiver
        except BroadsheetError as error:
            self._ended(operation, error)
        else:
            sent = b"".join(payloads)
            self.run.history.ok(
                operation, echoes == payloads and told == Told(asked.id, len(sent), crc32(sent))
            )
        finally:
            stream.cancel()
            await asyncio.gather(receiver, return_exceptions=True)

    async def _append(self, asked: Asked) -> None:
        """A few runs ahead of their answers; positions must be dense."""
        try:
            _, run = await self.routed.open_run("sim.log", asked, reply=Empty, timeout=TIMEOUT)
        except BroadsheetError:
            return
        runs = [
            [self._payload()[: PAYLOAD_MAX // 2] for _ in range(self.random.randrange(1, 3))]
            for _ in range(4)
        ]
        sequence, answers = 0, []
        for records in runs:
            name = f"{asked.id}/{sequence}"
            operation = self.run.history.invoke(self.context.node, name, "append")
            sequence += len(records)
            try:
                answers.append((operation, records, await run.submit(records)))
            except BroadsheetError as error:
                self._ended(operation, error)
        closing = asyncio.ensure_future(run.close())
        head = 0
        for operation, records, future in answers:
            size = sum([len(record) for record in records])
            try:
                found = await asyncio.wait_for(future, 20.0)
            except BroadsheetError as error:
                self._ended(operation, error)
            except TimeoutError:
                self.run.history.lose(operation)
            else:
                self.run.history.ok(operation, (found.begin, found.end) == (head, head + size))
                head += size
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

    def _ended(self, operation: Operation, error: BroadsheetError) -> None:
        if isinstance(error, Refused):
            self.run.history.reject(operation, type(error).__name__)
        else:
            self.run.history.lose(operation)


def _limits(knobs: dict[str, int]) -> WireLimits:
    """Narrow budgets, and as many streams and connections as this run has."""
    return msgspec.structs.replace(
        LIMITS,
        streams_max=knobs.get("streams_max", LIMITS.streams_max),
        connections_max=knobs.get("connections_max", LIMITS.connections_max),
    )


def _told(asked: Asked, payload: bytes | memoryview) -> Told:
    return Told(asked.id, len(payload), crc32(payload))


def _tokens() -> Tokens:
    return Tokens([KEY], audience=CLUSTER, lifetime_max=Duration(2 * LIFE))


def _row(
    name: str,
    number: int,
    shape: Shape,
    handler: object,
    capability: Capability,
    *,
    is_receiving: bool = True,
) -> Method:
    return Method(
        name, number=number, shape=shape, capability=capability, request=Asked,
        name_of=lambda asked: asked.id, is_receiving=is_receiving,
        handler=handler,  # type: ignore[arg-type]  # one row for every shape.
    )  # fmt: skip


def _check(operation: Operation, count: int) -> None:
    least, most = 0, 1
    if operation.outcome is Outcome.OK:
        least = 1
        if operation.result is not True:
            raise Violation(f"{operation}: the answer is another request's")
    elif operation.outcome is Outcome.REJECTED:
        most = 0
    if operation.name == "moved":  # Twice is as once.
        most = 1_000 * most
    if operation.name == "tail":  # It reads, and does nothing.
        least = 0
    if not least <= count <= most:
        raise Violation(f"{operation}: done {count} times")
