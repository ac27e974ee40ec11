"""Unary calls over real sockets: answers, refusals, deadlines, loss."""

import asyncio
import gc
import socket
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from broadsheet.access.capability import Capability
from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    RemoteProtocolError,
    ShuttingDown,
    TooLarge,
    Unknown,
    Unreachable,
    Unsupported,
)
from broadsheet.wire import client as wire_client
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Call, Reply
from tests.wire.harness import Echo, Empty, Sum, until, world


@pytest.mark.parametrize("method", ["test.echo", "test.task"])
@pytest.mark.parametrize("size", [0, 1, 100, 70_000, 1 << 20, 4_000_000])
async def test_a_call_brings_back_what_the_handler_replied(method: str, size: int) -> None:
    """Payloads of every size arrive as they were, whatever slabs they crossed."""
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with world() as w:
        client = await w.client()
        for number in range(3):
            body, rest = await client.call(method, Echo(number=number), (payload,), reply=Echo)

            assert body == Echo(number=number)
            assert rest == payload
        await client.close()


async def test_many_calls_share_a_connection_and_each_gets_its_own_answer() -> None:
    """More calls than streams: the rest waits its turn, and none is lost or mixed up."""
    async with world(WireLimits(streams_max=16)) as w:
        client = await w.client()
        calls = [client.call("test.task", Echo(number=n), (b"%d" % n,), reply=Echo) for n in range(500)]
        answers = await asyncio.gather(*calls)

        assert [(body.number, bytes(rest)) for body, rest in answers] == [(n, b"%d" % n) for n in range(500)]
        await client.close()


@pytest.mark.parametrize("method", ["test.echo", "test.task", "test.refuse"])
@pytest.mark.parametrize("is_same", [True, False])
async def test_calls_that_are_alike_are_answered_each_for_itself(method: str, is_same: bool) -> None:
    """Many alike in one read are taken by column; each has its own payload, answer and end."""
    async with world() as w:
        client = await w.client()
        calls = [
            client.call(method, Echo(number=100 if is_same else 100 + n % 20), (b"%04d" % n,), reply=Echo)
            for n in range(600)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)

        for n, answer in enumerate(answers):
            if method == "test.refuse":
                assert isinstance(answer, NotFound)
            else:
                assert not isinstance(answer, BaseException)
                assert (answer[0].number, bytes(answer[1])) == (100 if is_same else 100 + n % 20, b"%04d" % n)
        assert not next(iter(w.server.connections.values())).machine.streams
        await client.close()


async def test_a_refusal_keeps_its_class_message_and_hint() -> None:
    """A caller decides by the class, and a route by the hint."""
    async with world() as w:
        client = await w.client()
        with pytest.raises(NotFound, match="there is no x/y") as caught:
            await client.call("test.refuse", Echo(name="x/y"), reply=Echo)

        assert caught.value.hint == "elsewhere:1"
        await client.close()


async def test_a_handlers_bug_is_unknown_to_the_caller_and_told_to_the_log() -> None:
    """It may have done half: never a no. What it said may hold secrets, so it stays at the node."""
    async with world() as w:
        client = await w.client()
        with pytest.raises(Unknown) as caught:
            await client.call("test.fail", Echo(), reply=Echo)

        assert "secret" not in str(caught.value)
        assert [type(error) for error in w.failures] == [KeyError]
        await client.close()


async def test_a_deadline_is_unknown_and_stops_the_handler() -> None:
    """A timeout is never turned into a no, and work that nobody waits for ends."""
    async with world() as w:
        client = await w.client()
        with pytest.raises(DeadlineExceeded):
            await client.call("test.wait", Echo(), reply=Echo, timeout=Duration(200 * MILLISECOND))
        await until(lambda: w.methods.cancelled == 1)

        body, _ = await client.call("test.echo", Echo(number=7), reply=Echo)
        assert body.number == 7
        await client.close()


async def test_a_cancelled_call_stops_its_handler() -> None:
    """Who walks away does not leave work behind."""
    async with world() as w:
        client = await w.client()
        task = asyncio.create_task(client.call("test.wait", Echo(), reply=Echo))
        await until(lambda: w.server.connections and w.server.accounts.used_bytes)
        task.cancel()
        await until(lambda: w.methods.cancelled == 1)

        assert not client.machine.streams
        await client.close()


async def test_a_lost_connection_makes_a_sent_call_unknown() -> None:
    """The request was handed to the socket: nobody can say whether it was done."""
    async with world() as w:
        client = await w.client()
        call = asyncio.create_task(client.call("test.wait", Echo(), reply=Echo))
        await until(lambda: w.server.accounts.used_bytes)
        next(iter(w.server.connections.values())).abort("pulled the plug")
        with pytest.raises(Unknown) as caught:
            await call

        assert type(caught.value) is Unknown
        with pytest.raises(Unreachable):
            await client.call("test.echo", Echo(), reply=Echo)


async def test_a_connection_that_is_lost_before_its_dialler_waits_for_it_is_no_error_of_the_loop() -> None:
    """A client that was closed while it dialled wrote a traceback to standard error."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with world() as w:
        made = wire_client.ClientConnection(w.ports, w.limits, w.address, w.server.pool)
        made.connection_lost(None)
        assert made.ready.done()
        del made
        gc.collect()
    assert not errors


async def test_a_call_that_never_left_is_refused_for_sure() -> None:
    """The connection broke in the turn in which the call was queued.

    Nothing was sent, so it may be repeated.
    """
    async with world() as w:
        client = await w.client()
        call = asyncio.create_task(client.call("test.echo", Echo(), reply=Echo))
        await asyncio.sleep(0)
        assert client._unsent
        client.connection_lost(None)
        with pytest.raises(Unreachable):
            await call
        client.transport.abort()  # type: ignore[union-attr]


async def test_a_closing_node_ends_what_it_has_and_refuses_what_is_new() -> None:
    """Shutdown loses no answer: GOAWAY, then the old streams, then the end."""
    async with world() as w:
        client = await w.client()
        old = asyncio.create_task(client.call("test.wait", Echo(number=1), reply=Echo))
        await until(lambda: w.server.accounts.used_bytes)
        closing = asyncio.create_task(w.server.close())
        await until(lambda: not client.is_usable)
        with pytest.raises(ShuttingDown):
            await client.call("test.echo", Echo(), reply=Echo)
        w.methods.gate.set()

        body, _ = await old
        assert body.number == 1
        await closing
        with pytest.raises(Unreachable):
            await w.client()


async def test_a_closing_node_does_not_wait_for_run_streams_that_are_answered() -> None:
    """A client keeps its run stream between appends: one idle client held every stop for `drain_timeout`."""
    async with world() as w:
        client = await w.client()
        _, idle = await client.open_run("test.append", Echo(), reply=Empty)
        await idle.send([b"before"])
        async with asyncio.timeout(5):  # Half of the drain_timeout.
            await w.server.close()

        with pytest.raises(ShuttingDown):
            await idle.send([b"after"])
        assert w.methods.log.content == b"before"


async def test_a_run_that_was_sent_before_the_node_leaves_is_answered_and_none_is_sent_after() -> None:
    """The stream is finished behind its last answer; a later run is refused, certainly not appended."""
    async with world() as w:
        client = await w.client()
        _, run = await client.open_run("test.append", Echo(), reply=Empty)
        w.methods.log.is_holding = True
        sent = await run.submit([b"sent"])
        await until(lambda: w.methods.log.held)
        closing = asyncio.create_task(w.server.close())
        await until(lambda: not client.is_usable)
        with pytest.raises(ShuttingDown):
            await run.send([b"after"])
        assert not closing.done()
        w.methods.log.release()

        assert (await sent).end == len(b"sent")
        async with asyncio.timeout(5):
            await closing
        assert w.methods.log.content == b"sent"


async def test_a_closing_node_does_not_wait_for_a_caller_whose_last_request_is_cancelled() -> None:
    """Nothing is sent for a request that was cancelled: each such caller held a stop for `drain_timeout`."""
    async with world() as w:
        client = await w.client()
        waiting = asyncio.create_task(client.call("test.wait", Echo(), reply=Echo))
        await until(lambda: w.server.accounts.task_count)
        closing = asyncio.create_task(w.server.close())
        await until(lambda: not client.is_usable)
        waiting.cancel()
        async with asyncio.timeout(5):  # Half of the drain_timeout.
            await closing

        assert w.methods.cancelled == 1


async def test_drain_has_an_end() -> None:
    """A stream that never ends does not keep a node from going away."""
    async with world(WireLimits(drain_timeout=Duration(30 * MILLISECOND))) as w:
        client = await w.client()
        old = asyncio.create_task(client.call("test.wait", Echo(number=1), reply=Echo))
        await until(lambda: w.server.accounts.used_bytes)
        await w.server.close()

        with pytest.raises(Unknown):
            await old


async def test_what_a_node_does_not_offer_is_refused_before_it_is_sent() -> None:
    """The greeting says what the node can do."""
    async with world() as w:
        client = await w.client()
        with pytest.raises(Unsupported, match=r"test\.nothing"):
            await client.call("test.nothing", Echo(), reply=Echo)
        await client.close()


async def test_a_request_above_the_frame_limit_is_refused_before_it_is_sent() -> None:
    """The limit is named, and the connection goes on."""
    async with world() as w:
        client = await w.client()
        with pytest.raises(TooLarge):
            await client.call("test.echo", Echo(), (bytes(5 << 20),), reply=Echo)
        body, _ = await client.call("test.echo", Echo(number=2), reply=Echo)

        assert body.number == 2
        await client.close()


async def test_a_node_that_is_not_there_is_unreachable() -> None:
    """Nothing listens: a sure no."""
    async with world() as w:
        w.address = "127.0.0.1:1"
        with pytest.raises(Unreachable):
            await w.client()


async def test_waiting_for_a_stream_is_bounded_by_the_calls_time() -> None:
    """A call that could not even be sent in time was not done, for sure."""
    async with world(WireLimits(streams_max=1)) as w:
        client = await w.client()
        first = asyncio.create_task(client.call("test.wait", Echo(), reply=Echo))
        await until(lambda: w.server.accounts.used_bytes)
        with pytest.raises(Unreachable, match="nothing was sent"):
            await client.call("test.echo", Echo(), reply=Echo, timeout=Duration(SECOND // 50))
        w.methods.gate.set()
        await first
        await client.close()


async def test_calls_that_leave_their_row_do_not_shift_the_answers_of_the_others() -> None:
    """Of many calls that are alike some become tasks and some are refused; the others are answered by column.

    Each answer is its own call's: one that goes to a neighbour looks like a good one.
    """
    async with world() as w:

        async def later(request: Echo, payload: memoryview) -> Reply:
            await asyncio.sleep(0)
            return Reply(request, (bytes(payload),))

        def mixed(_call: Call, request: Echo, payload: memoryview) -> Reply | Coroutine[Any, Any, Reply]:
            match payload[0] % 7:
                case 3:
                    return later(request, payload)
                case 5:
                    raise NotFound("there is none")
                case _:
                    return Reply(request, (payload,))

        next(each for each in w.methods.table if each.name == "test.echo").handler = mixed
        client = await w.client()
        payloads = [bytes((number, 255 - number)) for number in range(200)]
        answers = await asyncio.gather(
            *[
                client.call("test.echo", Echo(), (payload,), reply=Echo, timeout=Duration(5 * SECOND))
                for payload in payloads
            ],
            return_exceptions=True,
        )
        await client.close()

    for payload, answer in zip(payloads, answers, strict=True):
        if payload[0] % 7 == 5:
            assert isinstance(answer, NotFound)
        else:
            assert isinstance(answer, tuple), answer
            assert bytes(answer[1]) == payload


async def test_a_call_that_is_given_up_when_its_turn_has_come_leaves_the_turn_to_the_next() -> None:
    """Who hears an answer gives up the call behind it, which has just been woken for the stream that is free.

    Nobody else would ever wake the third: it would wait until its time is up, on an idle connection.
    """
    async with world(WireLimits(streams_max=1)) as w:
        client = await w.client()

        async def first() -> None:
            await client.call("test.wait", Echo(), reply=Echo)
            second.cancel()  # Between its being woken and its going on.

        begun = asyncio.create_task(first())
        await until(lambda: w.server.accounts.used_bytes)
        second = asyncio.create_task(client.call("test.echo", Echo(number=2), reply=Echo))
        await asyncio.sleep(0)
        third = asyncio.create_task(
            client.call("test.echo", Echo(number=3), reply=Echo, timeout=Duration(5 * SECOND))
        )
        await asyncio.sleep(0)
        w.methods.gate.set()
        await begun

        body, _ = await third
        assert body == Echo(number=3)
        assert second.cancelled()
        await client.close()


async def test_a_call_that_waits_is_not_passed_by_the_next_calls_of_another_task() -> None:
    """Whoever hears an answer and calls again took the stream of the one that was just woken, for ever."""
    async with world(WireLimits(streams_max=1)) as w:
        client = await w.client()

        async def busy() -> None:
            await client.call("test.wait", Echo(), reply=Echo)
            for _ in range(3):
                await client.call("test.task", Echo(), reply=Echo)

        begun = asyncio.create_task(busy())
        await until(lambda: w.server.accounts.used_bytes)
        lone = asyncio.create_task(client.call("test.task", Echo(number=2), reply=Echo))
        await until(lambda: bool(client._waiting))
        w.methods.gate.set()
        await begun

        assert lone.done()
        await client.close()


async def test_a_call_whose_turn_is_taken_back_is_still_the_first() -> None:
    """The socket took no more between its being woken and its going on: it went behind all others."""
    async with world(WireLimits(streams_max=1)) as w:
        client = await w.client()
        answered: list[int] = []

        async def call(number: int) -> None:
            await client.call("test.task", Echo(number=number), reply=Echo)
            answered.append(number)

        async def first() -> None:
            await client.call("test.wait", Echo(), reply=Echo)
            client.pause_writing()

        begun = asyncio.create_task(first())
        await until(lambda: w.server.accounts.used_bytes)
        others = [asyncio.create_task(call(number)) for number in (2, 3)]
        await until(lambda: len(client._waiting._waiters) == 2)
        w.methods.gate.set()
        await begun
        await until(lambda: len(client._waiting._waiters) == 2)
        client.resume_writing()
        await asyncio.gather(*others)

        assert answered == [2, 3]
        await client.close()


async def test_a_call_that_comes_while_the_node_ends_is_refused_and_not_begun() -> None:
    """Its tasks have ended, its connections not yet: no assertion may come of it, and no forgotten task."""
    async with world() as w:
        client = await w.client()
        told: list[str] = []

        async def late() -> None:
            with pytest.raises(ShuttingDown) as refused:
                await client.call("test.task", Echo(), reply=Echo)
            told.append(str(refused.value))

        w.scope.defer(late)
        await w.scope.close()

        assert told == ["the node shuts down: nothing was done"]
        await client.close()


async def test_what_was_handed_over_before_the_peer_was_too_slow_is_unknown() -> None:
    """The node had the first of these calls, and did it; that it was never sent made callers repeat it."""
    limits = WireLimits(write_timeout=Duration(SECOND // 2))
    async with world(WireLimits(in_flight_bytes_max=4 << 20)) as w:
        client = await w.client(limits=limits)
        served = next(iter(w.server.connections.values()))
        for protocol, option in ((client, socket.SO_SNDBUF), (served, socket.SO_RCVBUF)):
            assert isinstance(protocol.transport, asyncio.Transport)
            # Without a bound, the kernel takes up to 36 MB for the two: all that is sent here, at times.
            protocol.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 64 << 10)
        first = asyncio.create_task(client.call("test.wait", Echo(), reply=Echo))
        rest = [
            asyncio.create_task(client.call("test.wait", Echo(), (bytes(4_000_000),), reply=Echo))
            for _ in range(8)
        ]
        await until(lambda: w.server.counts.calls > 0)
        last = asyncio.create_task(client.call("test.wait", Echo(), (bytes(4_000_000),), reply=Echo))
        found = await asyncio.gather(first, *rest, last, return_exceptions=True)

        assert client.reason.startswith("slow peer")
        assert w.server.counts.calls <= 3, "the node takes no more bytes than it may have in flight"
        assert [type(each) for each in found] == [Unknown] * 9 + [Unreachable]


async def test_calls_of_one_turn_are_no_evidence_of_a_slow_peer() -> None:
    """A thousand appends of 60 KB at once by one client ended its connection, and all were unknown."""
    async with world() as w:
        client = await w.client(limits=WireLimits(send_buffer_bytes_max=1 << 20))
        calls = [client.call("test.echo", Echo(number=n), (bytes(60_000),), reply=Echo) for n in range(3000)]
        replies = await asyncio.wait_for(asyncio.gather(*calls), 30)

        assert [reply.number for reply, _ in replies] == list(range(3000))
        await client.close()


async def test_a_request_that_cannot_be_sent_takes_no_others_turn() -> None:
    """It waited for a stream, was woken, was refused and woke nobody: those behind it waited for ever."""
    async with world(WireLimits(streams_max=1)) as w:
        client = await w.client()
        first = asyncio.create_task(client.call("test.wait", Echo(), reply=Echo))
        await asyncio.sleep(0)
        bad = asyncio.create_task(client.call("test.echo", Echo(), (bytes(8 << 20),), reply=Echo))
        good = asyncio.create_task(client.call("test.echo", Echo(), reply=Echo))
        await asyncio.sleep(0)
        w.methods.gate.set()

        with pytest.raises(TooLarge):
            await bad
        async with asyncio.timeout(10):
            await asyncio.gather(first, good)
        await client.close()


async def test_who_waits_for_a_stream_hears_at_once_that_the_connection_is_gone() -> None:
    """All of them: none is left to wait for its time to run out."""
    async with world(WireLimits(streams_max=1)) as w:
        client = await w.client()
        calls = [asyncio.create_task(client.call("test.wait", Echo(), reply=Echo)) for _ in range(4)]
        await until(lambda: w.server.accounts.used_bytes and len(client._waiting._waiters) == 3)
        for connection in list(w.server.connections.values()):
            connection.abort("gone")
        async with asyncio.timeout(10):
            said = await asyncio.gather(*calls, return_exceptions=True)

        assert [type(each) for each in said] == [Unknown, Unreachable, Unreachable, Unreachable]


async def test_when_the_socket_takes_bytes_again_all_that_wait_go_on() -> None:
    """Each waits for the one before it only until that is sent: the first may take as long as it likes."""
    async with world() as w:
        client = await w.client()
        client.pause_writing()
        calls = [asyncio.create_task(client.call("test.wait", Echo(), reply=Echo)) for _ in range(3)]
        await until(lambda: len(client._waiting._waiters) == 3)
        client.resume_writing()
        await until(lambda: w.server.counts.calls == 3)

        client.check()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await client.close()


async def test_too_many_that_wait_for_a_stream_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without an end would hold the requests of a whole outage."""
    monkeypatch.setattr(wire_client, "WAITING_MAX", 2)
    async with world(WireLimits(streams_max=1)) as w:
        client = await w.client()
        calls = [asyncio.create_task(client.call("test.wait", Echo(), reply=Echo)) for _ in range(3)]
        await until(lambda: w.server.accounts.used_bytes and len(client._waiting._waiters) == 2)
        with pytest.raises(Unreachable, match="2 requests wait"):
            await client.call("test.echo", Echo(), reply=Echo)
        w.methods.gate.set()
        await asyncio.gather(*calls)
        await client.close()


class Other(msgspec.Struct, frozen=True, array_like=True):
    name: int = 7


async def test_a_request_of_another_shape_is_refused_by_name() -> None:
    """It is the caller's mistake: no bug of the node, and no reason to end the connection."""
    async with world() as w:
        client = await w.client()
        for method in ("test.echo", "test.task"):
            with pytest.raises(InvalidArgument, match=f"{method}: Expected `str`, got `int`"):
                await client.call(method, Other(), reply=Echo)
        body, _ = await client.call("test.echo", Echo(number=3), reply=Echo)
        assert body.number == 3
        assert not w.failures
        await client.close()


async def test_a_reply_of_the_greatest_size_is_sent() -> None:
    """One byte more is the handler's mistake, and refused to its caller."""
    bare = len(msgspec.msgpack.encode(Echo(name="x" * 1000)))
    async with world(WireLimits(body_bytes_max=2000)) as w:
        client = await w.client()
        method = next(each for each in w.methods.table if each.name == "test.echo")
        for more in (0, 1):
            answer = Echo(name="x" * (1000 + 2000 - bare + more))
            method.handler = lambda _call, _request, _payload, answer=answer: Reply(answer)
            if not more:
                assert (await client.call("test.echo", Echo(), reply=Echo))[0] == answer
                continue
            with pytest.raises(TooLarge, match="the reply has 2001 bytes"):
                await client.call("test.echo", Echo(), reply=Echo)
        await client.close()


@pytest.mark.parametrize("is_task", [False, True])
async def test_a_reply_that_is_too_large_is_no_refusal_of_what_was_executed(is_task: bool) -> None:
    """A refusal says that nothing was done; the handler of a method that changes something had done it."""
    async with world(WireLimits(body_bytes_max=2000)) as w:
        client = await w.client()
        method = next(each for each in w.methods.table if each.name == "test.echo")
        answer, done = Reply(Echo(name="x" * 2000)), 0

        def plain(_call: Call, _request: Echo, _payload: memoryview) -> Reply:
            nonlocal done
            done += 1
            return answer

        async def task(call: Call, request: Echo, payload: memoryview) -> Reply:
            return plain(call, request, payload)

        method.handler, method.capability = task if is_task else plain, Capability.APPEND
        calls = [client.call("test.echo", Echo(), reply=Echo) for _ in range(50)]
        answers = await asyncio.gather(
            *calls, client.call("test.echo", Echo(), reply=Echo), return_exceptions=True
        )
        await client.close()

    assert done == 51
    for each in answers:
        assert type(each) is Unknown, each
        assert "was executed, and the reply has" in str(each)


async def test_a_reply_that_does_not_decode_is_no_refusal_of_what_was_executed() -> None:
    """The node has executed it and answers in words of another version: that nothing changed was a lie."""
    async with world() as w:
        client = await w.client()
        with pytest.raises(Unknown, match=r"may have been executed: the reply to test\.echo is malformed"):
            await client.call("test.echo", Echo(), reply=Sum)
        with pytest.raises(RemoteProtocolError):  # A second one would be answered alike.
            await client.call("test.echo", Echo(), reply=Sum, is_idempotent=True)
        stream = await client.open("test.sum", Echo())
        with pytest.raises(Unknown, match=r"may have been executed: the reply to test\.sum"):
            await stream.reply(Echo)
        await client.close()
