"""The blocking publisher and reader offer what the asynchronous ones do."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

import broadsheet
from broadsheet.client import Client
from broadsheet.client_sync import SyncClient, SyncMessages, SyncPublisher, SyncTransaction
from broadsheet.consume.reader import MessageReader
from broadsheet.errors import InvalidArgument
from broadsheet.publish.publisher import MessagePublisher
from broadsheet.publish.transaction import Transaction
from tests.journal.node_process import NodeProcess

PAIRS = [(SyncPublisher, MessagePublisher), (SyncTransaction, Transaction), (SyncMessages, MessageReader)]
INNER = ("batches",)
"""For the blocking reader itself."""


def offered(kind: type) -> dict[str, Any]:
    own = {name: each for name, each in vars(kind).items() if not name.startswith("_")}
    return {name: each for name, each in own.items() if callable(each) or isinstance(each, property)}


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_every_method_can_be_called_without_a_loop(blocking: type, asynchronous: type) -> None:
    """A method that was added to one of them only would be missed by programs without a loop."""
    values = {"positions", "position"}
    assert sorted({*offered(blocking)} - values) == sorted({*offered(asynchronous)} - {*INNER} - values)
    for name, method in offered(blocking).items():
        other = getattr(asynchronous, name, None)
        if callable(method) and other is not None:
            assert [*inspect.signature(method).parameters] == [*inspect.signature(other).parameters]
            assert not inspect.iscoroutinefunction(method)


@pytest.mark.parametrize("name", ["publisher", "messages"])
def test_the_client_makes_both_with_the_same_arguments(name: str) -> None:
    """What one learns from the documentation of one holds for the other."""
    blocking, asynchronous = getattr(SyncClient, name), getattr(Client, name)

    assert [*inspect.signature(blocking).parameters.items()][1:] == [
        *inspect.signature(asynchronous).parameters.items()
    ][1:] or [*inspect.signature(blocking).parameters] == [*inspect.signature(asynchronous).parameters]


def test_a_program_without_a_loop_consumes_transforms_and_produces(tmp_path: Path) -> None:
    """With a crash between two transactions, simulated by a publisher that is only dropped: each once."""
    node = NodeProcess(tmp_path)
    assert asyncio.run(node.start())
    labels = {"broadsheet.dev/framing": "json-lines"}
    with broadsheet.connect_sync(node.address) as client:
        for name in ("shop/orders", "shop/invoices"):
            client.journals.create(name, labels=labels)
        with client.publisher() as publisher:
            publisher.publish_many("shop/orders", [{"order": n} for n in range(10)])
        for stops_after in (3, 1, 100):
            publisher = client.publisher("shop/commits").__enter__()
            start = publisher.positions.get("shop/orders", "earliest")
            reader = client.messages("shop/orders", start)
            for count, message in enumerate(reader):
                transaction = publisher.transaction()
                transaction.publish("shop/invoices", {"invoice": message.json()["order"]})
                if count == stops_after:
                    break
                transaction.positions["shop/orders"] = message.position
                transaction.commit()

        with client.publisher("shop/commits") as last:
            none = last.transaction()
            none.publish("shop/invoices", {"invoice": "rolled back"})
            none.__exit__(RuntimeError, RuntimeError("of the block"), None)
        with client.publisher("shop/commits") as last, last.transaction() as some:
            some.roll_back()
        found = [each.json() for each in client.messages("shop/invoices")]
        assert found == [{"invoice": n} for n in range(10)]
        with pytest.raises(InvalidArgument):
            client.messages("shop/orders", "newest")
        for each in client.messages("shop/orders", "latest", block=False):
            raise AssertionError(each)
        assert reader.position is not None
        kept = broadsheet.positions_to_text({"shop/orders": reader.position})
        assert broadsheet.positions_from_text(kept) == {"shop/orders": reader.position}
    node.kill()
