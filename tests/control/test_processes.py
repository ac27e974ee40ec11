"""The metastore on three real processes: kill -9 and SIGSTOP, and a history that is linearizable."""

import asyncio
from pathlib import Path
from random import Random

from simulator.checkers.linearizable import check_linearizable
from simulator.workloads.metastore import check_versions, document_model
from tests.control.processes import Client, Processes, new_history

SECONDS = 8.0
SECONDS_MAX = 60.0
"""On a busy machine it goes on until enough was acknowledged."""
OPERATIONS_MIN = 100


async def test_kills_and_pauses_leave_a_linearizable_history(tmp_path: Path) -> None:
    """Line 6: at most one node at a time is down or stopped, so nothing is lost and somebody answers."""
    nodes, history, random = Processes(tmp_path), new_history(), Random(5)
    for name in nodes.names:
        nodes.start(name)  # None is ready before a majority runs.
    clients = [Client(f"client{n}", list(nodes.addresses.values()), history) for n in range(4)]
    try:
        await founded(clients[0])
        working = [asyncio.create_task(client.work()) for client in clients]
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (elapsed := loop.time() - began) < SECONDS_MAX:
            if elapsed > SECONDS and history.acked >= OPERATIONS_MIN:
                break
            await asyncio.sleep(random.random())
            name = random.choice(nodes.names)
            if random.random() < 0.5:
                nodes.kill(name)
                await asyncio.sleep(random.random() / 2)
                await nodes.started(name)
            else:
                nodes.pause(name)
                await asyncio.sleep(random.random())
                nodes.resume(name)
        for client in clients:
            client.is_stopping = True
        await asyncio.gather(*working)
    finally:
        nodes.close()

    check_versions(history.operations)
    first = next(op for op in history.operations if op.name == "read" and op.result is not None)
    initial = (first.version, first.result)
    known = [op for op in history.operations if op.number >= first.number]
    check_linearizable(known, model=document_model, initial=initial)
    assert history.acked >= OPERATIONS_MIN, f"{history.acked} acknowledged, {history.unknown} unknown"


async def founded(client: Client) -> None:
    """Wait until the cluster answers a read."""
    async with asyncio.timeout(SECONDS_MAX):
        while client.history.acked == 0:
            await client.read()
            await asyncio.sleep(0.1)
