"""The synchronous client: the same methods, blocking, over a loop in a thread of its own.

It may be used from any thread, and is never pickled: make one per process (Spark workers do so on first
use). A read fetches a few chunks ahead, and its stream is released when the iterator is exhausted or
closed.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from broadsheet.base.types import Buffer
from broadsheet.client import Client
from broadsheet.errors import DeadlineExceeded, InvalidArgument
from broadsheet.journal.appending import Upload
from broadsheet.journal.client import TIMEOUT_SECONDS, Journals, ProducerIndex
from broadsheet.journal.messages import (
    Chunk,
    Commit,
    FragmentInfo,
    JournalInfo,
    JournalStatus,
    LossReply,
    Registers,
)
from broadsheet.journal.requests import pieces_of
from broadsheet.runtime.loop import loop_factory

T = TypeVar("T")

CHUNKS_AHEAD: Final = 8
"""Chunks that a read fetches at a time."""
_give_up: Final[ContextVar[float]] = ContextVar("give_up", default=float("inf"))
"""When the calls of this context end at the latest, by the monotonic clock."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Have every blocking call of this context, connecting included, end within `seconds` from now.

    A call that has not ended by then raises `DeadlineExceeded`: it may have been done.
    """
    outer = _give_up.set(min(_give_up.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _give_up.reset(outer)


@contextmanager
def _unbounded() -> Iterator[None]:
    outer = _give_up.set(float("inf"))
    try:
        yield
    finally:
        _give_up.reset(outer)


class SyncJournals:
    """`Journals`, blocking."""

    def __init__(self, journals: Journals, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._journals, self._wait = journals, wait

    def create(
        self,
        name: str,
        *,
        fragment_length: int | None = None,
        codec: str | None = None,
        store: str | None = None,
        flush_interval: float | None = None,
        labels: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> JournalInfo:
        """See `Journals.create`."""
        made: JournalInfo = self._wait(
            self._journals.create(
                name,
                fragment_length=fragment_length,
                codec=codec,
                store=store,
                flush_interval=flush_interval,
                labels=labels,
                if_absent=if_absent,
            )
        )
        return made

    def delete(self, name: str) -> None:
        """See `Journals.delete`."""
        self._wait(self._journals.delete(name))

    def list(self, prefix: str = "") -> Sequence[JournalInfo]:
        """See `Journals.list`."""
        found: Sequence[JournalInfo] = self._wait(self._journals.list(prefix))
        return found

    def get(self, name: str) -> JournalInfo:
        """See `Journals.get`."""
        found: JournalInfo = self._wait(self._journals.get(name))
        return found

    def reset_head(self, name: str, *, head: int | None = None, may_act: bool = False) -> LossReply:
        """See `Journals.reset_head`."""
        told: LossReply = self._wait(self._journals.reset_head(name, head=head, may_act=may_act))
        return told

    def accept_loss(self, name: str, *, head: int | None = None, may_act: bool = False) -> LossReply:
        """See `Journals.accept_loss`."""
        told: LossReply = self._wait(self._journals.accept_loss(name, head=head, may_act=may_act))
        return told

    def status(self, name: str) -> JournalStatus:
        """See `Journals.status`."""
        found: JournalStatus = self._wait(self._journals.status(name))
        return found

    def end(self, name: str, *, timeout: float = TIMEOUT_SECONDS) -> int:
        """See `Journals.end`."""
        found: int = self._wait(self._journals.end(name, timeout=timeout))
        return found

    def append(
        self,
        name: str,
        content: Buffer | Iterable[Buffer] = b"",
        *,
        offset: int | None = None,
        check: Mapping[str, str | None] | None = None,
        union: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """See `Journals.append`. Iterators run in the caller's thread: they may block, and use the client."""
        condition: dict[str, Any] = {"offset": offset, "check": check, "union": union, "subtract": subtract}
        commit: Commit
        if pieces_of(content) is not None:
            commit = self._wait(self._journals.append(name, content, timeout=timeout, **condition))
            return commit
        if not isinstance(content, Iterable):
            raise InvalidArgument(f"content of type {type(content).__name__}: use the asynchronous client")
        upload: Upload = self._wait(self._journals.begin_append(name, timeout=timeout, **condition))
        try:
            for piece in content:
                if upload.gather(piece):
                    self._wait(upload.send())
            commit = self._wait(upload.finish())
        finally:
            self._wait(_cancel(upload))
        return commit

    def append_many(
        self, name: str, contents: Sequence[Buffer], *, timeout: float | None = None
    ) -> Sequence[Commit]:
        """See `Journals.append_many`."""
        commits: Sequence[Commit] = self._wait(self._journals.append_many(name, contents, timeout=timeout))
        return commits

    def read(
        self,
        name: str,
        offset: int | None = 0,
        *,
        end: int | None = None,
        block: bool = False,
        patience: float = TIMEOUT_SECONDS,
    ) -> Iterator[Chunk]:
        """See `Journals.read`. Close the iterator (or exhaust it) to release its stream."""
        chunks = self._journals.read(name, offset, end=end, block=block, patience=patience)
        most = 1 if block else CHUNKS_AHEAD  # A blocking read hands over what it has at once.
        try:
            while some := self._wait(_some(chunks, most)):
                yield from some
        finally:
            with _unbounded():  # It only lets go, also where the time is up.
                self._wait(chunks.aclose())

    def registers(self, name: str) -> Registers:
        """See `Journals.registers`."""
        found: Registers = self._wait(self._journals.registers(name))
        return found

    def fragments(self, name: str) -> Sequence[FragmentInfo]:
        """See `Journals.fragments`."""
        found: Sequence[FragmentInfo] = self._wait(self._journals.fragments(name))
        return found

    def producer_index(self, name: str, offset: int) -> ProducerIndex:
        """See `Journals.producer_index`."""
        found: ProducerIndex = self._wait(self._journals.producer_index(name, offset))
        return found

    def index_points(self, name: str) -> Sequence[int]:
        """See `Journals.index_points`."""
        found: Sequence[int] = self._wait(self._journals.index_points(name))
        return found


async def _cancel(upload: Upload) -> None:
    upload.cancel()


async def _some(chunks: AsyncIterator[Chunk], most: int) -> Sequence[Chunk]:
    found = []
    async for chunk in chunks:
        found.append(chunk)
        if len(found) >= most:
            break
    return found


class SyncClient:
    """`Client`, blocking."""

    def __init__(self, make: Callable[[], Client]) -> None:
        """Connect.

        Raises:
            Unreachable: the node does not answer. Unauthenticated: it does not like the token.
        """
        self._loop = loop_factory()()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broadsheet-client", daemon=True)
        self._thread.start()
        self._is_closed = False
        self._client = make()
        try:
            self._wait(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        self.journals = SyncJournals(self._client.journals, self._wait)
        """Its journals."""

    def close(self) -> None:
        """Close the connection and end the loop's thread. Idempotent."""
        if not self._is_closed:
            try:
                self._wait(self._client.__aexit__(None, None, None))
            finally:
                self._end()

    def __enter__(self) -> Self:
        """Connected already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        assert not self._is_closed, "the client is closed"
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        left = _give_up.get() - time.monotonic()
        try:
            return future.result(max(0.0, left) if left != float("inf") else None)
        except TimeoutError:
            future.cancel()
            raise DeadlineExceeded("no answer within the time of the caller: it may have been done") from None
        except BaseException:
            future.cancel()  # An interrupted caller withdraws its request.
            raise

    def _end(self) -> None:
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def connect_sync(address: str, token: str | None = None) -> SyncClient:
    """A blocking client of the node at `address`; connects at once, and again when it was lost."""
    return SyncClient(lambda: Client(address, token))
