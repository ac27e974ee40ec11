"""Tasks that wait for one event go on a few in each turn of the loop, in the order of their coming."""

import asyncio

from broadsheet.runtime.waiting_line import WOKEN_MAX, WaitingLine


async def test_those_who_wait_go_on_in_order_and_a_few_in_each_turn() -> None:
    """8,000 that went on at once held the loop for 0.3 s."""
    line, done = WaitingLine(), list[int]()

    async def wait(number: int) -> None:
        await line.wait()
        done.append(number)

    waiting = [asyncio.ensure_future(wait(number)) for number in range(3 * WOKEN_MAX)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)

    line.wake()
    late = asyncio.ensure_future(wait(-1))
    while len(done) < 3 * WOKEN_MAX - 1:
        before = len(done)
        await asyncio.sleep(0)
        assert len(done) - before <= WOKEN_MAX
    assert done == [0, *range(2, 3 * WOKEN_MAX)]
    await asyncio.sleep(0)
    assert not late.done(), "who came after the event waits for the next one"

    line.wake()
    await late
    assert done[-1] == -1


async def test_one_who_is_woken_and_cancelled_keeps_nobody_from_going_on() -> None:
    """Its future is cancelled while it stands among those that go on next."""
    line = WaitingLine()
    waiting = [asyncio.ensure_future(line.wait()) for _ in range(3 * WOKEN_MAX)]
    await asyncio.sleep(0)
    line.wake()
    for each in waiting[:-1]:
        each.cancel()
    await asyncio.wait(waiting, timeout=5)

    assert waiting[-1].done()
    assert not waiting[-1].cancelled()
