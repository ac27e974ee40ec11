"""Who is one caller, who is control, and what each may have open."""

import asyncio
import socket

import pytest

from broadsheet.access.capability import Capability
from broadsheet.access.tokens import Tokens
from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.errors import Throttled
from broadsheet.wire import frame as f
from broadsheet.wire.account import TASKS_MIN
from broadsheet.wire.inbound import CALM_RESTS, PINNED_RATIO
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.server import Server
from broadsheet.wire.slab import is_free
from tests.wire.harness import Echo, Empty, World, until, world


def hello(node: str = "", cluster: str = "") -> f.Hello:
    return f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 9 << 20, node, cluster)


def served(w: World) -> Server:
    server = w.server
    server.peers = ("a", "b", "c")
    return server


async def test_without_tokens_connections_of_one_host_are_one_caller() -> None:
    """Each had a share of its own: whoever opened a thousand had a thousand."""
    async with world() as w:
        clients = [await w.client() for _ in range(5)]
        (account,) = w.server.accounts.by_name.values()

        assert (account.name, len(account.holdings), account.is_control) == ("127.0.0.1", 5, False)
        for client in clients:
            await client.close()


async def test_tokens_of_one_subject_and_grant_are_one_caller_and_others_another() -> None:
    """So a renewed token goes on with the account of the one before it."""
    tokens = Tokens([b"0123456789abcdef0123456789abcdef"], audience="c1")
    async with world(tokens=tokens) as w:
        now = w.ports.time.wall()

        def token(capabilities: Capability, minutes: int) -> str:
            return tokens.sign(capabilities, now=now, lifetime=Duration(minutes * 60 * SECOND))

        grants = (Capability.READ, Capability.READ, Capability.ADMIN)
        clients = [
            await w.client(token=token(grant, minutes)) for minutes, grant in enumerate(grants, start=1)
        ]
        accounts = w.server.accounts.by_name.values()

        assert sorted((len(each.holdings), each.is_control) for each in accounts) == [(1, True), (2, False)]
        for client in clients:
            await client.close()


@pytest.mark.parametrize(
    ("node", "cluster", "source", "is_peer"),
    [
        ("b", "c1", "127.0.0.1", True),
        ("b", "c1", "10.0.0.7", False),
        ("b", "", "127.0.0.1", False),
        ("a", "c1", "127.0.0.1", False),
        ("x", "c1", "127.0.0.1", False),
        ("", "c1", "127.0.0.1", False),
    ],
)
async def test_only_another_node_of_the_cluster_on_this_machine_is_control_without_a_token(
    node: str, cluster: str, source: str, is_peer: bool
) -> None:
    """Any name in a greeting had the room that is kept for peers, from anywhere."""
    async with world() as w:
        assert served(w).is_peer(hello(node, cluster), source) is is_peer


async def test_a_peer_without_a_token_has_an_account_of_its_own() -> None:
    """Replication must not share with the clients of its machine."""
    async with world() as w:
        served(w)
        reader, writer = await asyncio.open_connection(*w.address.split(":"))
        writer.write(f.frame(f.HELLO, 0, f.encode(hello("b", "c1"))))
        await until(lambda: w.server.accounts.by_name)
        (account,) = w.server.accounts.by_name.values()

        assert (account.name, account.is_control) == ("peer b", True)
        assert await reader.read(1)
        writer.close()


async def test_run_streams_of_one_caller_are_bounded_over_all_its_connections() -> None:
    """They were bounded by connection, so a caller with many connections had as many as it liked."""
    async with world(WireLimits(node_runs_max=100)) as w:
        clients = [await w.client(), await w.client()]
        runs = []
        for number in range(TASKS_MIN):
            method = ("test.append", "test.append_later")[number // 2 % 2]
            runs.append((await clients[number % 2].open_run(method, Echo(), reply=Empty))[1])
        for method in ("test.append", "test.append_later"):
            with pytest.raises(Throttled, match=f"{TASKS_MIN} RUN streams of this caller are open"):
                await clients[0].open_run(method, Echo(), reply=Empty)
        await runs[0].send([b"x"])
        await runs[0].close()
        _, again = await clients[1].open_run("test.append", Echo(), reply=Empty)
        clients[0].withdraw(runs[2].stream)
        await clients[0].open_run("test.append", Echo(), reply=Empty)

        assert w.server.accounts.run_count == TASKS_MIN
        await again.close()
        for client in clients:
            await client.close()


async def test_those_who_wait_for_room_are_woken_in_order_and_only_while_they_fit() -> None:
    """All were woken in every turn in which a byte came back: quadratic in how many wait."""
    limits = WireLimits(
        frame_bytes_max=1 << 20, window_bytes=3 << 20, in_flight_bytes_max=1 << 20,
        node_in_flight_bytes_max=8 << 20, reserve_bytes=1 << 20,
    )  # fmt: skip
    async with world(limits) as w:
        w.methods.log.is_holding = True
        clients = [await w.client() for _ in range(30)]
        runs = [(await client.open_run("test.append", Echo(), reply=Empty))[1] for client in clients]
        sending = [asyncio.ensure_future(run.send([bytes(900_000)])) for run in runs for _ in range(2)]

        def waiting() -> int:
            held = [each.backpressure for each in w.server.connections.values() if each.backpressure.is_held]
            return sum([w.server.accounts.is_waiting(each) for each in held])

        await until(lambda: waiting() > 20 and w.methods.log.held)
        before = waiting()
        w.methods.log.place(w.methods.log.held.pop(0))
        await asyncio.sleep(0.05)
        assert before - 3 <= waiting(), "there was room for one"
        while not all(each.done() for each in sending):
            w.methods.log.release()
            w.methods.log.is_holding = True
            await asyncio.sleep(0.001)
            w.server.check()
        await asyncio.gather(*sending)

        for client in clients:
            await client.close()


async def test_a_peer_that_takes_nothing_is_missed_by_the_check_if_nobody_gives_it_up() -> None:
    """Planted: it was never given up, and showed as nothing at all but memory that is gone."""
    limits = WireLimits(write_timeout=Duration(10 * MILLISECOND))
    async with world(limits) as w:
        client = await w.client()
        (connection,) = w.server.connections.values()
        connection.is_write_paused = True
        w.server.check()
        late = Duration(5 * SECOND)
        before = connection.ports.time.now
        connection.ports.time.now = lambda: type(before())(before() + late)  # type: ignore[method-assign]
        try:
            with pytest.raises(AssertionError, match="has taken nothing for 5 s"):
                w.server.check()
        finally:
            connection.ports.time.now = before  # type: ignore[method-assign]
            connection.is_write_paused = False
        await client.close()


async def test_answers_that_nobody_reads_are_bounded_over_all_connections() -> None:
    """Found by a flood: each of thousands of connections let a MiB of answers wait, for ten seconds."""
    limits = WireLimits(node_unread_bytes_max=1 << 20)
    async with world(limits) as w:
        host, _, port = w.address.partition(":")
        hogs = [socket.create_connection((host, int(port))) for _ in range(20)]
        loop = asyncio.get_running_loop()
        greeting = f.frame(f.HELLO, 0, f.encode(f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 1 << 30)))
        body = f.CALL_HEAD.pack(201, 0) + f.encode(Echo())
        head = [f.header(f.CALL, 2 * n + 1, body_bytes=len(body), payload_bytes=1 << 20) for n in range(8)]
        calls = b"".join([each + body + bytes(1 << 20) for each in head])
        sending = []
        for sock in hogs:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_sendall(sock, greeting)
        await until(lambda: w.server.places.caller_count == len(hogs))
        sending += [asyncio.ensure_future(loop.sock_sendall(sock, calls)) for sock in hogs]
        reasons = {each.connection: each for each in w.server.connections.values()}
        most = 0
        async with asyncio.timeout(30):
            while len(w.server.connections) > 18:
                most = max(most, w.server.accounts.unread_bytes)
                reasons.update({each.connection: each for each in w.server.connections.values()})
                w.server.check()
                await asyncio.sleep(0.001)
        client = await w.client()
        await client.call("test.echo", Echo(), reply=Echo)

        assert 0 < most <= 4 << 20, "a share and what came in one turn beyond it"
        assert any("more than its share" in each.reason for each in reasons.values())
        for each in sending:
            each.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        for sock in hogs:
            sock.close()
        await client.close()


async def test_a_connection_holds_no_receive_buffer_while_nothing_comes() -> None:
    """64 KiB for each of 1,500 idle ones were 110 MiB, and 4 MiB for each that had sent a large frame."""
    async with world() as w:
        clients = [await w.client() for _ in range(5)]
        for client in clients:
            await client.call("test.echo", Echo("a/b"), (bytes(3 << 20),), reply=Echo)
            for _ in range(CALM_RESTS):
                await client.call("test.echo", Echo("a/b"), reply=Echo)

        held = w.server.connections.values()
        await until(lambda: not any(each._inbound.slab for each in held), w.server.check)
        assert w.server.pool.busy_bytes == 0
        for client in clients:
            await client.close()


async def test_a_connection_that_is_gone_holds_no_receive_buffer() -> None:
    """What refers to it waits for the collector, for minutes where it was frozen: a GiB for 1,000."""
    async with world() as w:
        client = await w.client()
        (served_connection,) = w.server.connections.values()
        await client.call("test.echo", Echo("a/b"), (bytes(3 << 20),), reply=Echo)
        await client.close()
        await until(lambda: served_connection.is_lost)

        assert not served_connection._inbound.slab
        assert w.server.pool.busy_bytes == 0


async def test_a_small_call_that_waits_holds_no_receive_buffer() -> None:
    """Each pinned the slab that it came with: a thousand of them with a MiB of pings between were a GiB."""
    async with world() as w:
        reader, writer = await asyncio.open_connection(*w.address.split(":"))
        writer.write(f.frame(f.HELLO, 0, f.encode(hello())))
        await until(lambda: any(each.caller for each in w.server.connections.values()))
        (connection,) = w.server.connections.values()
        body = f.CALL_HEAD.pack(w.server.numbers["test.wait"], 0) + f.encode(Echo("a/b"))
        for number in range(2):
            writer.write(f.header(f.CALL, 2 * number + 1, body_bytes=len(body), payload_bytes=number) + body)
            writer.write(b"x" * number)
        await until(lambda: len(connection.tasks) == 2)
        async with asyncio.timeout(5):  # After ten seconds of silence it would be given back in any case.
            await until(lambda: not connection._inbound.slab, w.server.check)

        w.methods.gate.set()
        await until(lambda: not len(connection.tasks))
        writer.close()
        await reader.read()


async def test_calls_that_wait_pin_no_buffers_many_times_their_size() -> None:
    """Each of 64 KiB pinned a slab of 4 MiB, however many: 12 MiB that were counted held 800."""
    async with world() as w:
        reader, writer = await asyncio.open_connection(*w.address.split(":"))
        writer.write(f.frame(f.HELLO, 0, f.encode(hello())))
        await until(lambda: any(each.caller for each in w.server.connections.values()))
        (connection,) = w.server.connections.values()
        large = connection.limits.frame_bytes_max - f.CALL_HEAD.size
        writer.write(f.header(f.CALL, 1, body_bytes=f.CALL_HEAD.size, payload_bytes=large))
        writer.write(f.CALL_HEAD.pack(9_999, 0) + bytes(large))  # There is no such method.
        body = f.CALL_HEAD.pack(w.server.numbers["test.wait"], 0) + f.encode(Echo("a/b"))
        late = f.header(f.MESSAGE, 1, payload_bytes=large // 2 + 65_536) + bytes(large // 2 + 65_536)
        for number in range(1, 21):
            call = f.header(f.CALL, 2 * number + 1, body_bytes=len(body), payload_bytes=65_536) + body
            writer.write(call + b"x" * 65_536 + late)
            await writer.drain()
        await until(lambda: len(connection.tasks) == 20)
        pinned_bytes = sum([len(slab) for slab in connection._inbound._pinned if not is_free(slab)])
        assert pinned_bytes <= PINNED_RATIO * connection.backpressure.in_flight_bytes

        w.methods.gate.set()
        await until(lambda: not len(connection.tasks))
        writer.close()
        await reader.read()
