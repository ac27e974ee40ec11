"""A hang is a verdict: which client, which call, since when, and what it waits for."""

import asyncio

from simulator.hangs import verdict, waits_for
from simulator.history import History


def test_a_verdict_names_the_client_its_call_since_when_and_its_wait() -> None:
    """Whoever reads it must not have to run the seed again to learn where to look."""
    history = History(lambda: 12_500_000_000, lambda *_: None)
    history.invoke("client1", "document", "set", (3, b"x"))

    text = verdict("no progress", ["client1", "client2"], history.operations, {"client1": "_begin:7"})

    assert text.splitlines() == [
        "no progress",
        "client1: set of document (3, b'x') is open since 12.500000 s",
        "client1 waits for _begin:7",
        "client2 waits for what nobody knows",
    ]


def test_the_wait_of_a_task_goes_through_the_tasks_that_it_waits_for() -> None:
    """The outermost await says which call, the innermost which future: both are wanted."""

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    async def gathering() -> None:
        await asyncio.gather(forever())

    async def find() -> str:
        task = asyncio.ensure_future(gathering())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = waits_for(task)
        task.cancel()
        return found

    outer, inner = [part.rpartition(".")[2].partition(":")[0] for part in asyncio.run(find()).split(" > ")]
    assert (outer, inner) == ("gathering", "forever")
