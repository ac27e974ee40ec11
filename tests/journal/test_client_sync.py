"""The blocking client offers what the asynchronous one does."""

import asyncio
import gc
import inspect
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import broadsheet
from broadsheet.client_sync import SyncClient, SyncJournals, within
from broadsheet.errors import InvalidArgument, LocalProtocolError, Unknown
from broadsheet.journal.client import INLINE_BYTES_MAX, Journals
from broadsheet.journal.messages import Chunk
from tests.journal.node_process import NodeProcess

OWN = ("append", "read")
"""Written out: what they take may be an iterator of the caller's, and so is what they give."""
INNER = ("begin_append", "close")
"""For the blocking client itself: it offers what they are for."""


def methods(kind: type) -> dict[str, object]:
    return {name: each for name, each in vars(kind).items() if not name.startswith("_") and callable(each)}


def test_every_method_can_be_called_without_a_loop() -> None:
    """A method that was added to one client only would be missed by programs without a loop."""
    assert sorted(methods(SyncJournals)) == sorted(set(methods(Journals)) - set(INNER))


@pytest.mark.parametrize("name", sorted(set(methods(SyncJournals)) - set(OWN)))
def test_it_takes_the_same_arguments_and_tells_the_same(name: str) -> None:
    """Documentation is looked up where one stands, and a keyword moved in one must move in the other."""
    blocking, asynchronous = getattr(SyncJournals, name), getattr(Journals, name)

    assert inspect.signature(blocking) == inspect.signature(asynchronous)
    assert blocking.__doc__ == asynchronous.__doc__
    assert not inspect.iscoroutinefunction(blocking)


@pytest.mark.parametrize("name", OWN)
def test_what_is_written_out_has_the_same_arguments(name: str) -> None:
    """They are the only ones that could part."""
    blocking, asynchronous = getattr(SyncJournals, name), getattr(Journals, name)

    assert list(inspect.signature(blocking).parameters) == list(inspect.signature(asynchronous).parameters)


class Holder:
    """Refers to itself, so that only the garbage collector frees it."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self.itself, self.chunks = self, chunks


class CollectsWhereItIsAsked(dict[str, str]):
    """Labels that collect garbage in the thread that reads them, as any allocation there may."""

    def __bool__(self) -> bool:
        self.thread = threading.get_ident()
        gc.collect()
        return False


def test_an_iterator_that_the_clients_own_thread_frees_stops_no_other_call(tmp_path: Path) -> None:
    """The collector runs in any thread. In the client's own it waited there for itself, and so did all."""
    node = NodeProcess(tmp_path)
    try:
        assert asyncio.run(node.start())
        client = broadsheet.connect_sync(node.address)
        client.journals.create("read/dropped")
        client.journals.append("read/dropped", [b"x" * 300_000] * 20)
        labels = CollectsWhereItIsAsked()
        gc.collect()
        gc.disable()  # Otherwise this thread might free it first.
        held = Holder(client.journals.read("read/dropped"))
        next(held.chunks)
        del held
        with within(10):
            client.journals.create("read/other", labels=labels)
            gc.enable()
            assert labels.thread != threading.get_ident()
            assert b"".join(c.data for c in client.journals.read("read/dropped")) == b"x" * 6_000_000
        client.close()
    finally:
        gc.enable()
        node.kill()


def test_an_iterator_may_outlive_its_client(tmp_path: Path) -> None:
    """What is left of a read then holds nothing, and its end is no error."""
    node = NodeProcess(tmp_path)
    try:
        assert asyncio.run(node.start())
        with broadsheet.connect_sync(node.address) as client:
            client.journals.create("read/outlives")
            client.journals.append("read/outlives", [b"x" * 300_000] * 20)
            chunks = client.journals.read("read/outlives")
            next(chunks)
        chunks.close()
    finally:
        node.kill()


def test_a_thread_that_waits_for_a_closed_client_is_told(tmp_path: Path) -> None:
    """The loop stopped under it, and it waited for ever: a process with a thread that follows never ended."""
    node = NodeProcess(tmp_path)
    errors: list[Exception] = []

    def wait(call: Callable[[], object]) -> None:
        try:
            call()
        except Unknown as error:
            errors.append(error)

    try:
        assert asyncio.run(node.start())
        client = broadsheet.connect_sync(node.address)
        client.journals.create("read/followed")
        client.journals.append("read/followed", b"first")
        following = client.journals.read("read/followed", block=True)
        assert next(following).data == b"first"
        node.kill()
        waits = (lambda: next(following), lambda: client.journals.get("read/followed"))
        threads = [threading.Thread(target=wait, args=(each,), daemon=True) for each in waits]
        for thread in threads:
            thread.start()
        time.sleep(0.5)  # Both have asked, and wait for the node.
        client.close()
        for thread in threads:
            thread.join(10)
        assert [thread.is_alive() for thread in threads] == [False, False]
        assert [str(error)[:22] for error in errors] == ["the client was closed:"] * 2
    finally:
        node.kill()


def test_an_append_that_fails_when_the_time_is_up_tells_its_own_error(tmp_path: Path) -> None:
    """The client waited for the end of its upload, which hid the error, and left the upload open."""
    node = NodeProcess(tmp_path)

    def pieces() -> Generator[Any]:
        yield bytes(INLINE_BYTES_MAX + 1)
        with within(0):
            yield "no bytes"

    content = pieces()
    try:
        assert asyncio.run(node.start())
        with broadsheet.connect_sync(node.address) as client:
            client.journals.create("append/late")
            with pytest.raises(InvalidArgument, match="content of type str"):
                client.journals.append("append/late", content)
            content.close()
            assert client.journals.end("append/late") == 0
    finally:
        node.kill()


def test_threads_that_close_a_client_together_all_return(tmp_path: Path) -> None:
    """The second one gave work to a loop that had stopped, and waited for ever, or was told of an error."""
    node = NodeProcess(tmp_path)
    errors: list[BaseException] = []

    def close(client: SyncClient, together: threading.Barrier) -> None:
        together.wait()
        try:
            client.close()
        except BaseException as error:  # noqa: BLE001 - each is told below.
            errors.append(error)

    try:
        assert asyncio.run(node.start())
        for _ in range(20):
            client, together = broadsheet.connect_sync(node.address), threading.Barrier(2)
            threads = [threading.Thread(target=close, args=(client, together), daemon=True) for _ in "ab"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert not any(thread.is_alive() for thread in threads)
        assert errors == []
    finally:
        node.kill()


def test_a_call_of_a_closed_client_is_refused(tmp_path: Path) -> None:
    """A program that catches our errors gets one of them, also in the midst of an append from an iterator."""
    node = NodeProcess(tmp_path)
    try:
        assert asyncio.run(node.start())
        client = broadsheet.connect_sync(node.address)
        client.journals.create("append/closed")

        def pieces() -> Iterator[bytes]:
            yield b"x" * (INLINE_BYTES_MAX + 1)
            client.close()
            yield b"x" * INLINE_BYTES_MAX

        with pytest.raises(LocalProtocolError, match="the client is closed"):
            client.journals.append("append/closed", pieces())
        with pytest.raises(LocalProtocolError, match="the client is closed"):
            client.journals.get("append/closed")
        with broadsheet.connect_sync(node.address) as another:
            assert another.journals.end("append/closed") == 0
    finally:
        node.kill()
