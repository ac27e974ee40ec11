"""Runs: consecutive records of one RUN stream from one read, and where they go (code.4).

A run is handed to its sink synchronously, in the read; the sink keeps it and answers it once, whenever it
knows. Answers may come in any order and from any turn; the peer sees them in the order of the records of a
stream only where they are given in that order. `sequence` counts the records of a stream from 0. Bytes are
content only: no header is among them. Nothing here decides anything: key, count and size are what a machine
sees, the rest is opaque. Source: code.4; wire.2.
"""

from typing import Final, Protocol

from broadsheet.base.types import Buffer, ConnectionId
from broadsheet.errors import Status

RUN_BYTES_MAX: Final = 1 << 20
"""Records that came singly make a run of no more than this (but for a larger one by itself): a sink may hash
it on the loop."""


class FrameRun(Protocol):
    """One run, owned by the sink until answered."""

    @property
    def connection(self) -> ConnectionId:
        """The connection that it came by."""
        ...

    @property
    def stream(self) -> int:
        """The stream of that connection."""
        ...

    @property
    def sequence(self) -> int:
        """The number of its first record within the stream, from 0."""
        ...

    @property
    def count(self) -> int:
        """How many records it has; at least one."""
        ...

    @property
    def size(self) -> int:
        """Bytes of all records together."""
        ...

    @property
    def at(self) -> int | None:
        """Where the caller wants the first byte to go (journals.21); None where it does not say."""
        ...

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """The records back to back.

        What is logged. Valid, and not changed, for as long as they are referred to.
        """
        ...

    def reply(self, status: Status, begin: int = 0, *, message: str = "", hint: str = "") -> None:
        """Answer it, once; nothing happens where the connection is gone.

        Args:
            status: OK, or why all of it was refused (or is unknown).
            begin: where the first byte went. Each record's place follows from the lengths.
            message: what a caller reads of a refusal.
            hint: where it would not have been refused.
        """
        ...


class RunSink(Protocol):
    """Takes the runs of one stream. Never raises."""

    def on_run(self, run: FrameRun) -> None:
        """Records have come."""
        ...

    def on_end(self) -> None:
        """No more will come: the peer ended the stream or is gone. What is not yet answered still may be."""
        ...
