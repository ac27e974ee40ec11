"""Append ports: what a replica asks of an append, however its content comes."""

from typing import Protocol

from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import Status
from broadsheet.journal.spool_file import SpoolFile


class AppendRun(Protocol):
    """What the pipeline calls a run: content that the data path knows how to get, and whom to answer."""

    def content(self) -> Buffer:
        """All content back to back, unchanged until answered."""
        ...

    def answer(self, status: Status, begin: ByteOffset, end: ByteOffset) -> None:
        """Say what became of it, once."""
        ...


class Upload(Protocol):
    """A streaming append, as `streamed_append.py` runs it."""

    @property
    def is_placing(self) -> bool:
        """Whether it owns the tail."""
        ...

    def begin(self) -> None:
        """Content may come: stage it."""
        ...

    def grant(self, spool: SpoolFile) -> None:
        """The tail is yours: put what is staged at the end of `spool`."""
        ...

    def abort(self, status: Status) -> None:
        """Take no more, and drop what there is."""
        ...

    def undo(self) -> None:
        """Take it back from the spool: the log had no room for it."""
        ...
