"""Run: consecutive records of one RUN stream from one read, and the sink that takes them (code.4).

The wire passes a run to its sink synchronously, in the read. The sink keeps the run, and answers it once,
when it knows the outcome. Answers may be given in any order and in any turn, and are sent in the order in
which they are given. `sequence` counts the records of a stream from 0. The bytes of a run are records only,
without headers. This module decides nothing: a machine sees key, count and size, and the rest is opaque.
Source: code.4; wire.2.
"""

from typing import Final, Protocol

from broadsheet.base.types import Buffer, ConnectionId
from broadsheet.errors import Status

RUN_BYTES_MAX: Final = 1 << 20
"""Bytes of a run that is made of single RECORD frames, at most; a larger record makes a run of its own. The
bound exists because a sink may hash a run on the loop."""


class FrameRun(Protocol):
    """One run, owned by the sink until it is answered."""

    @property
    def connection(self) -> ConnectionId:
        """The connection on which the run came."""
        ...

    @property
    def stream(self) -> int:
        """The stream of that connection."""
        ...

    @property
    def sequence(self) -> int:
        """The number of the first record within the stream, from 0."""
        ...

    @property
    def count(self) -> int:
        """The number of records; at least one."""
        ...

    @property
    def size(self) -> int:
        """Bytes of all records together."""
        ...

    @property
    def at(self) -> int | None:
        """The offset that the caller wants for the first byte (journals.21); None if it wants none."""
        ...

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """The records back to back, in the form in which they are logged.

        The buffers stay valid and unchanged as long as they are referred to.
        """
        ...

    def reply(self, status: Status, begin: int = 0, *, message: str = "", hint: str = "") -> None:
        """Answer the run, once. If the connection is gone, nothing happens.

        Args:
            status: OK, or the reason why the whole run was refused, or is unknown.
            begin: the offset of the first byte. The other records follow back to back.
            message: the text of a refusal.
            hint: the address of a node that would accept the run.
        """
        ...


class RunSink(Protocol):
    """Takes the runs of one stream. Never raises."""

    def on_run(self, run: FrameRun) -> None:
        """Take a run."""
        ...

    def on_end(self) -> None:
        """Expect no more runs: the peer ended the stream or is gone. Open runs may still be answered."""
        ...
