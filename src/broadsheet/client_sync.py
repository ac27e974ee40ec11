"""Synchronous client: the methods of `client.Client`, blocking, over an event loop in a thread of its own.

It may be used from any thread. It cannot be pickled and must not cross a fork: make one per process. A read
fetches up to `CHUNKS_AHEAD` chunks at a time, and releases its stream when the iterator is exhausted or
closed. `close` ends what other threads still wait for.
"""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from broadsheet.base.types import Buffer
from broadsheet.client import Client
from broadsheet.errors import DeadlineExceeded, InvalidArgument, Unknown
from broadsheet.journal.client import TIMEOUT_SECONDS, Journals
from broadsheet.journal.client_appends import AppendWriter
from broadsheet.journal.client_requests import pieces_of
from broadsheet.journal.messages import (
    Chunk,
    Commit,
)
from broadsheet.message.position import Position
from broadsheet.publish.publisher import PATIENCE_SECONDS, MessagePublisher
from broadsheet.publish.transaction import Transaction
from broadsheet.runtime.loop import loop_factory
from broadsheet.wire.pool import client_closed

if TYPE_CHECKING:
    from broadsheet.consume.message import Message
    from broadsheet.consume.reader import MessageReader

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")
"""An object of the asynchronous client."""

CHUNKS_AHEAD: Final = 8
"""How many chunks a read fetches at a time."""
_give_up: Final[ContextVar[float]] = ContextVar("give_up", default=float("inf"))
"""The latest time by which calls of this context end: monotonic, in seconds."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """End every blocking call of this context, connecting included, within `seconds` from now.

    A call that takes longer raises `DeadlineExceeded`. The node may have executed it, or may do so later.
    """
    outer = _give_up.set(min(_give_up.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _give_up.reset(outer)


def blocking(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Blocking[Inner]", P], T]:
    """The blocking form of a coroutine method."""

    @wraps(method)
    def blocked(self: "Blocking[Inner]", /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._wait(method(self._inner, *args, **kwargs))
        return result

    return blocked


class Blocking(Generic[Inner]):
    """An object of the asynchronous client, to be called from any thread."""

    def __init__(
        self,
        inner: Inner,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        begin: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        """Call the methods of `inner`, an object of the asynchronous client.

        Args:
            wait: the result of a coroutine on the client's loop.
            begin: starts a coroutine on the client's loop, and does not wait for it.
        """
        self._inner, self._wait, self._begin = inner, wait, begin


class SyncJournals(Blocking[Journals]):
    """The methods of `Journals`, blocking."""

    create = blocking(Journals.create)
    alter = blocking(Journals.alter)
    delete = blocking(Journals.delete)
    list = blocking(Journals.list)
    get = blocking(Journals.get)
    reset_head = blocking(Journals.reset_head)
    accept_loss = blocking(Journals.accept_loss)
    trim = blocking(Journals.trim)
    offset_at = blocking(Journals.offset_at)
    status = blocking(Journals.status)
    end = blocking(Journals.end)
    append_many = blocking(Journals.append_many)
    registers = blocking(Journals.registers)
    fragments = blocking(Journals.fragments)
    producer_index = blocking(Journals.producer_index)
    index_points = blocking(Journals.index_points)

    def append(
        self,
        name: str,
        content: Buffer | Iterable[Buffer] = b"",
        *,
        offset: int | None = None,
        check: Mapping[str, str | None] | None = None,
        union: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        create_revision: int | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Append like `Journals.append`.

        If `content` is an iterator, it runs in the caller's thread, so it may block and use this client.
        """
        condition: dict[str, Any] = {
            "offset": offset,
            "check": check,
            "union": union,
            "subtract": subtract,
            "create_revision": create_revision,
        }
        commit: Commit
        if (pieces := pieces_of(content)) is not None:
            commit = self._wait(self._inner.append(name, pieces, timeout=timeout, **condition))
            return commit
        if not isinstance(content, Iterable):
            raise InvalidArgument(
                f"content is of type {type(content).__name__}, and this client takes bytes or an iterable of "
                "bytes: use the asynchronous client for an asynchronous iterable"
            )
        writer: AppendWriter = self._wait(self._inner.begin_append(name, timeout=timeout, **condition))
        try:
            for piece in content:
                if writer.gather(piece):
                    self._wait(writer.send())
            commit = self._wait(writer.finish())
        finally:
            self._begin(_cancel(writer))  # Not waited for: the caller's time may be up.
        return commit

    def read(
        self,
        name: str,
        offset: int | None = 0,
        *,
        end: int | None = None,
        block: bool = False,
        is_whole: bool = False,
        patience: float = TIMEOUT_SECONDS,
        create_revision: int | None = None,
    ) -> Generator[Chunk]:
        """Read like `Journals.read`. Exhaust or close the iterator to release its stream."""
        chunks = self._inner.read(
            name,
            offset,
            end=end,
            block=block,
            is_whole=is_whole,
            patience=patience,
            create_revision=create_revision,
        )
        most = 1 if block else CHUNKS_AHEAD  # With `block`, the next chunk may come much later: give each.
        try:
            while some := self._wait(_some(chunks, most)):
                yield from some
        finally:
            # Not waited for: an iterator that is dropped is ended by the garbage collector, in any thread.
            # The client's own thread would wait for itself.
            self._begin(chunks.aclose())


async def _cancel(writer: AppendWriter) -> None:
    writer.cancel()


async def _cancel_others() -> None:
    """End all other tasks of the loop: threads wait for them, and would wait for ever once it has stopped."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _some(chunks: AsyncIterator[Chunk], most: int) -> Sequence[Chunk]:
    found = []
    async for chunk in chunks:
        found.append(chunk)
        if len(found) >= most:
            break
    return found


class SyncTransaction(Blocking[Transaction]):
    """The methods of `Transaction`, blocking: `with` it."""

    publish = blocking(Transaction.publish)
    publish_many = blocking(Transaction.publish_many)
    commit = blocking(Transaction.commit)

    @property
    def positions(self) -> dict[str, Position]:
        """See `Transaction.positions`."""
        return self._inner.positions

    def roll_back(self) -> None:
        """See `Transaction.roll_back`."""
        self._wait(_call(self._inner.roll_back))

    def __enter__(self) -> Self:
        """See `Transaction`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit; after an error of the block roll back."""
        self._wait(self._inner.__aexit__(kind, error, traceback))


class SyncPublisher(Blocking[MessagePublisher]):
    """The methods of `MessagePublisher`, blocking: `with` it."""

    publish = blocking(MessagePublisher.publish)
    publish_many = blocking(MessagePublisher.publish_many)

    @property
    def positions(self) -> dict[str, Position]:
        """See `MessagePublisher.positions`."""
        return self._inner.positions

    def transaction(self) -> SyncTransaction:
        """See `MessagePublisher.transaction`."""
        return SyncTransaction(self._wait(_call(self._inner.transaction)), self._wait, self._begin)

    def close(self) -> None:
        """See `MessagePublisher.close`."""
        self._wait(_call(self._inner.close))

    def __enter__(self) -> Self:
        """See `MessagePublisher.__aenter__`."""
        self._wait(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class SyncMessages:
    """The messages of a journal; iterate it with `for`."""

    def __init__(
        self,
        reader: "MessageReader",
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        begin: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        """Give the messages of `reader`; arguments as `Blocking`."""
        self._reader, self._wait, self._begin = reader, wait, begin

    @property
    def position(self) -> Position | None:
        """See `MessageReader.position`."""
        return self._reader.position

    def __iter__(self) -> Generator["Message"]:
        """As `MessageReader.__aiter__`. Exhaust or close the iterator to release its stream."""
        batches = self._reader.batches()
        try:
            while (batch := self._wait(_next_of(batches))) is not None:
                for message in batch:
                    self._reader.position = message.position
                    yield message
        finally:
            self._begin(batches.aclose())  # Not waited for, as in `SyncJournals.read`.


async def _call(method: Callable[[], T]) -> T:
    """Call `method` on the loop to which its object belongs."""
    return method()


async def _next_of(batches: AsyncGenerator[T]) -> T | None:
    return await anext(batches, None)


class SyncClient:
    """A blocking client of a node."""

    def __init__(self, make: Callable[[], Client]) -> None:
        """Connect a blocking client.

        Raises:
            Unreachable: the node does not answer. Unauthenticated: it does not accept the token.
        """
        self._loop = loop_factory()()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broadsheet-client", daemon=True)
        self._thread.start()
        self._is_closed = False
        self._entering = threading.RLock()
        """Held while a call is given to the loop, so that none is given to one that has stopped."""
        self._closing = threading.RLock()
        """Held by the thread that closes, so that another one returns only when the client is closed."""
        self._client = make()
        try:
            self._wait(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        self.journals = SyncJournals(self._client.journals, self._wait, self._begin)
        """The journals of the node."""

    def publisher(self, commit_journal: str = "", *, patience: float = PATIENCE_SECONDS) -> SyncPublisher:
        """A publisher of messages: enter it with `with`. See `Client.publisher`."""
        made = self._wait(_call(partial(self._client.publisher, commit_journal, patience=patience)))
        return SyncPublisher(made, self._wait, self._begin)

    def messages(
        self,
        journal: str,
        start: Position | int | str = "earliest",
        *,
        is_committed: bool = True,
        block: bool = False,
        patience: float = PATIENCE_SECONDS,
    ) -> SyncMessages:
        """The messages of a journal: iterate it with `for`. See `Client.messages`."""
        made = self._client.messages(
            journal, start, is_committed=is_committed, block=block, patience=patience
        )
        return SyncMessages(made, self._wait, self._begin)

    def close(self) -> None:
        """Close the blocking client's connection and end the thread of its loop. Idempotent.

        A call or a read that another thread still waits for raises `Unknown` there.
        """
        with self._closing:
            if not self._is_closed:
                try:
                    self._wait(self._client.__aexit__(None, None, None))
                finally:
                    self._end()

    def __enter__(self) -> Self:
        """Return the client, which is connected already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        assert threading.current_thread() is not self._thread, "the client's thread would wait for itself"
        with self._entering:
            if self._is_closed:
                work.close()
                raise client_closed()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        left = _give_up.get() - time.monotonic()
        try:
            return future.result(max(0.0, left) if left != float("inf") else None)
        except TimeoutError:
            future.cancel()
            raise DeadlineExceeded(
                "no answer within the caller's time: the node may have executed the call, or may do so later"
            ) from None
        except concurrent.futures.CancelledError:
            raise Unknown("the client was closed: the node may have executed the call") from None
        except BaseException:
            future.cancel()  # A caller that is interrupted withdraws its request.
            raise

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        with self._entering:
            if self._is_closed:
                work.close()
            else:
                asyncio.run_coroutine_threadsafe(work, self._loop)

    def _end(self) -> None:
        with self._entering:
            self._is_closed = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def connect_sync(address: str, token: str | None = None) -> SyncClient:
    """A blocking client of the node at `address`, connected on return; a lost connection is dialled again."""
    return SyncClient(lambda: Client(address, token))
