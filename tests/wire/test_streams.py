"""STREAMs over real sockets: order, flow control, ends."""

import asyncio

import msgspec
import pytest

from broadsheet.errors import InvalidArgument, TooLarge, Unknown
from broadsheet.wire import frame as f
from broadsheet.wire.client import ClientConnection, ClientStream
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Reply, RoomyStream
from broadsheet.wire.send_shares import TURN_BYTES
from tests.wire.harness import EMPTY, Echo, Empty, Sum, until, world


async def test_a_large_body_streams_up_through_a_small_window() -> None:
    """64 MB pass through a window of 1 MiB, so that no side ever holds more than that."""
    limits = WireLimits(frame_bytes_max=400_000, window_bytes=1 << 20)
    async with world(limits) as w:
        client = await w.client()
        stream = await client.open("test.sum", Echo())
        for _ in range(200):
            await stream.send(None, (bytes(320_000),))

        assert await stream.reply(Sum) == Sum(200, 200 * 320_000)
        await client.close()


async def test_streams_that_all_have_a_window_to_fill_end_no_connection() -> None:
    """Eight appends of 12 MiB by one client ended its own connection, as of a slow peer, and all failed.

    Each had room for 9 MiB, and no turn of the loop in between told them that the socket was full.
    """
    limits = WireLimits(frame_bytes_max=1 << 20, window_bytes=9 << 20, send_buffer_bytes_max=12 << 20)
    async with world(limits) as w:
        client = await w.client()

        async def upload() -> Sum:
            stream = await client.open("test.sum", Echo())
            for _ in range(20):
                await stream.send(None, (bytes(900_000),))
            return await stream.reply(Sum)

        assert await asyncio.gather(*[upload() for _ in range(8)]) == [Sum(20, 20 * 900_000)] * 8
        await client.close()


async def test_messages_come_down_in_order_with_their_bodies() -> None:
    """Flow control works the other way as well."""
    async with world(WireLimits(frame_bytes_max=200_000, window_bytes=1 << 19)) as w:
        client = await w.client()
        stream = await client.open("test.download", Echo(number=100))
        numbers = []
        while (message := await stream.receive()) is not None:
            numbers.append(msgspec.msgpack.decode(message.body, type=Echo).number)
            assert len(message.payload) == 100_000

        assert numbers == list(range(100))
        assert await stream.reply(Empty) == EMPTY
        await client.close()


async def test_a_sender_waits_for_a_receiver_that_does_not_take() -> None:
    """The window bounds what lies around: a reader that sleeps stops the writer, not the node."""
    async with world(WireLimits(frame_bytes_max=100_064, window_bytes=1 << 19)) as w:
        client = await w.client()
        stream = await client.open("test.download", Echo(number=1000))
        await until(lambda: stream.queued_bytes > 200_000)
        for _ in range(50):
            await asyncio.sleep(0.001)

        assert stream.queued_bytes <= 1 << 19
        stream.cancel()
        await client.close()


async def test_a_chat_of_large_messages_both_ways_does_not_lock_up() -> None:
    """Both ends full at once: the dialler always reads, so somebody can go on."""
    async with world(WireLimits(frame_bytes_max=1 << 20, window_bytes=3 << 20)) as w:
        client = await w.client()
        stream = await client.open("test.chat", Echo())

        async def talk() -> None:
            for _ in range(40):
                await stream.send(None, (bytes(900_000),))
            stream.finish()

        talking = asyncio.create_task(talk())
        heard = 0
        while await stream.receive() is not None:
            heard += 1
        await talking

        assert heard == 40
        assert await stream.reply(Empty) == EMPTY
        await client.close()


async def test_a_cancelled_stream_stops_its_handler_and_leaves_the_connection() -> None:
    """CANCEL ends one stream."""
    async with world() as w:
        client = await w.client()
        stream = await client.open("test.chat", Echo())
        await stream.send(None, (b"hello",))
        await stream.receive()
        stream.cancel()
        await until(lambda: w.methods.cancelled == 1)
        with pytest.raises(Unknown):
            await stream.send(None, (b"again",))

        body, _ = await client.call("test.echo", Echo(number=3), reply=Echo)
        assert body.number == 3
        await client.close()


async def test_a_lost_connection_ends_a_stream_as_unknown() -> None:
    """Whoever waits for a message learns it."""
    async with world() as w:
        client = await w.client()
        stream = await client.open("test.chat", Echo())
        waiting = asyncio.create_task(stream.receive())
        await until(lambda: w.server.accounts.used_bytes)
        next(iter(w.server.connections.values())).abort("pulled the plug")
        with pytest.raises(Unknown):
            await waiting
        with pytest.raises(Unknown):
            await stream.reply(Empty)


async def test_a_message_above_the_frame_limit_is_refused_and_nothing_is_sent() -> None:
    """The stream goes on."""
    async with world(WireLimits(frame_bytes_max=100_000)) as w:
        client = await w.client()
        stream = await client.open("test.sum", Echo())
        with pytest.raises(TooLarge):
            await stream.send(None, (bytes(100_001),))
        await stream.send(None, (bytes(99_000),))

        assert await stream.reply(Sum) == Sum(1, 99_000)
        await client.close()


async def test_a_stream_opened_while_much_was_in_flight_is_widened_when_it_is_not() -> None:
    """Answered runs gave their bytes back, and nobody told the stream: its sender waited for ever."""
    limits = WireLimits(frame_bytes_max=400_000, window_bytes=1 << 20, in_flight_bytes_max=1_000_000)
    async with world(limits) as w:
        client = await w.client()
        _, run = await client.open_run("test.append", Echo(), reply=Empty)
        w.methods.log.is_holding = True
        answers = [await run.submit([bytes(350_000)]) for _ in range(2)]
        await until(lambda: len(w.methods.log.held) == 2)
        stream = await client.open("test.sum", Echo())
        sending = asyncio.create_task(stream.send(None, (bytes(300_000),)))
        await client.call("test.echo", Echo(), reply=Echo)
        assert not sending.done()
        w.methods.log.release()
        async with asyncio.timeout(5):
            await sending

            assert await stream.reply(Sum) == Sum(1, 300_000)
        await asyncio.gather(*answers)
        await client.close()


async def test_a_stream_that_does_not_receive_has_no_inbox() -> None:
    """Reproduced before: with a token to read, a client stuffed 9 MiB into each of 1,024 reads (wire.3)."""
    async with world() as w:
        client = await w.client()
        deaf = await client.open("test.deaf", Echo())
        sent = 0

        async def stuff() -> None:
            nonlocal sent
            while True:
                await deaf.send(None, (bytes(10_000),))
                sent += 10_000

        stuffing = asyncio.ensure_future(stuff())
        await until(lambda: w.server.accounts.queued_bytes >= sent > 50_000)
        await client.call("test.echo", Echo(), reply=Echo)  # A round trip: a window would have come by now.

        assert sent <= f.INITIAL_WINDOW_BYTES
        assert w.server.accounts.queued_bytes <= f.INITIAL_WINDOW_BYTES + 100
        stuffing.cancel()
        await asyncio.gather(stuffing, return_exceptions=True)
        deaf.cancel()
        await until(lambda: w.server.accounts.queued_bytes == 0)
        await client.close()


async def test_a_message_for_a_handler_that_takes_none_ends_the_stream() -> None:
    """A reader has nothing to say; what it sends is not kept."""
    async with world() as w:
        client = await w.client()
        stream = await client.open("test.download", Echo(number=3))
        stream.finish()
        assert (await stream.receive()) is not None
        chatty = await client.open("test.download", Echo(number=1_000))
        await chatty.send(None, (b"x",))
        with pytest.raises(InvalidArgument, match=r"test\.download takes no messages"):
            await chatty.reply(Empty)

        await client.close()


async def test_many_slow_uploads_hold_no_more_than_their_callers_share() -> None:
    """Windows are granted to handlers that wait; those that are busy have what there is room for."""
    limits = WireLimits(
        frame_bytes_max=1 << 20, window_bytes=3 << 20, in_flight_bytes_max=2 << 20,
        node_in_flight_bytes_max=8 << 20, reserve_bytes=1 << 20,
    )  # fmt: skip
    async with world(limits) as w:
        client = await w.client()
        uploads = [await client.open("test.slow", Echo()) for _ in range(20)]

        async def upload(stream: ClientStream) -> None:
            for _ in range(8):
                await stream.send(None, (bytes(200_000),))

        sending = [asyncio.ensure_future(upload(stream)) for stream in uploads]
        most = 0
        while not all(each.done() for each in sending):
            await asyncio.sleep(0)
            most = max(most, w.server.accounts.queued_bytes)
        replies = await asyncio.gather(*[stream.reply(Sum) for stream in uploads])

        assert all(reply == Sum(8, 1_600_000) for reply in replies)
        assert most <= limits.node_in_flight_bytes_max + limits.window_bytes
        await client.close()


async def test_an_echo_goes_on_where_what_is_queued_is_more_than_a_share() -> None:
    """Queued messages must not stop the reading of the WINDOW that their handler waits for."""
    limits = WireLimits(
        frame_bytes_max=256 << 10, window_bytes=768 << 10, in_flight_bytes_max=384 << 10,
        node_in_flight_bytes_max=640 << 10, reserve_bytes=32 << 10, floor_bytes=16 << 10,
    )  # fmt: skip
    async with world(limits) as w:
        clients = [await w.client() for _ in range(4)]

        async def echo(client: ClientConnection) -> int:
            stream = await client.open("test.chat", Echo())

            async def send() -> None:
                for _ in range(20):
                    await stream.send(None, (bytes(100_000),))
                stream.finish()

            sending = asyncio.ensure_future(send())
            await asyncio.sleep(0.05)  # What is sent ahead fills every queue on the way.
            count = 0
            while (message := await stream.receive()) is not None:
                count += len(message.payload)
                await client.call("test.echo", Echo(), (bytes(50_000),), reply=Echo)
            await sending
            return count

        async with asyncio.timeout(30):
            assert await asyncio.gather(*[echo(client) for client in clients]) == [2_000_000] * 4
        for client in clients:
            await client.close()


@pytest.mark.parametrize("streams", [1, 100])
async def test_readers_with_windows_of_gigabytes_send_a_little_in_each_turn(streams: int) -> None:
    """A hundred such reads of 40 MiB held a node up for 5.7 s and took 1 GiB of memory."""
    async with world() as w:
        client = await w.client(limits=WireLimits(window_bytes=1 << 30))
        ends = [await client.open("test.download", Echo(number=60)) for _ in range(streams)]
        (connection,) = w.server.connections.values()
        most, received = 0, 0

        async def take(end: ClientStream) -> None:
            nonlocal received
            while await end.receive() is not None and received < 20_000_000:
                received += 100_000

        takers = asyncio.gather(*[take(end) for end in ends])
        before = connection.written_bytes
        while not takers.done():
            await asyncio.sleep(0)
            waits = sum([len(piece) for piece in connection.machine.out])
            most = max(most, connection.written_bytes + waits - before)
            before = connection.written_bytes
            w.server.send_shares.check()

        assert 100_000 < most < 3 * TURN_BYTES, "what is promised in one turn and sent in the next, at most"
        client.abort("the test is over")


async def test_streams_of_a_peer_that_does_not_read_are_parked_and_go_on_when_it_does() -> None:
    """A sender that nobody wakes would hang for ever."""
    async with world() as w:
        client = await w.client()
        ends = [await client.open("test.download", Echo(number=40)) for _ in range(20)]
        assert client.transport is not None
        client.transport.pause_reading()
        (connection,) = w.server.connections.values()
        await until(lambda: connection.is_write_paused)
        for _ in range(100):
            await asyncio.sleep(0)
            w.server.send_shares.check()
        ends.pop().cancel()
        client.transport.resume_reading()

        async def take(end: ClientStream) -> int:
            count = 0
            while await end.receive() is not None:
                count += 1
            return count

        async with asyncio.timeout(60):
            assert await asyncio.gather(*map(take, ends)) == [40] * 19
        await client.close()


@pytest.mark.parametrize("is_full", [True, False])
async def test_a_busy_handler_has_a_narrow_window_where_its_caller_holds_much(is_full: bool) -> None:
    """Else each stream whose handler took one could hold a whole window beside what is in flight."""
    async with world() as w:
        client = await w.client()
        calls = [
            asyncio.create_task(client.call("test.stubborn", Echo(), (bytes(3 << 20),), reply=Echo))
            for _ in range(7 * is_full)
        ]
        stream = await client.open("test.busy", Echo())
        for _ in range(10):
            await stream.send(None, (bytes(5000),))
        (connection,) = w.server.connections.values()
        await until(lambda: w.server.accounts.queued_bytes == 10 * 5064)
        await until(lambda: connection.backpressure.in_flight_bytes >= len(calls) * (3 << 20))
        w.methods.gate.set()
        await until(lambda: w.methods.done == 1)

        held = connection.machine.streams[stream.stream].granted + w.server.accounts.queued_bytes
        assert held == (64 << 10) - 5064 if is_full else held > 1 << 20
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        client.abort("the test is over")


async def test_room_is_for_what_the_peer_takes_in_a_frame() -> None:
    """A reader with a wide window and small frames was refused its reads as too large, for good."""
    async with world() as w:

        async def fill(_call: object, _request: Echo, stream: RoomyStream) -> Reply:
            left = 1_000_000
            while left:
                size = await stream.room(left)
                await stream.send(None, (bytes(size),))
                left -= size
            return Reply(EMPTY)

        next(each for each in w.methods.table if each.name == "test.download").handler = fill
        client = await w.client(limits=WireLimits(frame_bytes_max=64 << 10))
        stream = await client.open("test.download", Echo())
        sizes = []
        while (message := await stream.receive()) is not None:
            sizes.append(len(message.payload))
        await stream.reply(Empty)
        await client.close()

    assert (sum(sizes), max(sizes)) == (1_000_000, 64 << 10)


async def test_streams_that_were_promised_room_hold_together_what_peers_may_leave_unread() -> None:
    """8,000 reads of one caller had 256 KiB each in memory, and waited for their turn to send it: 2 GiB."""
    limits, count = WireLimits(node_unread_bytes_max=512 << 10), 30
    async with world(limits) as w:
        begin, rooms = asyncio.Event(), list[int]()

        async def fill(_call: object, _request: Echo, stream: RoomyStream) -> Reply:
            await begin.wait()
            rooms.append(await stream.room(256 << 10))
            await until(lambda: len(rooms) == count)  # As if each read a slow store.
            return Reply(EMPTY)

        next(each for each in w.methods.table if each.name == "test.download").handler = fill
        client = await w.client()
        streams = [await client.open("test.download", Echo()) for _ in range(count)]
        await until(lambda: w.server.accounts.task_count == count)
        begin.set()
        for stream in streams:
            await stream.reply(Empty)
        await client.close()

    assert rooms == [limits.node_unread_bytes_max // count] * count


async def test_a_message_whose_body_is_of_the_greatest_size_is_sent() -> None:
    """One byte more is refused here, because the node would end the connection for it."""
    bare = len(msgspec.msgpack.encode(Echo(name="x" * 1000)))
    async with world(WireLimits(body_bytes_max=2000)) as w:
        client = await w.client()
        stream = await client.open("test.sum", Echo())
        await stream.send(Echo(name="x" * (1000 + 2000 - bare)))
        with pytest.raises(TooLarge, match="2001 of body"):
            await stream.send(Echo(name="x" * (1001 + 2000 - bare)))

        assert await stream.reply(Sum) == Sum(1, 0)
        await client.close()
