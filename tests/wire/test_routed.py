"""Routed calls: the right node is found, a refusal is repeated, the unknown only where that is harmless."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from broadsheet.base.time import MILLISECOND, SECOND, Duration, after
from broadsheet.errors import (
    InvalidArgument,
    LocalProtocolError,
    NotFound,
    NotLeader,
    Refused,
    Status,
    Throttled,
    Unknown,
    Unreachable,
)
from broadsheet.wire import frame as f
from broadsheet.wire.method import Call, Reply, RunOpened
from broadsheet.wire.pool import Pool
from broadsheet.wire.routed import RetryPolicy, Routed, _Attempts
from tests.wire.harness import Echo, Empty, World, until, world

SHORT, HOUR = Duration(100 * MILLISECOND), Duration(3600 * SECOND)
QUICK = RetryPolicy(attempts_max=6, pause_min=Duration(MILLISECOND), pause_max=Duration(4 * MILLISECOND))


class Script:
    """A handler that follows a script, and counts."""

    def __init__(self, w: World, *script: Refused | Unknown | None) -> None:
        self.script, self.calls, self.w = list(script), 0, w
        method = next(each for each in w.methods.table if each.name == "test.task")
        method.handler = self.answer

    async def answer(self, _call: Call, request: Echo, _payload: memoryview) -> Reply:
        self.calls += 1
        error = self.script.pop(0) if self.script else None
        if error is not None:
            raise error
        return Reply(msgspec.structs.replace(request, name=self.w.address))


@asynccontextmanager
async def routed(*nodes: World, addresses: tuple[str, ...] = ()) -> AsyncIterator[Routed]:
    first = nodes[0]
    scope = first.scope.child("client")
    pool = Pool(first.ports, scope, limits=first.limits)
    yield Routed(pool, addresses or [node.address for node in nodes], policy=QUICK)
    await scope.close()


async def test_a_hint_is_followed() -> None:
    """Whoever refused knows who serves the request."""
    async with world() as a, world() as b, routed(a) as r:
        at_a, at_b = Script(a, NotLeader("b leads", hint=b.address)), Script(b)
        body, _ = await r.call("test.task", Echo(), reply=Echo)

        assert (body.name, at_a.calls, at_b.calls) == (b.address, 1, 1)


async def test_two_nodes_that_point_at_each_other_end_in_a_refusal() -> None:
    """Nobody knows better: the attempts are bounded."""
    async with world() as a, world() as b, routed(a, b) as r:
        at_a = Script(a, *[NotLeader("b", hint=b.address)] * 20)
        at_b = Script(b, *[NotLeader("a", hint=a.address)] * 20)
        with pytest.raises(NotLeader):
            await r.call("test.task", Echo(), reply=Echo)

        assert at_a.calls + at_b.calls == QUICK.attempts_max


async def test_what_may_succeed_later_is_tried_again_and_what_never_will_is_not() -> None:
    """The class of the refusal decides."""
    async with world() as a, routed(a) as r:
        later = Script(a, Throttled("busy"), Throttled("busy"))
        await r.call("test.task", Echo(), reply=Echo)
        assert later.calls == 3
        never = Script(a, NotFound("no"))
        with pytest.raises(NotFound):
            await r.call("test.task", Echo(), reply=Echo)
        assert never.calls == 1


async def test_a_long_time_for_an_answer_is_none_for_refusals() -> None:
    """A trim may run for ten minutes; a node that refused at once was asked for ten minutes, in silence."""
    patience = Duration(500 * MILLISECOND)
    async with world() as a, routed(a) as r:
        r.policy = msgspec.structs.replace(QUICK, attempts_max=1_000_000)
        Script(a, *[Throttled("busy")] * 10_000)
        with pytest.raises(Throttled):
            await r.call("test.task", Echo(), reply=Echo, timeout=HOUR, patience=patience)

        time, request = r.pool.ports.time, Echo(number=5)
        ends = after(time.now(), patience)
        answer = asyncio.ensure_future(
            r.call("test.wait", request, reply=Echo, timeout=HOUR, patience=patience)
        )
        await until(lambda: time.now() > ends)
        a.methods.gate.set()
        assert (await answer)[0] == request


async def test_no_attempt_is_repeated_without_time_for_its_answer() -> None:
    """The last one began 4 ms before its deadline, and the caller heard of that and not of the refusals."""
    timeout = Duration(500 * MILLISECOND)
    async with world() as w, routed(w) as r:
        attempt = _Attempts(r, timeout, is_idempotent=False)
        await attempt.after(Throttled("busy"))
        await until(lambda: attempt.left() < timeout // 10)

        with pytest.raises(Throttled, match="busy"):
            await attempt.after(Throttled("busy"))


async def test_an_unknown_outcome_is_repeated_only_where_that_is_harmless() -> None:
    """C1: never re-send what is not idempotent (wire.10)."""
    async with world() as a, routed(a) as r:
        once = Script(a, Unknown("who knows"))
        with pytest.raises(Unknown):
            await r.call("test.task", Echo(), reply=Echo)
        assert once.calls == 1
        again = Script(a, Unknown("who knows"))
        await r.call("test.task", Echo(), reply=Echo, is_idempotent=True)
        assert again.calls == 2


async def test_a_refusal_after_an_unknown_attempt_is_unknown() -> None:
    """C2: an error is definite only if no attempt can have been applied."""
    async with world() as a, routed(a) as r:
        Script(a, Unknown("who knows"), NotFound("no"))
        with pytest.raises(Unknown, match="earlier attempt"):
            await r.call("test.task", Echo(), reply=Echo, is_idempotent=True)


async def test_a_hint_that_comes_when_the_time_is_up_leaves_an_unknown_attempt_unknown() -> None:
    """C2: the last node did nothing, for sure; the one before may have."""
    async with world() as w, routed(w) as r:
        attempt = _Attempts(r, Duration(50 * MILLISECOND), is_idempotent=True)
        await attempt.after(Unknown("the first was lost"))
        await until(lambda: not attempt.left())

        with pytest.raises(Unknown, match="an earlier attempt may have been executed"):
            await attempt.after(NotLeader("b leads", hint=w.address))


async def test_a_client_that_closes_leaves_an_unknown_attempt_unknown() -> None:
    """C2: the closed client sent nothing, for sure; its attempt before may have been executed."""
    async with world() as w, routed(w) as r:
        attempt = _Attempts(r, Duration(SECOND), is_idempotent=True)
        await attempt.after(Unknown("the first was lost"))
        await r.pool.close()

        with pytest.raises(Unknown, match="an earlier attempt may have been executed"):
            await attempt.connection()
        with pytest.raises(LocalProtocolError, match="the client is closed"):
            await r.call("test.echo", Echo(), reply=Echo)


async def test_a_node_that_is_down_is_passed_over() -> None:
    """Nothing listens at the first address: the next one is asked."""
    async with world() as a, routed(a, addresses=("127.0.0.1:1", a.address)) as r:
        body, _ = await r.call("test.echo", Echo(number=5), reply=Echo)

        assert body.number == 5


async def test_a_connection_that_was_lost_is_dialled_again() -> None:
    """A node's restart costs its clients an attempt, not their life."""
    async with world() as a, routed(a) as r:
        await r.call("test.echo", Echo(), reply=Echo)
        next(iter(a.server.connections.values())).abort("restart")
        await until(lambda: not a.server.connections)
        body, _ = await r.call("test.echo", Echo(number=5), reply=Echo, is_idempotent=True)

        assert body.number == 5


async def test_nobody_there_is_unreachable_within_the_time() -> None:
    """A definite no, and not later than asked."""
    async with world() as a, routed(a, addresses=("127.0.0.1:1",)) as r:
        with pytest.raises(Unreachable):
            await r.call("test.echo", Echo(), reply=Echo, timeout=Duration(SECOND))


async def test_callers_of_one_address_share_a_dial() -> None:
    """A thousand callers make one connection."""
    async with world() as a, routed(a) as r:
        await asyncio.gather(*[r.call("test.echo", Echo(), reply=Echo) for _ in range(100)])

        assert a.server.counts.accepted == 1


async def test_a_caller_that_gives_up_takes_no_dial_from_another() -> None:
    """The dial is everybody's who waits for it. No test noticed a missing shield."""
    async with world() as a, routed(a) as r:
        both = [asyncio.ensure_future(r.pool.connection(a.address)) for _ in range(2)]
        await asyncio.sleep(0)
        both[0].cancel()

        assert (await both[1]).address == a.address


@pytest.mark.parametrize("turns", [1, 2])
async def test_whoever_waits_for_a_dial_hears_that_the_client_was_closed(turns: int) -> None:
    """A dial that was cancelled before its first step told nobody: who waited for it waited for ever."""
    async with world() as a, routed(a) as r:
        waiting = asyncio.ensure_future(r.pool.connection(a.address))
        for _ in range(turns):
            await asyncio.sleep(0)
        await r.pool._scope.close()

        with pytest.raises(Unreachable, match="the client was closed while it dialled"):
            await asyncio.wait_for(waiting, 5)


async def test_a_pool_that_closes_ends_requests_on_connections_that_their_node_leaves() -> None:
    """They were forgotten with the next dial: whoever waited for an answer there waited on."""
    async with world() as w, routed(w) as r:
        stream = await r.open("test.chat", Echo())
        await stream.send(None, (b"hi",))
        await stream.receive()
        waiting, old = asyncio.ensure_future(stream.receive()), await r.pool.connection(w.address)
        next(iter(w.server.connections.values())).leave()
        await until(lambda: not old.is_usable)
        await r.call("test.echo", Echo(), reply=Echo)
        await r.pool.close()

        with pytest.raises(Unknown, match="was lost before it answered"):
            await asyncio.wait_for(waiting, 5)


async def test_a_connection_that_its_node_leaves_is_closed_also_if_the_node_does_not() -> None:
    """A node that says so again and again, and closes nothing, took all descriptors of its client."""
    closed = 0

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal closed
        await reader.readexactly(f.HEADER_BYTES)
        welcome = f.Welcome(f.VERSION, 1 << 20, 1 << 20, 8, 8, {})
        away = f.GoAway(int(Status.SHUTTING_DOWN), "leaving", 0)
        writer.write(f.frame(f.HELLO, 0, f.encode(welcome)) + f.frame(f.GOAWAY, 0, f.encode(away)))
        while await reader.read(1 << 16):
            pass
        writer.close()
        closed += 1

    server = await asyncio.start_server(leave, "127.0.0.1", 0)
    address = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    async with server, world() as w, routed(w, addresses=(address,)) as r:
        for _ in range(3):
            made = await r.pool.connection(address)
            await until(lambda made=made: not made.is_usable)  # type: ignore[misc]
        await until(lambda: closed == 3)


@pytest.mark.parametrize("status", [Status.REMOTE_PROTOCOL, Status.UNKNOWN, Status.THROTTLED])
async def test_what_a_node_did_not_look_at_is_sent_again_whatever_made_it_leave(status: Status) -> None:
    """A node gives up whoever it did not hear for 40 s, as of a breach of the protocol.

    What it was asked meanwhile failed with that, neither `Refused` nor `Unknown`, and was not sent again.
    """
    async with world() as w, routed(w) as r:
        connection = await r.pool.connection(w.address)
        calls = [
            asyncio.ensure_future(r.call("test.echo", Echo(), reply=Echo)),
            asyncio.ensure_future(r.open_run("test.append", Echo(), reply=Empty)),
        ]
        served = next(iter(w.server.connections.values()))
        served.machine.fail(status, "the peer gave no answer to 3 pings")
        served.take_events(w.ports.time.now())

        await asyncio.gather(*calls)
        assert not connection.is_usable


async def test_runs_and_streams_are_routed_too() -> None:
    """The same addresses, the same patience."""
    async with world() as a, routed(a, addresses=("127.0.0.1:1", a.address)) as r:
        _, run = await r.open_run("test.append", Echo(), reply=Empty)
        assert (await run.send([b"abc"])).end == 3
        stream = await r.open("test.chat", Echo())
        await stream.send(None, (b"hi",))
        assert (await stream.receive()) is not None
        stream.cancel()


async def test_a_caller_with_a_loop_of_its_own_opens_in_one_attempt_and_next_time_elsewhere() -> None:
    """Two loops around one dial repeat it together far more often than each of them means to (ADR 0008)."""
    async with world() as a, routed(a, addresses=("127.0.0.1:1", a.address)) as r:
        with pytest.raises(Unreachable):
            await r.open("test.chat", Echo(), is_repeated=False)
        stream = await r.open("test.chat", Echo(), is_repeated=False)
        stream.cancel()


async def test_back_off_is_jittered_and_bounded() -> None:
    """Callers that failed together do not come back together."""
    async with world() as a, routed(a) as r:
        made = [r.backoff() for _ in range(50)]
        pauses = [[each.next() for each in made] for _ in range(12)]

        assert all(0 <= pause <= QUICK.pause_max for each in pauses for pause in each)
        assert len(set(pauses[11])) > 40


@pytest.mark.parametrize("address", ["a..b:1", "x" * 70 + ".test:1", "nowhere", "a\0b:1"])
async def test_an_address_that_can_be_none_is_refused(address: str) -> None:
    """A name that cannot be looked up ended the dial without a word: its caller waited for ever.

    One with a zero byte, in a `metastore.replace`, ended the node (wire.9).
    """
    async with world() as w, routed(w, addresses=(address,)) as caller, asyncio.timeout(5):
        with pytest.raises(InvalidArgument, match="address"):
            await caller.call("test.echo", Echo(), reply=Echo)


async def test_whoever_waits_for_a_dial_hears_of_its_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's crash handler cannot know who waits."""
    async with world() as w, routed(w) as caller, asyncio.timeout(5):
        monkeypatch.setattr(w.ports.network, "dial", None)
        with pytest.raises(TypeError):
            await caller.call("test.echo", Echo(), reply=Echo)
        await until(lambda: bool(w.ports.crashed))
        w.ports.crashed.clear()


@pytest.mark.parametrize(("timeout", "patience"), [(SHORT, None), (SHORT, HOUR), (HOUR, SHORT)])
async def test_a_node_that_does_not_greet_takes_no_more_than_the_calls_time(
    timeout: Duration, patience: Duration | None
) -> None:
    """A caller with a deadline of its own waited for the dial's."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with world() as w, routed(w, addresses=(address,)) as caller, asyncio.timeout(3):
            with pytest.raises(Unreachable, match="no node could be reached in 100 ms"):
                await caller.call("test.echo", Echo(), reply=Echo, timeout=timeout, patience=patience)


async def test_an_opening_of_a_run_whose_answer_was_lost_is_repeated() -> None:
    """Nothing was appended by it yet."""
    async with world() as a, routed(a) as r:
        asked, method = [0], next(each for each in a.methods.table if each.name == "test.append")
        handler = method.handler

        def script(call: Call, request: Echo) -> RunOpened:
            asked[0] += 1
            if asked[0] == 1:
                raise Unknown("who knows")
            opened: RunOpened = handler(call, request)
            return opened

        method.handler = script
        _, run = await r.open_run("test.append", Echo(), reply=Empty)

        assert (await run.send([b"abc"])).begin == 0
        assert asked[0] == 2
