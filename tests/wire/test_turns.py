"""A turn of the loop is short, whatever one client sends, and every caller gets its own."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from typing import cast

import msgspec
import pytest

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.principal import Principal
from broadsheet.base.time import MILLISECOND, SECOND, Duration, after
from broadsheet.errors import Throttled
from broadsheet.runtime.slices import COUNT_MAX
from broadsheet.wire import frame as f
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Reply
from broadsheet.wire.server_connection import ServerConnection
from broadsheet.wire.turn_shares import ALL, START_UNITS, Share, TurnShares
from simulator.fuzz_sessions import run
from tests.wire.harness import Echo, Empty, World, until, world

UNITS = 256
LIMITS = WireLimits(turn_units_max=UNITS, turn_time_max=Duration(3600 * SECOND))
"""So that a turn ends by the count of units alone: the same on every machine."""
HELLO = f.frame(f.HELLO, 0, f.encode(f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 9 << 20)))


def request(kind: int, number: int, method: int, *, body: Echo = Echo()) -> bytes:  # noqa: B008 - frozen.
    return f.frame(kind, 2 * number + 1, f.CALL_HEAD.pack(method, 0) + f.encode(body))


async def most_in_a_turn(w: World, data: bytes, count: Callable[[], int], total: int) -> int:
    """Send `data`, and count how much is done of it between two turns of the loop at the most."""
    loop = asyncio.get_running_loop()
    host, _, port = w.address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    sending = asyncio.ensure_future(loop.sock_sendall(sock, HELLO))
    await until(lambda: any(each.caller for each in w.server.connections.values()))
    await sending
    sending = asyncio.ensure_future(loop.sock_sendall(sock, data))
    most = before = count()
    most = 0
    async with asyncio.timeout(60):
        while count() < total:
            await asyncio.sleep(0)
            most, before = max(most, count() - before), count()
            w.server.turns.check()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    sock.close()
    return most


@pytest.mark.parametrize("kind", [f.CALL, f.OPEN, f.OPEN_RUN])
async def test_requests_that_start_tasks_are_few_in_a_turn(kind: int) -> None:
    """All connections together have four shares. Before, 10,000 OPENs in a write held a node for seconds."""
    method = {f.CALL: 202, f.OPEN: 209, f.OPEN_RUN: 210}[kind]
    pairs = [request(kind, n, method) + f.frame(f.CANCEL, 2 * n + 1) * (n % 2) for n in range(500)]
    async with world(LIMITS) as w:
        most = await most_in_a_turn(w, b"".join(pairs), lambda: w.server.counts.calls, 250)

        assert 1 <= most <= 4 * (UNITS // START_UNITS)


async def test_fewer_tasks_are_started_while_what_they_do_makes_turns_long() -> None:
    """To start one is cheap, and its steps are not: 128 appends started in 3 ms held the loop for 10 ms."""
    limits = WireLimits(turn_units_max=UNITS, turn_time_max=Duration(20 * MILLISECOND))
    async with world(limits) as w:

        async def heavy(_call: object, request: Echo, _payload: memoryview) -> Reply:
            await asyncio.sleep(0)
            time.sleep(0.004)  # noqa: ASYNC251 - it holds the loop up on purpose.
            return Reply(request)

        w.server.table[202].handler = heavy
        units: list[int] = []
        begin = w.server.turns._begin

        def watched() -> None:
            begin()
            units.append(w.server.turns._units)

        w.server.turns._begin = watched  # type: ignore[method-assign]
        calls = b"".join([request(f.CALL, number, 202, body=Echo(number=number)) for number in range(300)])
        await most_in_a_turn(w, calls, lambda: w.server.counts.calls, 300)

        assert units[0] == ALL * UNITS
        assert min(units) == UNITS, "turns were long"
        await until(lambda: w.server.accounts.task_count == 0)
        client = await w.client()
        for _ in range(10):
            await client.call("test.echo", Echo(), reply=Echo)
        assert units[-1] > UNITS, "and are short again"
        await client.close()


async def test_first_steps_that_take_long_are_few_in_a_turn() -> None:
    """Those of one turn were begun in 3 ms, and then took what they took: a tenth of a second."""
    limits = WireLimits(turn_time_max=Duration(20 * MILLISECOND))
    begun = 0
    async with world(limits) as w:

        async def heavy(_call: object, request: Echo, _payload: memoryview) -> Reply:
            nonlocal begun
            begun += 1
            time.sleep(0.01)  # noqa: ASYNC251 - it holds the loop up on purpose.
            return Reply(request)

        w.server.table[202].handler = heavy
        calls = b"".join([request(f.CALL, number, 202, body=Echo(number=number)) for number in range(60)])
        most = await most_in_a_turn(w, calls, lambda: begun, 60)

        assert most <= 3


@pytest.mark.parametrize("connection_count", [1, 40])
async def test_requests_of_one_who_is_gone_are_cancelled_a_few_in_each_turn(connection_count: int) -> None:
    """8,000 reads of a caller that left were cancelled in one turn: 0.15 s on one connection, 0.4 s on 64."""
    async with world(LIMITS) as w:
        host, _, port = w.address.rpartition(":")
        count = 5 * COUNT_MAX // connection_count
        writers: list[asyncio.StreamWriter] = []
        for _ in range(connection_count):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(HELLO)
            await reader.read(1)
            writer.write(b"".join([request(f.CALL, each, 203) for each in range(count)]))
            writers.append(writer)
        await until(lambda: w.server.accounts.task_count == connection_count * count)
        for writer in writers:
            writer.transport.abort()
        while w.server.accounts.task_count:
            before = w.methods.cancelled
            await asyncio.sleep(0)
            assert w.methods.cancelled - before <= COUNT_MAX
            w.server.check()

        assert w.methods.cancelled == connection_count * count


async def test_calls_that_are_alike_are_few_in_a_turn_too() -> None:
    """They are taken by column, 64 at a time, and must not escape the share by that."""
    calls = b"".join([request(f.CALL, number, 201) for number in range(20_000)])
    async with world(LIMITS) as w:
        most = await most_in_a_turn(w, calls, lambda: w.server.counts.calls, 20_000)

        assert most <= UNITS * 16


async def test_frames_that_start_nothing_are_few_in_a_turn() -> None:
    """Late frames, pings and windows cost a microsecond each: a megabyte of them was 65,000 in one turn.

    Source: wire.5.
    """
    async with world(LIMITS) as w:
        pings = f.frame(f.PING, 0) * 20_000
        most = await most_in_a_turn(
            w, pings, lambda: sum([each.written_bytes for each in w.server.connections.values()]), 20_000 * 16
        )

        assert most <= 2 * 4 * UNITS * 16, "answers of two turns may leave together"


class Counting(Authorizer):
    """Says how many tokens it was shown."""

    count = 0

    def authenticate(self, token: str) -> Principal:
        self.count += 1
        return super().authenticate(token)


async def test_few_connections_are_answered_in_one_turn() -> None:
    """The answers of each connection leave in a write of their own: 400 of them took 9 ms after one turn."""
    async with world(LIMITS) as w:
        host, _, port = w.address.rpartition(":")
        socks = [socket.create_connection((host, int(port))) for _ in range(200)]
        for sock in socks:
            sock.sendall(HELLO)
        await until(lambda: sum(bool(each.caller) for each in w.server.connections.values()) == 200)
        await asyncio.sleep(0.05)
        before = {each: each.written_bytes for each in w.server.connections.values()}
        for sock in socks:
            sock.sendall(f.frame(f.PING, 0))
        most = answered = 0
        async with asyncio.timeout(30):
            while answered < 200:
                await asyncio.sleep(0)
                count = sum(each.written_bytes > begun for each, begun in before.items())
                most, answered = max(most, count - answered), count
        for sock in socks:
            sock.close()

    assert most <= ALL * UNITS // 16


async def test_a_call_now_and_then_does_not_wait_behind_a_flood() -> None:
    """Callers that come fresh are served before those that had a share and want more."""
    async with world(LIMITS) as w:
        client = await w.client()
        host, _, port = w.address.rpartition(":")
        floods = [socket.create_connection((host, int(port))) for _ in range(8)]
        calls = b"".join([request(f.CALL, n, 201, body=Echo(number=n)) for n in range(3000)])
        loop = asyncio.get_running_loop()
        for sock in floods:
            sock.setblocking(False)
        sending = [asyncio.ensure_future(loop.sock_sendall(sock, HELLO + b"")) for sock in floods]
        await until(lambda: w.server.places.caller_count == 9)
        sending += [asyncio.ensure_future(loop.sock_sendall(sock, calls)) for sock in floods]
        await until(lambda: w.server.counts.calls > 100)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        await client.call("test.echo", Echo(), reply=Echo)
        counting.cancel()

        assert w.server.counts.calls < 8 * 3000, "the flood goes on"
        for each in sending:
            each.cancel()
        await asyncio.gather(counting, *sending, return_exceptions=True)
        for sock in floods:
            sock.close()
        await client.close()


async def test_a_cancelled_call_keeps_its_slot_until_its_task_has_ended() -> None:
    """Else whoever cancels at once has as many tasks running as it likes, whatever `streams_max` says.

    Source: wire.7.
    """
    begun: list[Echo] = []

    async def later(request: Echo) -> Reply:
        await asyncio.sleep(0)
        return Reply(request)

    def begins(_call: object, request: Echo, _payload: memoryview) -> Coroutine[object, object, Reply]:
        begun.append(request)
        return later(request)

    async with world(WireLimits(streams_max=2)) as w:
        echo = w.server.table[201].handler
        client = await w.client()
        asked = [asyncio.ensure_future(client.call("test.stubborn", Echo(), reply=Echo)) for _ in range(2)]
        await until(lambda: w.server.counts.calls == 2)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: w.methods.cancelled == 2)
        with pytest.raises(Throttled, match="2 streams are open"):
            await client.call("test.task", Echo(), reply=Echo)
        w.server.table[201].handler = begins
        with pytest.raises(Throttled, match="2 streams are open"):
            await client.call("test.echo", Echo(), reply=Echo)
        w.server.table[201].handler = echo
        assert not begun, "what is refused was not begun"
        w.methods.gate.set()
        await until(lambda: w.server.accounts.task_count == 0)

        assert (await client.call("test.echo", Echo(number=7), reply=Echo))[0].number == 7
        await client.close()


@pytest.mark.parametrize(("kind", "method"), [(f.OPEN, 209), (f.CALL, 203)])
async def test_what_is_cancelled_before_it_is_looked_at_is_not_begun(kind: int, method: int) -> None:
    """A request and its CANCEL in one read cost the node two frames, and no task."""
    async with world(LIMITS) as w:
        pairs = [request(kind, n, method) + f.frame(f.CANCEL, 2 * n + 1) for n in range(100)]
        ping = request(f.CALL, 100, 201)
        await most_in_a_turn(w, b"".join(pairs) + ping, lambda: w.server.counts.calls, 1)

        assert (w.server.counts.calls, w.methods.cancelled) == (1, 0)


async def test_tasks_of_one_caller_are_bounded() -> None:
    """Streams are bounded by connection, so a caller with many connections had as many tasks as it liked."""
    async with world(WireLimits(node_tasks_max=100)) as w:
        client = await w.client()
        asked = [asyncio.ensure_future(client.call("test.wait", Echo(), reply=Echo)) for _ in range(80)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert all(isinstance(each.exception(), Throttled) for each in done)
        w.methods.gate.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)

        assert sum([isinstance(each, tuple) for each in answers]) == 64
        await client.close()


async def test_frames_that_never_end_hold_no_more_than_their_share() -> None:
    """Reproduced before: each of 4,096 connections could make the node hold a frame of 4 MiB, torn."""
    limits = WireLimits(
        frame_bytes_max=1 << 20, window_bytes=3 << 20, in_flight_bytes_max=2 << 20,
        node_in_flight_bytes_max=8 << 20, reserve_bytes=1 << 20, frame_timeout=Duration(300 * MILLISECOND),
        keepalive_interval=Duration(100 * MILLISECOND), keepalive_misses_max=1000,
    )  # fmt: skip
    async with world(limits) as w:
        client = await w.client()
        host, _, port = w.address.rpartition(":")
        body = f.CALL_HEAD.pack(201, 0) + f.encode(Echo())
        torn = f.header(f.CALL, 1, body_bytes=len(body), payload_bytes=1_000_000) + body + bytes(300_000)
        socks = [socket.create_connection((host, int(port))) for _ in range(20)]
        for sock in socks:
            sock.setblocking(False)
        loop = asyncio.get_running_loop()
        sending = [asyncio.ensure_future(loop.sock_sendall(sock, HELLO)) for sock in socks]
        await until(lambda: w.server.places.caller_count == 21)
        sending += [asyncio.ensure_future(loop.sock_sendall(sock, torn)) for sock in socks]
        await until(lambda: w.server.accounts.used_bytes > 2 << 20)
        for _ in range(20):
            await client.call("test.echo", Echo(), (b"small",), reply=Echo)
            assert w.server.accounts.used_bytes <= limits.node_in_flight_bytes_max
        await until(lambda: w.server.counts.broken >= 20)
        _, payload = await client.call("test.echo", Echo(), (bytes(900_000),), reply=Echo)

        assert len(payload) == 900_000
        for each in sending:
            each.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        for sock in socks:
            sock.close()
        await client.close()


CROWDED = WireLimits(
    frame_bytes_max=1 << 20, window_bytes=3 << 20, in_flight_bytes_max=2 << 20,
    node_in_flight_bytes_max=8 << 20, reserve_bytes=1 << 20,
    crowded_frame_timeout=Duration(4 * SECOND),
)  # fmt: skip
"""Four frames of 1 MB fill what one caller may have."""


def large_call(stream: int = 1) -> bytes:
    body = f.CALL_HEAD.pack(201, 0) + f.encode(Echo())
    return f.header(f.CALL, stream, body_bytes=len(body), payload_bytes=1_000_000) + body + bytes(1_000_000)


async def test_frames_that_are_begun_and_left_keep_no_other_large_frame_waiting() -> None:
    """They kept all large frames of their caller waiting for a minute, and again as they were begun anew."""
    async with world(CROWDED) as w:
        host, _, port = w.address.rpartition(":")
        left = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
        for reader, writer in left:
            writer.write(HELLO)
            await reader.read(1)  # The welcome.
            writer.write(large_call()[:200_000])
        await until(lambda: w.server.accounts.used_bytes > 2 << 20)
        client = await w.client()
        async with asyncio.timeout(20):
            _, payload = await client.call("test.echo", Echo(), (bytes(900_000),), reply=Echo)
        assert len(payload) == 900_000
        assert w.server.counts.broken >= 1
        for _, writer in left:
            writer.close()
        await client.close()


async def test_a_frame_that_is_given_up_gives_its_room_back_before_its_connection_is_gone() -> None:
    """The peer may leave unread why, until `write_timeout`: the room came free eight seconds later then."""
    async with world(CROWDED) as w:
        host, _, port = w.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(HELLO)
        await reader.read(1)  # The welcome.
        writer.write(large_call()[:200_000])
        await until(lambda: w.server.accounts.used_bytes > 1_000_000)
        (connection,) = w.server.connections.values()
        connection.backpressure.hurry(after(w.ports.time.now(), CROWDED.crowded_frame_timeout))

        assert w.server.connections
        assert not w.server.accounts.used_bytes
        assert not connection.torn_bytes
        w.server.check()
        writer.close()


async def test_a_large_frame_that_comes_fast_enough_is_not_given_up_because_others_wait() -> None:
    """Otherwise a caller with many uploads over a slow line would lose its connections by turns."""
    async with world(msgspec.structs.replace(CROWDED, crowded_frame_timeout=8 * SECOND)) as w:
        host, _, port = w.address.rpartition(":")
        steady = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
        for reader, writer in steady:
            writer.write(HELLO)
            await reader.read(1)  # The welcome.
            writer.write(large_call()[:200_000])
        await until(lambda: w.server.accounts.used_bytes > 7 << 19)
        client = await w.client()
        waiting = asyncio.ensure_future(client.call("test.echo", Echo(), (bytes(900_000),), reply=Echo))
        await until(lambda: any(each.backpressure.is_held for each in w.server.connections.values()))
        for at in range(200_000, 1_000_200, 50_000):
            assert not waiting.done(), "there was room all the time"
            for _, writer in steady:
                writer.write(large_call()[at : min(at + 50_000, 1_000_000)])
            await asyncio.sleep(0.1)
        for _, writer in steady:
            writer.write(large_call()[1_000_000:])
        await waiting
        for reader, writer in steady:
            assert len(await reader.readexactly(1_000_000)) == 1_000_000
            writer.close()
        assert not w.server.counts.broken
        await client.close()


async def test_runs_that_nobody_answers_do_not_starve_another_caller() -> None:
    """Reproduced before: ten connections whose runs waited filled the node's budget, and nobody was read."""
    limits = WireLimits(
        frame_bytes_max=1 << 20, window_bytes=3 << 20, in_flight_bytes_max=2 << 20,
        node_in_flight_bytes_max=8 << 20, reserve_bytes=1 << 20,
    )  # fmt: skip
    async with world(limits) as w:
        w.methods.log.is_holding = True
        hogs = [await w.client() for _ in range(10)]
        runs = [(await hog.open_run("test.append", Echo(), reply=Empty))[1] for hog in hogs]
        sending = [asyncio.ensure_future(run.send([bytes(900_000)])) for run in runs for _ in range(3)]
        await until(lambda: any(each.backpressure.is_held for each in w.server.connections.values()))
        other = await w.client()
        for _ in range(10):
            async with asyncio.timeout(10):
                await other.call("test.echo", Echo(), (bytes(50_000),), reply=Echo)
        w.methods.log.release()
        await asyncio.gather(*sending)

        for client in (*hogs, other):
            await client.close()


async def test_whoever_wants_more_is_not_starved_by_many_that_ask_now_and_then() -> None:
    """It waited for as long as others kept coming: 200 connections made of 15,000 calls a second 10."""
    async with world(LIMITS) as w:
        served: list[str] = []

        class Asker:
            is_waiting = False

            def __init__(self, flow: str, *, has_more: bool) -> None:
                self.flow, self.has_more = flow, has_more

            def work(self, share: Share) -> bool:
                served.append(self.flow)
                share.units -= UNITS
                if not self.has_more:
                    asyncio.get_running_loop().call_soon(
                        turns.enter, cast(ServerConnection, self)
                    )  # It asks again at once.
                return self.has_more

            def update_reading(self) -> None: ...

            def release_buffer(self) -> None: ...

        turns = TurnShares(w.ports, LIMITS)
        askers = [Asker("greedy", has_more=True), *[Asker(f"{n}", has_more=False) for n in range(20)]]
        for asker in askers:
            turns.enter(cast(ServerConnection, asker))
        for _ in range(100):
            await asyncio.sleep(0)
        turns.check()

        assert served.count("greedy") > len(served) // 3, "every other share is of those that want more"
        assert max(served.count(f"{n}") for n in range(20)) > 2, "and they are not starved either"
        for asker in askers:
            turns.forget(cast(ServerConnection, asker))
            asker.has_more = True


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_calls_that_are_alike_and_refused_are_few_in_a_turn(is_allowed: bool) -> None:
    """42,000 calls of a method that is not there fit into a read, and were refused in one go."""
    calls = b"".join([request(f.CALL, number, 999) for number in range(20_000)])
    if not is_allowed:
        calls = b"".join(
            [request(f.CALL, number, 201).replace(b"a/b", b"\xc1/b") for number in range(20_000)]
        )
    async with world(LIMITS) as w:
        most = await most_in_a_turn(w, calls, lambda: w.server.counts.refused, 20_000)

        assert 1 <= most <= 4 * UNITS


@pytest.mark.parametrize("are_alike", [True, False])
async def test_dear_calls_are_few_in_a_turn(are_alike: bool) -> None:
    """Nobody looked at the clock before the fifth: lists of 5 ms each held the loop for 20 ms a turn.

    Of calls that differ in anything, nobody did before the eighth.
    """
    limits = WireLimits(turn_time_max=Duration(3 * MILLISECOND))
    async with world(limits) as w:
        served = 0

        def dear(_call: object, request: Echo, _payload: memoryview) -> Reply:
            nonlocal served
            time.sleep(0.004)
            served += 1
            return Reply(request)

        w.server.table[201].handler = dear
        bodies = [Echo(number=0 if are_alike else number) for number in range(100)]
        calls = b"".join([request(f.CALL, number, 201, body=body) for number, body in enumerate(bodies)])
        most = await most_in_a_turn(w, calls, lambda: served, 100)

        assert 1 <= most <= 2


async def test_large_answers_to_calls_that_are_alike_are_few_in_a_turn() -> None:
    """They were encoded, and counted, behind the last call: 1,024 of `journal.get` were 276 MB in one turn.

    The loop stood still for 0.3 s, and the caller was disconnected because it had not read all of them.
    """
    async with world(LIMITS) as w:
        large = Echo(name="x" * 100_000)
        w.server.table[201].handler = lambda _call, _request, _payload: Reply(large)
        client = await w.client()
        calls = [asyncio.ensure_future(client.call("test.echo", Echo(), reply=Echo)) for _ in range(400)]
        (connection,) = w.server.connections.values()
        most = before = 0
        while not all(call.done() for call in calls):
            await asyncio.sleep(0)
            most, before = max(most, connection.written_bytes - before), connection.written_bytes

        assert [(await call)[0] for call in calls] == [large] * 400
        assert most < 4 << 20, "a share is 256 KiB of answers"
        await client.close()


async def test_a_cancel_behind_many_calls_that_are_alike_is_heard() -> None:
    """It came in the same read as 24 calls or more, was taken for a late one, and the call ran."""
    calls = b"".join([request(f.CALL, number, 203) for number in range(64)])
    cancels = b"".join([f.frame(f.CANCEL, 2 * number + 1) for number in range(0, 64, 2)])
    async with world() as w:
        loop = asyncio.get_running_loop()
        host, _, port = w.address.rpartition(":")
        sock = socket.create_connection((host, int(port)))
        sock.setblocking(False)
        await loop.sock_sendall(sock, HELLO)
        await until(lambda: any(each.caller for each in w.server.connections.values()))
        await loop.sock_sendall(sock, calls + cancels + request(f.CALL, 64, 203))
        (connection,) = w.server.connections.values()
        await until(lambda: connection.machine.last_stream == 129 and connection.is_idle is False)
        await until(lambda: len(connection.machine.streams) == 33)
        for _ in range(10):
            await asyncio.sleep(0)

        assert sorted(connection.machine.streams) == sorted([2 * n + 1 for n in range(1, 64, 2)] + [129])
        assert not w.methods.cancelled, "they were not begun"
        await loop.sock_sendall(sock, f.frame(f.PING, 0))
        await until(lambda: not connection.machine.withdrawn)  # Nothing is remembered of it.
        sock.close()


async def test_a_cancelled_call_of_a_row_is_not_begun_and_the_others_keep_their_answers() -> None:
    """A plain handler runs within the read, and its reply would go to a stream that the caller has left."""
    begun: list[int] = []

    def handler(_call: object, request: Echo, payload: memoryview) -> Reply:
        begun.append(payload[0])
        return Reply(request, (payload,))

    head = f.CALL_HEAD.pack(201, 0) + f.encode(Echo())
    calls = [
        f.header(f.CALL, 2 * n + 1, body_bytes=len(head), payload_bytes=1) + head + bytes((n,))
        for n in range(64)
    ]
    cancels = [f.frame(f.CANCEL, 2 * n + 1) for n in range(0, 64, 3)]
    async with world() as w:
        w.server.table[201].handler = handler
        reader, writer = await asyncio.open_connection(*w.address.split(":"))
        writer.write(HELLO)
        await until(lambda: any(each.caller for each in w.server.connections.values()))
        writer.write(b"".join(calls + cancels))
        expected = [n for n in range(64) if n % 3]
        await until(lambda: len(begun) >= len(expected))
        writer.write_eof()
        answers = await reader.read()
        writer.close()

    found, at = {}, f.HEADER_BYTES + f.U32.unpack_from(answers)[0]
    while at < len(answers):
        length, stream, word, _ = f.HEADER.unpack_from(answers, at)
        if word & f.KIND_MASK == f.REPLY:
            found[stream] = answers[at + f.HEADER_BYTES + length - 1]
        at += f.HEADER_BYTES + length
    assert begun == expected
    assert found == {2 * n + 1: n for n in expected}


@pytest.mark.parametrize("count", [1, 64])
async def test_requests_before_a_broken_frame_in_the_same_read_are_not_served(count: int) -> None:
    """Nobody could be told what became of them."""
    calls = b"".join([request(f.CALL, number, 201) for number in range(1, count + 1)])
    async with world() as w:
        reader, writer = await asyncio.open_connection(*w.address.split(":"))
        writer.write(HELLO)
        await until(lambda: any(each.caller for each in w.server.connections.values()))
        writer.write(request(f.OPEN_RUN, 0, w.server.numbers["test.append"]))
        await until(lambda: w.server.counts.calls == 1)
        writer.write(calls + run(1, b"record") + f.frame(f.REPLY, 1))
        await reader.read()
        await until(lambda: not w.server.connections)
        writer.close()

        assert (w.server.counts.calls, bytes(w.methods.log.content)) == (1, b"")


async def test_frames_keep_their_order_where_runs_are_refused_at_once_and_room_is_short() -> None:
    """A refused run gave its bytes back while its connection was worked on, and began a turn within the turn.

    Later frames were taken before earlier ones, and what both turns had put aside was lost: a client waited
    for ever, and an upload could have been acknowledged with its content in another order.
    """
    limits = msgspec.structs.replace(LIMITS, node_in_flight_bytes_max=12 << 20, reserve_bytes=1 << 20)
    wanted = [f"{number:08}".encode() for number in range(3000)]
    frames = []
    for number, record in enumerate(wanted):
        for each in (record, bytes(100_000))[: 1 + (number % 600 == 50)]:
            body = f.U64.pack(f.AT_HEAD) + f.U32.pack(len(each))
            frames.append(f.header(f.RUN, 1, body_bytes=len(body), payload_bytes=len(each)) + body + each)
    async with world(limits) as w:
        accounts, log = w.server.accounts, w.methods.log
        other = accounts.enter("127.0.0.1", is_control=False)
        accounts.take(other, (11 << 20) // 2 - 20_000)  # So there is room for small runs only.
        log.refuse_above = 50_000
        reader, writer = await asyncio.open_connection(*w.address.split(":"))
        writer.write(HELLO)
        await until(lambda: any(each.caller for each in w.server.connections.values()))
        writer.write(request(f.OPEN_RUN, 0, 208))
        await until(lambda: any(len(each.runs) for each in w.server.connections.values()))
        writer.write(b"".join(frames))
        reading = asyncio.ensure_future(reader.read())
        await until(lambda: len(log.content) == 8 * len(wanted))

        assert bytes(log.content) == b"".join(wanted)
        writer.close()
        await reading
        accounts.give(other, (11 << 20) // 2 - 20_000)
        accounts.leave(other)


async def test_a_frame_for_which_there_was_room_is_read_to_its_end() -> None:
    """Reproduced before: its own reservation left no room for it once its peer had not read for a while.

    Nothing else would ever have given the bytes back: it was not read, so it could not end, and the deadline
    of torn frames waits for those that are not read.
    """
    limits = WireLimits(
        frame_bytes_max=1 << 20, window_bytes=3 << 20, in_flight_bytes_max=2 << 20,
        node_in_flight_bytes_max=5 << 19, reserve_bytes=64 << 10,
    )  # fmt: skip
    async with world(limits) as w:
        host, _, port = w.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        opening = f.CALL_HEAD.pack(207, 0) + f.encode(Echo(number=80))
        body, payload = f.CALL_HEAD.pack(201, 0) + f.encode(Echo()), bytes(1_000_000)
        call = f.header(f.CALL, 3, body_bytes=len(body), payload_bytes=len(payload)) + body + payload
        writer.write(HELLO)
        await reader.read(1)  # The welcome.
        writer.write(f.frame(f.OPEN, 1, opening) + f.frame(f.WINDOW, 1, f.U32.pack(9 << 20)))
        writer.write(call[:300_000])
        await until(lambda: w.server.accounts.used_bytes > 1_000_000)
        (connection,) = w.server.connections.values()
        await until(lambda: connection.backpressure.is_held)

        async def read_all() -> int:
            size = 0
            while size < 9_000_000 and (part := await reader.read(1 << 20)):
                size += len(part)
            return size

        writer.write(call[300_000:])
        async with asyncio.timeout(20):
            assert await read_all() >= 9_000_000  # Eighty messages, and the echo behind them.
        writer.close()
