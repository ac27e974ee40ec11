"""kill -9 of a real node at every failpoint of the metastore: nothing acknowledged is lost."""

import asyncio
from pathlib import Path

import pytest

from simulator.checkers.linearizable import check_linearizable
from simulator.workloads.metastore import check_versions, document_model, founded_document
from tests.control.processes import Client, Processes, new_history
from tests.support.failpoints import labels_of

PASSAGES = 12
DEAD_SECONDS_MAX = 30.0
AFTERWARDS = 30
"""Acknowledged operations after the restart."""


@pytest.mark.parametrize("label", labels_of("control", least=5))
async def test_a_node_killed_at_this_point_loses_nothing(label: str, tmp_path: Path) -> None:
    """A node alone for the file, three for the acceptor, of which one dies in the middle of its work."""
    nodes = Processes(tmp_path, 1 if label.startswith("metastore.file") else 3)
    history = new_history()
    for name in nodes.names[1:]:
        nodes.start(name)
    nodes.start("n1", f"{label}:{PASSAGES}")
    clients = [Client(f"client{n}", list(nodes.addresses.values()), history) for n in range(2)]
    try:
        working = [asyncio.create_task(client.work()) for client in clients]
        assert await asyncio.to_thread(nodes.running["n1"].wait, DEAD_SECONDS_MAX) == -9
        nodes.kill("n1")
        nodes.start("n1")
        before = history.acked
        for _ in range(int(DEAD_SECONDS_MAX / 0.05)):
            await asyncio.sleep(0.05)
            if history.acked >= before + AFTERWARDS:
                break
        for client in clients:
            client.is_stopping = True
        await asyncio.gather(*working)
    finally:
        nodes.close()

    assert history.acked >= before + AFTERWARDS, "it answers after the restart"
    check_versions(history.operations)
    initial = (1, founded_document(history.operations))
    check_linearizable(history.operations, model=document_model, initial=initial)
