"""The journal client: what a user or a Spark worker does with journals.

Offsets are bytes. The client holds no protocol state but its run streams: which append may be tried again is
decided here
(journals.21), and everything else by the node. A failed call raises from `broadsheet.errors`; `Unknown` means
that
the append may or may not have happened.
Source: journals.21, journals.24; reference/gazette.md 2.13.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

from broadsheet.base.types import Buffer
from broadsheet.journal.messages import (
    Chunk,
    Commit,
    FragmentInfo,
    JournalInfo,
    JournalStatus,
    Registers,
)

Content = Buffer | Iterable[Buffer] | AsyncIterable[Buffer]
"""What to append: one buffer, or buffers that are streamed as they come."""


class ProducerIndex(Protocol):
    """A journal's producer index at an index point, as `journals.producer_index` returns it."""

    @property
    def offset(self) -> int:
        """The index point: a frame boundary at or below the offset asked for."""
        ...

    @property
    def encoded(self) -> bytes:
        """The states there, as `message.producer_state` encodes them; empty at the journal's begin."""
        ...


class Journals(Protocol):
    """The journals of a node."""

    async def create(
        self,
        name: str,
        *,
        fragment_length: int | None = None,
        codec: str | None = None,
        store: str | None = None,
        labels: Mapping[str, str] | None = None,
        if_absent: bool = False,
    ) -> JournalInfo:
        """Make a journal.

        Args:
            fragment_length: bytes after which a fragment is closed; 64 MiB.
            codec: `none`, `gzip`, `zstandard` or `snappy`.
            store: URL of the fragment store; the node's own.
            if_absent: return the journal that is there instead of raising.

        Raises:
            AlreadyExists: there is one of that name. InvalidArgument: the message says which field and why.
        """
        ...

    async def delete(self, name: str) -> None:
        """Delete a journal with all that it holds.

        Raises:
            NotFound: there is none.
        """
        ...

    async def list(self, prefix: str = "") -> Sequence[JournalInfo]:
        """Every journal whose name starts with `prefix`, by name."""
        ...

    async def get(self, name: str) -> JournalInfo:
        """One journal.

        Raises:
            NotFound: there is none.
        """
        ...

    async def status(self, name: str) -> JournalStatus:
        """Where a journal stands: its begin, its committed end, its fragments."""
        ...

    async def append(
        self,
        name: str,
        content: Content = b"",
        *,
        offset: int | None = None,
        check: Mapping[str, str | None] | None = None,
        union: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Append `content`, whole or not at all, and durably.

        An append without `offset` and without `check` is tried once. One at an explicit offset is tried again
        after a lost answer: where
        the journal has moved on, its bytes there are read and compared, so that success means "these bytes
        stand there once".
        Empty content is a barrier: it returns the committed end as an empty span.

        Args:
            offset: the append must begin exactly here; None: at the head.
            check: each register must have that value, or be absent where it is None.
            union: registers to set with the append, after `subtract`. Needs content.
            subtract: registers to remove where they have exactly that value. Needs content.
            timeout: seconds; 30.

        Raises:
            WrongAppendOffset: the head is elsewhere, and holds other bytes there. Nothing changed.
            RegisterMismatch: `check` failed. Nothing changed.
            Unknown: it may or may not have been appended.
            StoreUnhealthy: the disk is full. Nothing changed; reads go on.
        """
        ...

    async def append_many(
        self, name: str, contents: Sequence[Buffer], *, timeout: float | None = None
    ) -> Sequence[Commit]:
        """Append each of `contents`, every one atomic by itself, in order and in as few frames as possible.

        Raises:
            Unknown: a prefix may have been appended.
        """
        ...

    def read(
        self, name: str, offset: int | None = 0, *, end: int | None = None, block: bool = False
    ) -> AsyncIterator[Chunk]:
        """Read committed bytes of `[offset, end)` in order.

        Without `block` it ends at the committed end; with it, it waits there for more (until `end`, where
        given).

        Args:
            offset: None: from the committed end on.

        Raises:
            OffsetNotYetAvailable: `offset` is above the committed end, and `block` is false.
            Trimmed: bytes at `offset` were deleted on purpose. Corrupt: they are damaged, and not served.
        """
        ...

    async def registers(self, name: str) -> Registers:
        """The registers behind every append that was acknowledged before the call."""
        ...

    async def fragments(self, name: str) -> Sequence[FragmentInfo]:
        """Closed fragments, by offset."""
        ...

    async def producer_index(self, name: str, offset: int) -> ProducerIndex:
        """The producer index at the last index point at or below `offset` (journals.29)."""
        ...

    async def index_points(self, name: str) -> Sequence[int]:
        """Every index point of the journal, ascending: frame boundaries at which readers may cut."""
        ...
