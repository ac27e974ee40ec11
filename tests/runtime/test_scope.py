"""No task outlives its scope, and none fails unheard."""

import asyncio
from functools import partial

import pytest

from broadsheet.errors import ShuttingDown
from broadsheet.runtime.scope import OneByOne, Scope, carried, to_the_end


def unexpected(error: BaseException) -> None:
    raise AssertionError("nothing was to end the node") from error


async def forever(log: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append(f"{name} ended")


async def test_closing_ends_tasks_first_then_what_was_deferred_last_first() -> None:
    """A task may still use what its scope has opened (code.9)."""
    log: list[str] = []
    scope = Scope("node", crash=unexpected)

    async def close(name: str) -> None:
        log.append(f"{name} closed")

    scope.defer(lambda: close("file"))
    scope.defer(lambda: close("connection"))
    scope.spawn(forever(log, "task"), name="task")
    await asyncio.sleep(0)
    await scope.close()
    await scope.close()

    assert log == ["task ended", "connection closed", "file closed"]


async def test_a_child_closes_with_its_parent_or_before_and_is_forgotten() -> None:
    """A listener opens a scope per connection: closed ones must not pile up."""
    log: list[str] = []
    parent = Scope("node", crash=unexpected)
    early, late = parent.child("early"), parent.child("late")
    early.spawn(forever(log, "early"), name="task")
    late.spawn(forever(log, "late"), name="task")
    await asyncio.sleep(0)
    await early.close()

    assert log == ["early ended"]
    assert len(parent._closers) == 1
    await parent.close()
    assert log == ["early ended", "late ended"]


async def test_a_task_that_raises_ends_the_node() -> None:
    """Its work is not done, and nobody awaits it."""
    ends: list[BaseException] = []
    scope = Scope("node", crash=ends.append)

    async def fail() -> None:
        raise KeyError("a bug")

    scope.spawn(fail(), name="task")
    await asyncio.sleep(0.01)
    await scope.close()

    assert [type(end) for end in ends] == [KeyError]


async def test_a_closer_that_raises_does_not_keep_the_rest_open() -> None:
    """The lock of the data directory is deferred first, so it is closed last."""
    ends: list[BaseException] = []
    closed: list[str] = []
    scope = Scope("node", crash=ends.append)

    async def lock() -> None:
        closed.append("lock")

    async def fail() -> None:
        raise OSError("a disk")

    scope.defer(lock)
    scope.defer(fail)
    await scope.close()

    assert closed == ["lock"]
    assert [type(end) for end in ends] == [OSError]


async def test_a_task_may_close_its_own_scope() -> None:
    """A connection that breaks the protocol ends itself."""
    scope = Scope("connection", crash=unexpected)
    log: list[str] = []

    async def end() -> None:
        await scope.close()
        log.append("closed")

    scope.spawn(forever(log, "other"), name="other")
    await asyncio.sleep(0)
    await scope.spawn(end(), name="end")

    assert log == ["other ended", "closed"]


async def test_a_cancelled_close_still_closes_everything() -> None:
    """A second signal during shutdown must not leave a task behind."""
    log: list[str] = []
    scope = Scope("node", crash=unexpected)

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            log.append("slow ended")

    async def close() -> None:
        log.append("file closed")

    scope.defer(close)
    scope.spawn(slow(), name="slow")
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(scope.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing

    assert log == ["slow ended", "file closed"]


async def test_a_closed_scope_takes_no_task() -> None:
    """It would have no owner."""
    scope = Scope("node", crash=unexpected)
    await scope.close()
    with pytest.raises(AssertionError, match="scope node is closed: cannot start task"):
        scope.spawn(forever([], "task"), name="task")


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_caller_whose_carried_work_is_cut_off_is_told_so(turns: int) -> None:
    """It waited for ever if the scope closed before the task had begun."""
    scope = Scope("node", crash=unexpected)
    calling = asyncio.create_task(
        carried(
            forever([], "work"),
            partial(scope.spawn, name="work"),
            cut_off=lambda: ShuttingDown("the node shuts down"),
        )
    )
    await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    await scope.close()
    with pytest.raises(ShuttingDown):
        await asyncio.wait_for(calling, 5)


async def test_of_works_that_are_carried_one_by_one_each_begins_when_the_one_before_has_ended() -> None:
    """Also when the caller of that has left: of two alterations of one state the second would be refused."""
    scope, one_by_one, log = Scope("node", crash=unexpected), OneByOne(), list[str]()
    gates = [asyncio.Event() for _ in range(3)]

    async def work(number: int) -> int:
        log.append(f"{number} began")
        await gates[number].wait()
        log.append(f"{number} ended")
        return number

    callers = [
        asyncio.create_task(
            one_by_one.carried(
                partial(work, number),
                partial(scope.spawn, name="work"),
                cut_off=lambda: ShuttingDown("the node shuts down"),
            )
        )
        for number in range(3)
    ]
    await turns()
    callers[0].cancel()
    await turns()
    assert log == ["0 began"]
    gates[0].set()
    await turns()
    assert log == ["0 began", "0 ended", "1 began"]
    gates[1].set()
    gates[2].set()
    assert await asyncio.gather(*callers[1:]) == [1, 2]
    assert log[3:] == ["1 ended", "2 began", "2 ended"]
    await scope.close()


async def turns() -> None:
    """Let others run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_work_that_must_not_stop_half_way_ends_before_its_cancelled_caller() -> None:
    """The caller holds the lock of that work: freed too early, two would write one file."""
    log: list[str] = []
    go = asyncio.Event()

    async def work() -> str:
        await go.wait()
        log.append("work")
        return "result"

    async def caller() -> None:
        try:
            await to_the_end(work())
        finally:
            log.append("caller")

    task = asyncio.ensure_future(caller())
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert log == ["work", "caller"]
    assert await to_the_end(work()) == "result"


async def test_work_that_fails_after_its_caller_was_cancelled_is_not_reported_as_lost() -> None:
    """The work acts on its own errors; the caller is only cancelled."""
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise ValueError("its own")

    task = asyncio.ensure_future(to_the_end(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    with pytest.raises(ValueError, match="its own"):
        await to_the_end(work())


async def test_whoever_closes_a_scope_again_returns_when_all_is_closed() -> None:
    """The second one found nothing left to close, and went on while the first was still closing."""
    log: list[str] = []
    scope, gate = Scope("node", crash=unexpected), asyncio.Event()

    async def close() -> None:
        await scope.close()  # What it closes may do so: it is not waited for.
        await gate.wait()
        log.append("closed")

    async def again() -> None:
        await scope.close()
        log.append("returned")

    scope.defer(close)
    closing = [asyncio.create_task(scope.close()), asyncio.create_task(again())]
    for _ in range(5):
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*closing)

    assert log == ["closed", "returned"]
