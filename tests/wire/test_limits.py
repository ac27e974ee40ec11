"""Peers that are slow, silent, greedy or of another protocol are turned away with the reason."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

import pytest

from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.access.tokens import Tokens
from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.errors import (
    ConfigError,
    RemoteProtocolError,
    Throttled,
    Unauthenticated,
    Unknown,
    Unreachable,
    Unsupported,
)
from broadsheet.ports import Timer
from broadsheet.wire import frame as f
from broadsheet.wire.connection_machine import Kind
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY, Call, Reply, WireStream
from tests.wire.harness import PATIENCE_SECONDS, Echo, Empty, Sum, World, until, world

KEY = b"0123456789abcdef0123456789abcdef"


async def raw(w: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = w.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def goodbye(reader: asyncio.StreamReader) -> f.GoAway:
    """The GOAWAY that ends a connection."""
    data = await reader.read()
    length, _, word, _ = f.HEADER.unpack_from(data)
    assert word & f.KIND_MASK == f.GOAWAY
    import msgspec

    return msgspec.msgpack.decode(data[16 : 16 + length], type=f.GoAway)


async def test_a_peer_that_says_nothing_is_let_go() -> None:
    """S6: a connection must earn its place."""
    async with world(WireLimits(first_byte_timeout=Duration(20 * MILLISECOND))) as w:
        reader, writer = await raw(w)
        away = await goodbye(reader)
        writer.close()

        assert away.message == "no first byte in time"
        assert not w.server.connections


async def test_a_greeting_that_dribbles_in_is_let_go() -> None:
    """S6: a byte now and then does not keep a connection open."""
    limits = WireLimits(first_byte_timeout=Duration(SECOND), greeting_timeout=Duration(60 * MILLISECOND))
    async with world(limits) as w:
        reader, writer = await raw(w)
        writer.write(b"\x24")
        away = await goodbye(reader)
        writer.close()

        assert away.message == "no greeting in time"


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3]
)
async def test_another_protocol_is_told_so_and_closed(data: bytes) -> None:
    """The checksum is believed before the length, so nothing is allocated for it."""
    async with world() as w:
        reader, writer = await raw(w)
        writer.write(data)
        away = await goodbye(reader)
        writer.close()

        assert "checksum" in away.message


async def test_versions_without_a_common_one_are_refused_with_both_ranges() -> None:
    """The newer side can say what to do."""
    async with world() as w:
        reader, writer = await raw(w)
        writer.write(f.frame(f.HELLO, 0, f.encode(f.Hello(f.MAGIC, 3, 4, "", 1 << 20, 1 << 20))))
        away = await goodbye(reader)
        writer.close()

        assert (away.status, away.message) == (
            26,
            "this node speaks version 2, the caller 3 to 4: upgrade the older",
        )


async def test_what_breaks_in_the_read_that_greets_does_no_harm() -> None:
    """Found by the fuzzer: a good HELLO with nonsense behind it, in one read, crashed the node."""
    async with world() as w:
        reader, writer = await raw(w)
        hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 1 << 20, 1 << 20)
        writer.write(f.frame(f.HELLO, 0, f.encode(hello)) + b"\xff" * 16)
        away = await goodbye(reader)
        writer.close()

        assert "checksum" in away.message
        assert w.server.counts.broken == 1, "an operator sees it, also behind a good frame"


async def test_a_silent_client_is_noticed_by_both_sides() -> None:
    """Keepalive: unanswered pings end the connection, answered ones keep it."""
    limits = WireLimits(keepalive_interval=Duration(20 * MILLISECOND), keepalive_misses_max=2)
    async with world(limits) as w:
        client = await w.client()
        await asyncio.sleep(0.2)
        assert client.is_usable, "it answers pings"
        server = next(iter(w.server.connections.values()))
        assert client.transport is not None
        client.transport.pause_reading()
        client.machine.phase = type(client.machine.phase).BROKEN  # It asks nothing any more, either.
        await until(lambda: not w.server.connections)

        assert "pings" in server.reason
        client.abort("the test is over")


async def test_a_connection_that_is_held_back_is_not_given_up_by_its_caller() -> None:
    """A connection that is not read hears no pings, and its caller gave up after three of them.

    All that was on its way became unknown, while the node was at work on it.
    """
    limits = WireLimits(
        frame_bytes_max=1 << 20, in_flight_bytes_max=1 << 20, keepalive_interval=Duration(50 * MILLISECOND)
    )
    async with world(limits) as w:
        w.methods.log.is_holding = True
        client = await w.client()
        _, run = await client.open_run("test.append", Echo(), reply=Empty)
        sending = [asyncio.ensure_future(run.send([bytes(900_000)])) for _ in range(4)]
        (server,) = w.server.connections.values()
        await until(lambda: server.backpressure.is_held)
        await asyncio.sleep(0.6)
        assert server.backpressure.is_held
        w.methods.log.release()

        assert [each.begin for each in await asyncio.gather(*sending)] == [n * 900_000 for n in range(4)]
        await client.close()


async def test_a_peer_that_does_not_read_is_disconnected() -> None:
    """Slow consumers cost bounded memory and bounded time."""
    limits = WireLimits(write_timeout=Duration(100 * MILLISECOND), drain_timeout=Duration(50 * MILLISECOND))
    async with world(limits) as w:
        host, _, port = w.address.rpartition(":")
        sock = socket.create_connection((host, int(port)))
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 16 << 20)
        await loop.sock_sendall(sock, f.frame(f.HELLO, 0, f.encode(hello)))
        await until(lambda: w.server.connections)
        connection = next(iter(w.server.connections.values()))
        body = f.CALL_HEAD.pack(201, 0) + f.encode(Echo())
        payload = bytes(1 << 20)

        async def push() -> None:
            for number in range(100):
                head = f.header(f.CALL, 2 * number + 1, body_bytes=len(body), payload_bytes=len(payload))
                await loop.sock_sendall(sock, head + body + payload)

        pushing = asyncio.create_task(push())
        await until(lambda: not w.server.connections)
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)
        sock.close()

        assert "slow peer" in connection.reason
        assert connection.written_bytes < 40 << 20


async def test_connections_are_bounded_and_an_idle_one_makes_room() -> None:
    """A caller that keeps connections it does not use must not lock out one that has something to ask."""
    async with world(WireLimits(connections_max=2)) as w:
        busy, idle = await w.client(), await w.client()
        asked = asyncio.ensure_future(busy.call("test.wait", Echo(), reply=Echo))
        await until(lambda: w.server.counts.calls == 1)
        newcomer = await w.client()
        await until(lambda: not idle.is_usable)
        waits = asyncio.ensure_future(newcomer.call("test.wait", Echo(), reply=Echo))
        await until(lambda: w.server.counts.calls == 2)
        with pytest.raises(Throttled, match="2 connections already, and none is idle"):
            await w.client()
        w.methods.gate.set()
        await asyncio.gather(asked, waits)

        w.server.places.check()
        assert (w.server.counts.displaced, w.server.counts.turned_away) == (1, 1)
        for client in (busy, newcomer):
            await client.close()


async def test_a_connection_that_loses_its_place_and_reads_nothing_is_closed_at_once() -> None:
    """It kept its descriptor for `write_timeout`: a caller could have many more than `connections_max`."""
    limits = WireLimits(connections_max=1, write_timeout=Duration(3600 * SECOND))
    async with world(limits) as w:
        host, _, port = w.address.rpartition(":")
        sock = socket.create_connection((host, int(port)))
        sock.setblocking(False)
        body, payload = f.CALL_HEAD.pack(201, 0) + f.encode(Echo()), bytes(1 << 20)
        calls = [
            f.header(f.CALL, 2 * number + 1, body_bytes=len(body), payload_bytes=len(payload))
            + body
            + payload
            for number in range(20)
        ]
        hello = f.frame(f.HELLO, 0, f.encode(f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 9 << 20)))
        pushing = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(sock, hello))
        await until(lambda: w.server.places.caller_count == 1)
        await pushing
        pushing = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(sock, b"".join(calls)))
        (full,) = w.server.connections.values()
        await until(lambda: full.is_write_paused)
        newcomer = await w.client()
        await until(lambda: len(w.server.connections) == 1)

        assert full.is_lost
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)
        sock.close()
        await newcomer.close()


async def test_a_caller_whose_connections_are_all_busy_makes_room_for_one_that_has_fewer() -> None:
    """4,096 connections with a waiting read each kept everybody else out, operators too (ADR 0150)."""
    tokens = Tokens([KEY], audience="c1")
    async with world(WireLimits(connections_max=4), tokens=tokens) as w:
        now = w.ports.time.wall()
        life = Duration(60 * SECOND)
        greedy, other = (tokens.sign(each, now=now, lifetime=life) for each in (Capability.READ, EVERYTHING))
        busy = [await w.client(token=greedy) for _ in range(4)]
        asked = [asyncio.ensure_future(each.call("test.wait", Echo(), reply=Echo)) for each in busy]
        await until(lambda: w.server.counts.calls == 4)
        newcomers = [await w.client(token=other) for _ in range(2)]
        waits = [asyncio.ensure_future(each.call("test.wait", Echo(), reply=Echo)) for each in newcomers]
        await until(lambda: w.server.counts.calls == 6)

        with pytest.raises(Throttled, match="none is idle"):
            await w.client(token=other)
        w.methods.gate.set()
        answers = await asyncio.gather(*asked, *waits, return_exceptions=True)
        assert [type(each) for each in answers].count(Unknown) == 2, "each newcomer cost one its place"
        w.server.places.check()
        for client in (*busy, *newcomers):
            await client.close()


async def test_silent_strangers_lock_nobody_out() -> None:
    """Reproduced before: 256 connections that said nothing kept every other one out for five seconds.

    Source: wire.4.
    """
    async with world(WireLimits(ungreeted_max=3)) as w:
        strangers = [await raw(w) for _ in range(3)]
        strangers[0][1].write(b"\x24")  # The oldest has begun to greet, so the second has to go.
        await until(lambda: sum([each.machine.has_heard for each in w.server.connections.values()]) == 1)
        clients = [await w.client() for _ in range(8)]
        away = await goodbye(strangers[1][0])
        await until(lambda: len(w.server.connections) == 2 + len(clients))

        assert "greet at once" in away.message
        assert w.server.counts.displaced == 1
        w.server.places.check()
        for _, writer in strangers:
            writer.close()
        for client in clients:
            await client.close()


async def test_strangers_that_come_in_one_turn_cost_a_place_each() -> None:
    """Whoever had lost its place was found again until it was closed.

    Sixteen newcomers in a turn dropped one of the others, and a flood of silent connections had ten times as
    many as they may.
    """
    async with world(WireLimits(ungreeted_max=3)) as w:
        host, _, port = w.address.rpartition(":")
        strangers = [socket.create_connection((host, int(port))) for _ in range(60)]  # All wait to be taken.
        most = 0
        while w.server.counts.accepted < len(strangers):
            await asyncio.sleep(0)
            most = max(most, w.server.places.stranger_count)
            w.server.places.check()
        await until(lambda: len(w.server.connections) == 3)

        assert most <= 3
        assert w.server.counts.displaced == len(strangers) - 3
        for each in strangers:
            each.close()


@pytest.mark.parametrize("kind", [f.GOAWAY, f.PING, f.CALL, f.WINDOW, f.RUN])
async def test_before_the_greeting_nothing_but_a_greeting_is_taken(kind: int) -> None:
    """Reproduced before: GOAWAY frames were taken from strangers without end, and held up the whole node.

    Source: wire.4.
    """
    async with world() as w:
        reader, writer = await raw(w)
        writer.write(f.frame(kind, 0, f.encode([0, "", 0])) * 1000)
        away = await goodbye(reader)
        writer.close()

        assert "greeting" in away.message or "not for us" in away.message


async def test_a_caller_says_once_that_it_leaves() -> None:
    """GOAWAY costs the node something and changes nothing the second time."""
    async with world() as w:
        reader, writer = await raw(w)
        hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 1 << 20, 1 << 20)
        writer.write(f.frame(f.HELLO, 0, f.encode(hello)))
        await reader.readexactly(16)
        writer.write(f.frame(f.GOAWAY, 0, f.encode([0, "", 0])) * 2)
        await reader.read()
        await until(lambda: not w.server.connections)
        writer.close()

        assert w.server.counts.broken == 1


async def test_a_door_beyond_loopback_is_refused_unless_insecure() -> None:
    """S1: until there is TLS, tokens and data would travel in the clear."""
    async with world() as w:
        with pytest.raises(ConfigError, match="--insecure"):
            await w.server.listen("0.0.0.0:0")
        with pytest.raises(ConfigError, match="--insecure"):
            await w.server.listen("example.org:0")
        address = await w.server.listen("0.0.0.0:0", is_insecure=True)

        assert address.startswith("0.0.0.0:")


async def test_a_connection_whose_stream_numbers_are_used_up_is_refused_and_another_is_made() -> None:
    """After two billion calls the next number would be none: the error lets a pool dial again."""
    async with world() as w:
        client = await w.client()
        client.machine.last_stream = f.STREAM_MAX - 2
        await client.call("test.echo", Echo(), reply=Echo)
        with pytest.raises(Unreachable, match="used up its stream numbers"):
            await client.call("test.echo", Echo(), reply=Echo)
        await client.close()


class Kept:
    """A timer that tells whether it was cancelled."""

    def __init__(self, timer: Timer) -> None:
        self._timer, self.is_cancelled = timer, False

    def cancel(self) -> None:
        self.is_cancelled = True
        self._timer.cancel()


async def test_a_request_that_is_answered_leaves_no_timer() -> None:
    """Those of a minute, a million, would wait for their deadlines, each with all that it holds."""
    async with world() as w:
        client = await w.client()
        kept: list[Kept] = []
        call_after = w.ports.timers.call_after

        def keeping(delay: Duration, call: Callable[[], None]) -> Timer:
            timer = Kept(call_after(delay, call))
            kept.extend([timer] * (delay > 70 * SECOND))
            return timer

        w.ports.timers.call_after = keeping  # type: ignore[method-assign,assignment]
        for _ in range(3):
            await client.call("test.task", Echo(), reply=Echo, timeout=Duration(77 * SECOND))
        assert len(kept) >= 3
        await until(lambda: all(timer.is_cancelled for timer in kept))
        await client.close()


async def test_another_cluster_is_refused() -> None:
    """A client that means another cluster must not write here."""
    async with world() as w:
        with pytest.raises(Unauthenticated, match="c1"):
            await w.client(cluster="c2")
        client = await w.client(cluster="c1")
        assert (client.node, client.cluster) == ("a", "c1")
        await client.close()


async def test_a_stranger_is_not_told_the_name_of_the_cluster() -> None:
    """Names are for those who may see them (access.4): a token's claims must name the cluster."""
    tokens = Tokens([KEY], audience="c1")
    async with world(tokens=tokens) as w:
        for token in ("", "none of ours"):
            with pytest.raises(Unauthenticated, match="token") as refused:
                await w.client(token=token, cluster="c2")
            assert "c1" not in str(refused.value)
        with pytest.raises(Unauthenticated, match="c1"):
            await w.client(token=ending(tokens, w, Capability.READ), cluster="c2")


def ending(tokens: Tokens, w: World, capabilities: Capability) -> str:
    """A token that has, with the leeway of 5 s, one to two seconds left."""
    now = w.ports.time.wall()
    issued = type(now)(now - 6 * SECOND)
    return tokens.sign(capabilities, now=issued, lifetime=Duration(3 * SECOND))


async def test_an_expired_token_ends_a_stream_also_behind_a_call_that_is_not_answered_yet() -> None:
    """S3: the streams are looked through in their order, and a call is answered by what it did."""
    tokens = Tokens([KEY], audience="c1")
    async with world(tokens=tokens) as w:
        client = await w.client(token=ending(tokens, w, Capability.READ))
        waiting = asyncio.create_task(client.call("test.wait", Echo(name="x/y"), reply=Echo))
        (served,) = w.server.connections.values()
        await until(lambda: served.machine.streams)
        chat = await client.open("test.chat", Echo(name="a/b"))
        await until(lambda: served.streams)
        assert [state.kind for state in served.machine.streams.values()] == [Kind.UNARY, Kind.STREAM]
        with pytest.raises(Unauthenticated):
            await chat.receive()
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await client.close()


async def test_a_greeting_with_a_bad_token_is_counted() -> None:
    """An operator sees who tries."""
    async with world(tokens=Tokens([KEY], audience="c1")) as w:
        with pytest.raises(Unauthenticated):
            await w.client(token="none of ours")
        assert w.server.counts.unauthenticated == 1


async def test_a_stream_that_its_token_ended_keeps_its_slot_until_its_handler_has_ended() -> None:
    """S6: with a token for each, one caller would have as many handlers at work as it liked."""
    tokens = Tokens([KEY], audience="c1")
    async with world(WireLimits(streams_max=1), tokens) as w:

        async def lingers(_call: Call, _request: Echo, _stream: WireStream) -> Reply:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await w.methods.gate.wait()  # What a handler does that must see its read through.
            return Reply(EMPTY)

        next(each for each in w.methods.table if each.name == "test.chat").handler = lingers
        client = await w.client(token=ending(tokens, w, Capability.READ))
        chat = await client.open("test.chat", Echo(name="a/b"))
        (served,) = w.server.connections.values()
        await until(lambda: w.server.accounts.task_count == 1)
        with pytest.raises(Unauthenticated):
            await chat.receive()
        assert served.machine.is_full
        w.methods.gate.set()
        await until(lambda: not served.machine.is_full)
        await client.close()


async def test_long_streams_end_with_their_token() -> None:
    """S3: a token that was good at the opening is not good for ever (wire.8)."""
    tokens = Tokens([KEY], audience="c1")
    async with world(tokens=tokens) as w:
        client = await w.client(token=ending(tokens, w, Capability.APPEND | Capability.READ))
        chat = await client.open("test.chat", Echo())
        sums = await client.open("test.sum", Echo())
        _, run = await client.open_run("test.append", Echo(), reply=Empty)
        await client.open("test.deaf", Echo())  # Its handler hears of it later.
        for stream in (chat, sums):
            with pytest.raises(Unauthenticated):
                await stream.receive()
        deadlines = [each.next_deadline() for each in w.server.connections.values()]
        assert all(each is None or each > w.ports.time.now() for each in deadlines), "they are ended once"
        with pytest.raises((Unauthenticated, Unknown)):
            await run.send([b"x"])
        with pytest.raises(Unauthenticated):
            await client.call("test.echo", Echo(), reply=Echo)

        assert not w.methods.log.content
        await client.close()


async def test_a_run_stream_ends_when_its_token_does_and_not_at_the_next_ping() -> None:
    """Nothing but the keepalive looked at the clock: records were taken for ten seconds more."""
    tokens = Tokens([KEY], audience="c1")
    never = Duration(3600 * SECOND)
    limits = WireLimits(
        keepalive_interval=never, dial_timeout=never, first_byte_timeout=never, greeting_timeout=never
    )
    async with world(limits, tokens=tokens) as w:
        short = ending(tokens, w, Capability.APPEND)
        clients = [await w.client(token=short), await w.client(token=short)]
        methods = ("test.append", "test.append_later")
        runs = [
            (await client.open_run(method, Echo(), reply=Empty))[1]
            for client, method in zip(clients, methods, strict=True)
        ]
        async with asyncio.timeout(10):
            await until(lambda: not any(len(each.runs) for each in w.server.connections.values()))

        for run in runs:
            with pytest.raises((Unauthenticated, Unknown)):
                await run.send([b"x"])
        for client in clients:
            await client.close()


async def test_an_upload_that_was_taken_whole_is_answered_after_its_token_expired() -> None:
    """To refuse it, for sure, what may be durable already would make its caller send it again."""
    tokens = Tokens([KEY], audience="c1")
    async with world(tokens=tokens) as w:
        now = w.ports.time.wall()
        issued = type(now)(now - 6 * SECOND)  # With the leeway of 5 s it has one to two seconds left.
        client = await w.client(
            token=tokens.sign(Capability.APPEND | Capability.READ, now=issued, lifetime=Duration(3 * SECOND))
        )
        taken, half, chat = [
            await client.open(method, Echo()) for method in ("test.commit", "test.commit", "test.chat")
        ]
        for stream in (taken, half):
            await stream.send(None, (b"12345",))
        taken.finish()
        await until(lambda: w.methods.done == 1)
        for stream in (chat, half):
            with pytest.raises(Unauthenticated):
                await stream.receive()
        w.methods.gate.set()

        assert await taken.reply(Sum) == Sum(1, 5)
        await client.close()


async def test_nothing_is_taken_of_an_upload_after_its_token_has_expired() -> None:
    """S3: its handler heard of it when no message was left, and whoever sends fast has always one there."""
    tokens = Tokens([KEY], audience="c1")
    async with world(tokens=tokens) as w:

        async def late(call: Call, request: Echo, stream: WireStream) -> Reply:
            await w.methods.gate.wait()
            return await w.methods.commit(call, request, stream)

        next(each for each in w.methods.table if each.name == "test.sum").handler = late
        client = await w.client(token=ending(tokens, w, Capability.APPEND))
        upload = await client.open("test.sum", Echo())
        await upload.send(None, (b"in time",))
        (served,) = w.server.connections.values()
        await until(lambda: served.queued_bytes)
        before = served.queued_bytes
        await until(lambda: w.ports.time.wall() >= (served.principal.expires or 0))
        await until(lambda: served.next_deadline() is None)
        await upload.send(None, (b"too late",))
        upload.finish()
        await until(lambda: served.machine.streams[upload.stream].has_peer_finished)
        assert served.queued_bytes == before
        w.methods.gate.set()

        with pytest.raises(Unauthenticated):
            await upload.reply(Sum)
        assert w.methods.done == 0
        await client.close()


async def test_a_wrong_shape_is_unsupported_and_harmless() -> None:
    """A unary call of a STREAM method is an error of the caller, not of the connection."""
    async with world() as w:
        client = await w.client()
        with pytest.raises(Unsupported):
            await client.call("test.sum", Echo(), reply=Echo)
        with pytest.raises(Unsupported):
            await client.open_run("test.echo", Echo(), reply=Empty)
        body, _ = await client.call("test.echo", Echo(number=1), reply=Echo)

        assert body.number == 1
        await client.close()


async def test_a_run_that_is_acknowledged_with_a_wrong_count_is_unknown() -> None:
    """The connection ended, and the sender of that run waited for ever."""

    async def rogue(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        welcome = f.Welcome(f.VERSION, 4 << 20, 16 << 20, 10, 10, {"test.append": 208})
        writer.write(f.frame(f.HELLO, 0, f.encode(welcome)))
        await reader.read(200)
        await reader.read(200)
        writer.write(f.frame(f.OPENED, 1, f.encode(EMPTY)))
        await reader.read(200)
        writer.write(f.frame(f.RUN_ACK, 1, f.RUN_ACK_BODY.pack(0, 7, 0, 3)))
        await reader.read()
        writer.close()

    async with world() as w:
        server = await asyncio.start_server(rogue, "127.0.0.1", 0)
        w.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = await w.client()
        _, run = await client.open_run("test.append", Echo(), reply=Empty)
        with pytest.raises(Unknown):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await run.send([b"abc"])
        server.close()
        await client.close()


async def test_a_node_whose_methods_have_no_number_of_the_wire_is_not_dialled() -> None:
    """A call failed while its frame was made, and left a stream behind that nobody owned."""

    async def rogue(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        welcome = f.Welcome(f.VERSION, 4 << 20, 16 << 20, 10, 10, {"test.echo": 1 << 32})
        writer.write(f.frame(f.HELLO, 0, f.encode(welcome)))
        await reader.read()
        writer.close()

    async with world() as w:
        server = await asyncio.start_server(rogue, "127.0.0.1", 0)
        w.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unreachable, match="HELLO is malformed"):
            await w.client()
        server.close()


async def test_a_run_stream_whose_opening_is_answered_in_other_words_is_withdrawn() -> None:
    """It stayed open, without an owner: each append opened another one, until the connection had no more."""
    async with world() as w:
        client = await w.client()
        with pytest.raises(RemoteProtocolError, match=r"reply to test\.append is malformed"):
            await client.open_run("test.append", Echo(), reply=Sum)
        client.check()
        await until(lambda: w.methods.log.is_ended)
        await client.close()


async def test_a_sender_whose_stream_was_answered_meanwhile_waits_for_no_socket() -> None:
    """Nothing wakes a stream that has ended: its sender waited as long as its caller let it."""
    is_full, is_over, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def rogue(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        welcome = f.Welcome(f.VERSION, 4 << 20, 16 << 20, 10, 10, {"test.sum": 206})
        writer.write(f.frame(f.HELLO, 0, f.encode(welcome)))
        await reader.read(200)
        await reader.read(200)
        writer.write(f.frame(f.WINDOW, 1, f.U32.pack(1 << 30)))
        await is_full.wait()
        writer.write(f.frame(f.REPLY, 1, f.encode(Sum(0, 0))))
        await is_over.wait()
        writer.transport.abort()
        done.set()

    async with world() as w:
        server = await asyncio.start_server(rogue, "127.0.0.1", 0, limit=1024)
        w.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = await w.client()
        upload = await client.open("test.sum", Echo())

        async def fill() -> None:
            while not upload.replied.done():
                await upload.send(None, (bytes(1 << 20),))

        filling = asyncio.create_task(fill())
        await until(lambda: client.is_write_paused)
        is_full.set()
        async with asyncio.timeout(PATIENCE_SECONDS / 3):
            await filling
        assert await upload.reply(Sum) == Sum(0, 0)
        client.abort("the test is over")
        is_over.set()
        await done.wait()
        server.close()


async def test_a_client_survives_a_server_that_breaks_the_protocol() -> None:
    """Peers' bytes are untrusted in both directions: what was asked is unknown, and nothing crashes."""
    done = asyncio.Event()

    async def rogue(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        welcome = f.Welcome(f.VERSION, 4 << 20, 16 << 20, 10, 10, {"test.echo": 201})
        writer.write(f.frame(f.HELLO, 0, f.encode(welcome)))
        await reader.read(200)
        await reader.read(200)
        writer.write(f.frame(f.RUN_ACK, 99, struct.pack("<QQQQ", 1, 2, 3, 4)))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        done.set()

    async with world() as w:
        server = await asyncio.start_server(rogue, "127.0.0.1", 0)
        w.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = await w.client()
        with pytest.raises(Unknown):
            await client.call("test.echo", Echo(), reply=Echo)
        await done.wait()
        server.close()
