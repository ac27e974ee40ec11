"""The client: one object with everything that a node offers.

    async with broadsheet.connect("127.0.0.1:6640") as client:
        await client.journals.append("events/clicks", b"...")

    with broadsheet.connect_sync("127.0.0.1:6640") as client:      # its own loop, in a thread of its own
        client.journals.append("events/clicks", b"...")

The synchronous client has the same methods with the same arguments; iterators are plain ones. It may be used
from any thread, and is
never pickled: make one per process (Spark workers do so on first use).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from broadsheet.base.types import Buffer
from broadsheet.journal.client import Journals, ProducerIndex
from broadsheet.journal.messages import Chunk, Commit, FragmentInfo, JournalInfo, JournalStatus, Registers


class Client(Protocol):
    """A connection to a node, or to the nodes of a cluster."""

    @property
    def journals(self) -> Journals:
        """Its journals."""
        ...

    async def __aenter__(self) -> Self:
        """Connect."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        ...


class SyncJournals(Protocol):
    """`Journals`, blocking."""

    def create(
        self,
        name: str,
        *,
        fragment_length: int | None = None,
        codec: str | None = None,
        store: str | None = None,
        labels: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> JournalInfo:
        """See `Journals.create`."""
        ...

    def delete(self, name: str) -> None:
        """See `Journals.delete`."""
        ...

    def list(self, prefix: str = "") -> Sequence[JournalInfo]:
        """See `Journals.list`."""
        ...

    def get(self, name: str) -> JournalInfo:
        """See `Journals.get`."""
        ...

    def status(self, name: str) -> JournalStatus:
        """See `Journals.status`."""
        ...

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
        """See `Journals.append`."""
        ...

    def append_many(
        self, name: str, contents: Sequence[Buffer], *, timeout: float | None = None
    ) -> Sequence[Commit]:
        """See `Journals.append_many`."""
        ...

    def read(
        self, name: str, offset: int | None = 0, *, end: int | None = None, block: bool = False
    ) -> Iterator[Chunk]:
        """See `Journals.read`. Close the iterator (or exhaust it) to release its stream."""
        ...

    def registers(self, name: str) -> Registers:
        """See `Journals.registers`."""
        ...

    def fragments(self, name: str) -> Sequence[FragmentInfo]:
        """See `Journals.fragments`."""
        ...

    def producer_index(self, name: str, offset: int) -> ProducerIndex:
        """See `Journals.producer_index`."""
        ...

    def index_points(self, name: str) -> Sequence[int]:
        """See `Journals.index_points`."""
        ...


class SyncClient(Protocol):
    """`Client`, blocking."""

    @property
    def journals(self) -> SyncJournals:
        """Its journals."""
        ...

    def close(self) -> None:
        """Close the connection and end the loop's thread. Idempotent."""
        ...

    def __enter__(self) -> Self:
        """Connect."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        ...


def connect(address: str, token: str | None = None) -> Client:
    """A client of the node at `address` (`host:port` of its native door), to be entered with `async with`."""
    raise NotImplementedError(address, token)


def connect_sync(address: str, token: str | None = None) -> SyncClient:
    """A blocking client of the node at `address`; connects at once, and again when it was lost."""
    raise NotImplementedError(address, token)
