"""RUN streams over real sockets: each run has its own place and one answer."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.machine import Event
from broadsheet.base.types import Buffer
from broadsheet.errors import (
    NotFound,
    Status,
    TooLarge,
    Unauthenticated,
    Unknown,
    Unreachable,
    WrongAppendOffset,
)
from broadsheet.wire import frame as f
from broadsheet.wire.client import Acknowledged, ClientConnection, ClientRunStream
from broadsheet.wire.events import RunReceived
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY, Call, RunOpened
from broadsheet.wire.run import RUN_BYTES, joining
from tests.wire.harness import Echo, Empty, World, until, world


async def opened(w: World, *, is_holding: bool = False) -> tuple[ClientConnection, ClientRunStream]:
    """A client, and its RUN stream to the log, which may answer nothing until it is released."""
    client = await w.client()
    _, run = await client.open_run("test.append", Echo(), reply=Empty)
    w.methods.log.is_holding = is_holding
    return client, run


@pytest.mark.parametrize("method", ["test.append", "test.append_later"])
async def test_a_run_frame_has_one_answer(method: str) -> None:
    """Our own client sends what is ready as one frame (wire.2)."""
    async with world() as w:
        client = await w.client()
        _, run = await client.open_run(method, Echo(), reply=Empty)
        first = await run.send([b"abc", b"", b"de"])
        second = await run.send([b"x" * 200_000] * 3, at=5)

        assert (first.sequence, first.count, first.begin, first.end) == (0, 3, 0, 5)
        assert (second.sequence, second.count, second.begin, second.end) == (3, 3, 5, 600_005)
        assert bytes(w.methods.log.content) == b"abcde" + b"x" * 600_000
        await run.close()
        assert w.methods.log.is_ended
        await client.close()


async def test_a_run_with_a_wanted_offset_is_refused_whole_where_the_head_is_elsewhere() -> None:
    """journals.21: an explicit offset is an expectation."""
    async with world() as w:
        client, run = await opened(w)
        await run.send([b"abc"])
        with pytest.raises(WrongAppendOffset, match="the head is at 3"):
            await run.send([b"d", b"e"], at=0)
        again = await run.send([b"d", b"e"], at=3)

        assert (again.begin, again.end) == (3, 5)
        await client.close()


async def test_a_refused_opening_says_why() -> None:
    """The target is looked up once, when the stream is opened."""
    async with world() as w:
        client = await w.client()
        with pytest.raises(NotFound):
            await client.open_run("test.append_later", Echo(number=1), reply=Empty)
        await client.close()


async def test_a_run_stream_that_was_cancelled_gives_its_place_back() -> None:
    """A place kept for a stream that nothing works for any more is lost until the connection ends."""
    async with world(WireLimits(streams_max=4)) as w:
        client = await w.client()
        for _ in range(12):
            _, run = await client.open_run("test.append", Echo(), reply=Empty)
            client.machine.cancel(run.stream)
            client.mark_dirty()

        assert (await client.call("test.echo", Echo(number=7), reply=Echo))[0].number == 7
        await client.close()


async def test_unanswered_bytes_stay_within_the_window_and_the_node_stops_reading() -> None:
    """A log that does not answer holds its callers back, and nothing piles up."""
    limits = WireLimits(frame_bytes_max=1 << 20, window_bytes=3 << 20, in_flight_bytes_max=2 << 20)
    async with world(limits) as w:
        client, run = await opened(w, is_holding=True)
        records: list[Buffer] = [b"r" * 100_000] * 5
        sends = [asyncio.create_task(run.send(records)) for _ in range(40)]
        await until(lambda: len(w.methods.log.held) >= 4)
        for _ in range(30):
            await asyncio.sleep(0.001)
        server = next(iter(w.server.connections.values()))

        assert server.backpressure.in_flight_bytes <= 3 << 20
        w.methods.log.release()
        places = [(await send).begin for send in sends]
        assert places == [n * 500_000 for n in range(40)]
        await client.close()


async def test_one_answer_lets_every_run_go_on_that_now_fits() -> None:
    """A large run leaves room for many small ones: they wait for its answer, and not for one another's."""
    async with world(WireLimits(frame_bytes_max=1 << 20, window_bytes=(2 << 20) + 128)) as w:
        (client, run), log = await opened(w, is_holding=True), w.methods.log
        large = [asyncio.create_task(run.send([bytes(1_000_000)])) for _ in range(2)]
        await until(lambda: len(log.held) == 2)
        small = [asyncio.create_task(run.send([bytes(100_000)])) for _ in range(8)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(log.held) == 2
        log.release()
        log.is_holding = True
        await asyncio.gather(*large)
        async with asyncio.timeout(5):
            await until(lambda: len(log.held) == 8)

        log.release()
        assert [(await each).begin for each in small] == [2_000_000 + 100_000 * n for n in range(8)]
        await client.close()


async def test_a_small_run_does_not_overtake_a_large_one_that_waits_for_room() -> None:
    """Runs are sent in the order of the calls: a producer's messages keep their order in the journal."""
    async with world(WireLimits(frame_bytes_max=1 << 20, window_bytes=(2 << 20) + 128)) as w:
        (client, run), log = await opened(w, is_holding=True), w.methods.log
        sends = [asyncio.create_task(run.send([bytes(1_000_000)])) for _ in range(3)]
        await until(lambda: len(log.held) == 2)
        sends.append(asyncio.create_task(run.send([b"small enough for the room that is left"])))
        for _ in range(10):
            await asyncio.sleep(0)
        log.release()

        assert [(await each).begin for each in sends] == [0, 1_000_000, 2_000_000, 3_000_000]
        await client.close()


async def test_answers_after_the_connection_is_gone_go_nowhere() -> None:
    """The log decides in its own time; a run that nobody waits for is answered into the void."""
    async with world() as w:
        client, run = await opened(w, is_holding=True)
        sent = asyncio.create_task(run.send([b"abc"]))
        await until(lambda: w.methods.log.held)
        await client.close()
        with pytest.raises(Unknown):
            await sent
        await until(lambda: w.methods.log.is_ended)
        w.methods.log.release()

        assert bytes(w.methods.log.content) == b"abc"


async def test_runs_on_their_way_are_unknown_where_their_stream_is_refused() -> None:
    """C2: a token that has expired ends a stream by a refusal, and the log may take its runs later."""
    async with world() as w:
        client, run = await opened(w, is_holding=True)
        sent = asyncio.create_task(run.send([b"abc"]))
        await until(lambda: w.methods.log.held)
        server = next(iter(w.server.connections.values()))
        server.end_stream(run.stream, Unauthenticated("the token has expired"))
        with pytest.raises(Unknown):
            await sent
        w.methods.log.release()

        assert bytes(w.methods.log.content) == b"abc"
        with pytest.raises(Unauthenticated):
            await run.send([b"never sent"])
        await client.close()


async def test_a_run_above_a_frame_is_refused_before_it_is_sent() -> None:
    """The caller splits, and knows what is atomic."""
    async with world() as w:
        client, run = await opened(w)
        with pytest.raises(TooLarge):
            await run.send([bytes(3 << 20)] * 2)
        assert (await run.send([b"a"])).begin == 0
        await client.close()


async def test_the_longest_run_that_is_not_refused_is_taken() -> None:
    """One that the node's frames cannot hold would break the connection, and all that is on it."""
    async with world() as w:
        client, run = await opened(w)
        longest = w.limits.frame_bytes_max - 8 - 4  # The place, and the length of one record.
        with pytest.raises(TooLarge):
            await run.send([bytes(longest + 1)])
        assert (await run.send([bytes(longest)])).begin == 0
        assert (await run.send([b"a"])).begin == longest
        await client.close()


async def test_views_of_a_run_never_show_other_bytes_later() -> None:
    """Slabs are used again only when nobody refers to them, however long a run is held."""
    async with world() as w:
        client, run = await opened(w, is_holding=True)
        records = [bytes([n]) * 300_000 for n in range(25)]
        sends = [asyncio.create_task(run.send([record])) for record in records]
        await until(lambda: len(w.methods.log.held) == 25)
        w.methods.log.release()
        await asyncio.gather(*sends)

        assert bytes(w.methods.log.content) == b"".join(records)
        await client.close()


async def test_senders_that_wait_for_room_never_exceed_the_window_together() -> None:
    """One that came when another had been woken took its room as well, and the node ended the connection."""
    async with world() as w:
        client, run = await opened(w)
        log, most = w.methods.log, 0
        log.is_holding = True

        async def send(size: int) -> None:
            nonlocal most
            for _ in range(20):
                answer = await run.submit((bytes(size),))
                (state,) = client.machine.streams
                most = max(most, run.unanswered_bytes)
                assert state == run.stream
                await answer

        async def answer() -> None:
            while True:
                await asyncio.sleep(0)
                if log.held:
                    log.content.clear()
                    log.place(log.held.pop(0))

        answering = asyncio.create_task(answer())
        await asyncio.gather(*[send(mib << 20) for mib in (3, 3, 3, 2, 3, 1, 3)])
        answering.cancel()

        assert most <= client.machine.peer_window_bytes
        assert run.unanswered_bytes == 0, "all that was taken is given back"
        await client.close()


async def test_a_sender_that_gives_up_gives_its_room_back() -> None:
    """It may have got the room and not have used it: then nobody ever would."""
    async with world() as w:
        (client, run), log = await opened(w, is_holding=True), w.methods.log
        waiting: list[asyncio.Task[Acknowledged]] = []

        async def send() -> None:
            await run.send((bytes(3 << 20),))
            for task in waiting:  # The first of them has got its room by now, and has not yet run.
                task.cancel()

        first = [asyncio.create_task(send()) for _ in range(3)]
        await until(lambda: len(log.held) == 3)
        waiting += [asyncio.create_task(run.send((bytes(3 << 20),))) for _ in range(2)]
        await asyncio.sleep(0)
        log.place(log.held.pop(0))
        assert all(
            isinstance(each, asyncio.CancelledError)
            for each in await asyncio.gather(*waiting, return_exceptions=True)
        )
        log.release()
        await asyncio.gather(*first)

        await asyncio.gather(*[run.send((bytes(3 << 20),)) for _ in range(4)])
        assert run.unanswered_bytes == 0
        await client.close()


async def test_a_run_that_waits_is_refused_where_its_stream_is_closed_meanwhile() -> None:
    """The client's task that sends all small appends of a journal ended with an assertion.

    The journal had been deleted and made again. All appends that waited were late, and nothing was wrong.
    """
    async with world() as w:
        (client, run), log = await opened(w, is_holding=True), w.methods.log
        first = [asyncio.create_task(run.send([bytes(3 << 20)])) for _ in range(3)]
        await until(lambda: len(log.held) == 3)
        waiting = asyncio.create_task(run.send([b"x" * 1_000_000]))
        await asyncio.sleep(0)
        closing = asyncio.create_task(run.close())

        with pytest.raises(Unreachable, match="nothing of this was sent"):
            await asyncio.wait_for(waiting, 5)
        with pytest.raises(Unreachable, match="nothing of this was sent"):
            await run.send([b"late"])
        log.release()
        assert [(await each).begin for each in first] == [0, 3 << 20, 6 << 20]
        await closing
        await client.close()


async def test_small_records_pin_no_slab_while_they_are_held() -> None:
    """What outlives its read is copied: a few records of 20 KB would each hold a slab of a megabyte."""
    async with world() as w:
        client, run = await opened(w, is_holding=True)
        sends = [asyncio.create_task(run.send([bytes([n]) * 20_000])) for n in range(10)]
        await until(lambda: sum(each.count for each in w.methods.log.held) == 10)

        parts = [part for each in w.methods.log.held for part in each.parts]
        assert not [
            part for part in parts if isinstance(part, memoryview) and isinstance(part.obj, bytearray)
        ]
        w.methods.log.release()
        await asyncio.gather(*sends)
        await client.close()


async def test_a_run_is_answered_once() -> None:
    """A second answer would be taken for the next run's."""
    async with world() as w:
        client, run = await opened(w, is_holding=True)
        sent = asyncio.create_task(run.send([b"abc"]))
        await until(lambda: w.methods.log.held)
        (held,) = w.methods.log.held
        held.answer(Status.OK, 0, held.size)
        with pytest.raises(AssertionError, match="answered once"):
            held.answer(Status.OK, 0, held.size)
        await sent
        await client.close()


async def test_a_run_stream_is_closed_once_however_often_it_is_asked() -> None:
    """A second end would belong to no stream, and end the connection."""
    async with world() as w:
        client, run = await opened(w)
        await run.send([b"abc"])
        await asyncio.gather(run.close(), run.close())
        await run.close()

        assert w.methods.log.is_ended
        assert (await client.call("test.echo", Echo(number=2), reply=Echo))[0].number == 2
        await client.close()


async def test_runs_of_empty_records_are_bounded_while_nobody_answers_them() -> None:
    """They weigh nothing in a window, so a caller had as many of them in memory as it could send.

    Each kept a table of up to 65,536 lengths besides: 256 KiB of it, counted nowhere.
    """
    limits = WireLimits(frame_bytes_max=1 << 20, in_flight_bytes_max=1 << 20)
    async with world(limits) as w:
        client, run = await opened(w, is_holding=True)
        sending = [await run.submit([b""]) for _ in range(10_000)]
        (server,) = w.server.connections.values()
        await until(lambda: server.backpressure.is_held)

        assert len(w.methods.log.held) <= (1 << 20) // RUN_BYTES + 1
        while not all(each.done() for each in sending):
            w.methods.log.release()
            w.methods.log.is_holding = True
            await asyncio.sleep(0.001)
        await client.close()


async def test_a_run_stream_that_is_finished_before_it_is_opened_ends() -> None:
    """The FINISH was forgotten: the stream kept its slot until its connection was closed."""
    async with world() as w:
        reader, writer = await asyncio.open_connection(*w.address.split(":"))
        writer.write(
            f.frame(f.HELLO, 0, f.encode(f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 9 << 20)))
        )
        await until(lambda: any(each.caller for each in w.server.connections.values()))
        body = f.CALL_HEAD.pack(w.server.numbers["test.append_later"], 0) + f.encode(Echo("a/b"))
        writer.write(f.frame(f.OPEN_RUN, 1, body) + f.frame(f.FINISH, 1))
        (connection,) = w.server.connections.values()
        await until(lambda: w.server.counts.calls == 1)
        await until(lambda: not connection.machine.streams and not len(connection.runs))

        assert w.server.counts.refused == 0
        writer.close()
        await reader.read()


async def test_a_run_stream_that_was_opened_in_time_outlives_the_deadline_of_its_opening() -> None:
    """A deadline between opening and end of its task refused the stream, and its sink was not told."""
    async with world() as w:
        client = await w.client()

        async def append(_call: Call, _request: Echo) -> RunOpened:
            (connection,) = w.server.connections.values()
            asyncio.get_running_loop().call_soon(connection.tasks._late, 1)
            return RunOpened(EMPTY, w.methods.log)

        w.server.table[w.server.numbers["test.append_later"]].handler = append
        _, run = await client.open_run("test.append_later", Echo(), reply=Empty)
        acknowledged = await run.send([b"abc"])
        await run.close()

        assert acknowledged.end == 3
        assert w.methods.log.is_ended
        await client.close()


async def test_frames_that_come_together_are_one_run_and_each_has_its_own_answer() -> None:
    """ADR 0196: a run costs 30 us whatever it holds. Who sent many small frames paid it for each."""
    async with world() as w:
        log = w.methods.log
        log.joined_bytes_max = 1000
        client, run = await opened(w, is_holding=True)
        answers = [await run.submit([bytes([n]) * n, b"!"]) for n in range(1, 6)]
        await until(lambda: bool(log.held))
        joined = [(each.sequence, each.count, each.size, each.frames) for each in log.held]
        log.release()
        found = [await each for each in answers]

        assert joined == [(0, 10, 20, [(2, 2), (2, 3), (2, 4), (2, 5), (2, 6)])]
        assert [(each.sequence, each.count, each.begin, each.end) for each in found] == [
            (0, 2, 0, 2), (2, 2, 2, 5), (4, 2, 5, 9), (6, 2, 9, 14), (8, 2, 14, 20),
        ]  # fmt: skip
        assert bytes(log.content) == b"".join(bytes([n]) * n + b"!" for n in range(1, 6))
        await run.close()
        await client.close()


async def test_each_frame_of_a_joined_run_that_is_refused_is_told() -> None:
    """A frame without an answer leaves its caller waiting, and its bytes in the window."""
    async with world() as w:
        log = w.methods.log
        log.joined_bytes_max, log.refuse_above = 1000, 10
        client, run = await opened(w)
        answers = [await run.submit([b"x" * 4]) for _ in range(5)]
        found = await asyncio.gather(*answers, return_exceptions=True)
        after = await run.send([b"y"])

        assert [type(each) for each in found] == [TooLarge] * 5
        assert (after.sequence, after.begin, after.end) == (5, 0, 1)
        (server,) = w.server.connections.values()
        assert server.runs.unanswered_bytes == 0
        await client.close()


async def test_joined_frames_give_back_all_that_they_held() -> None:
    """What is not given back is missing for good: the connection would stop after a few thousand frames."""
    limits = WireLimits(frame_bytes_max=1 << 20, in_flight_bytes_max=1 << 20)
    async with world(limits) as w:
        w.methods.log.joined_bytes_max = 256 << 10
        client, run = await opened(w)
        for _ in range(40):
            answers = [await run.submit([b"x" * 30_000]) for _ in range(8)]
            ends = [(await each).end for each in answers]
            assert ends == sorted(ends)
        (server,) = w.server.connections.values()

        assert len(w.methods.log.content) == 40 * 8 * 30_000
        assert server.runs.unanswered_bytes == 0
        await client.close()


FRAMES = st.lists(
    st.tuples(st.sampled_from((1, 1, 1, 3)), st.integers(0, 40), st.sampled_from((None, None, None, 7))),
    min_size=1,
    max_size=20,
)


@given(FRAMES, st.integers(0, 100))
def test_only_frames_that_stand_together_are_joined(
    frames: list[tuple[int, int, int | None]], bytes_max: int
) -> None:
    """One of another stream keeps its place; one with an offset, or empty, has an outcome of its own."""
    events: list[Event] = [
        RunReceived(stream=stream, sequence=number, count=1, at=at, content=memoryview(bytes(size)))
        for number, (stream, size, at) in enumerate(frames)
    ]
    groups: list[list[RunReceived]] = []
    while (taken := sum(map(len, groups))) < len(events):
        groups.append(joining(events, taken, bytes_max))

    assert [each for group in groups for each in group] == events
    for group, following in zip(groups, [*groups[1:], []], strict=True):
        size = sum(len(each.content) for each in group)
        assert len({each.stream for each in group}) == 1
        if len(group) > 1:
            assert all(each.at is None and each.content for each in group)
            assert size <= bytes_max
        if following and (first := following[0]).stream == group[0].stream:
            may_join = all(each.at is None and each.content for each in (*group, first))
            assert not may_join or size + len(first.content) > bytes_max, "joins what it may"
