"""Append ports: the interfaces through which a replica uses an append: a run, or a streaming append."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import BY_STATUS, Status
from broadsheet.journal.messages import Commit
from broadsheet.journal.spool_file import SpoolFile


class AppendRun(Protocol):
    """The pipeline's run: its content, and the way to answer its callers."""

    @property
    def count(self) -> int:
        """How many appends it carries."""
        ...

    @property
    def parts(self) -> Sequence[Buffer]:
        """All content, in pieces that belong back to back; they do not change before the answer."""
        ...

    def answer(self, status: Status, begin: ByteOffset, end: ByteOffset, message: str) -> None:
        """Give the callers the outcome, of a refusal with its text; called once."""
        ...


class StreamingAppend(Protocol):
    """A streaming append, as `streamed_append.py` runs it."""

    @property
    def is_placing(self) -> bool:
        """Whether the append owns the tail."""
        ...

    def begin(self) -> None:
        """Start to stage content as it arrives."""
        ...

    def grant(self, spool: SpoolFile) -> None:
        """Copy the staged content to the end of `spool`: the append owns the tail."""
        ...

    def abort(self, status: Status) -> None:
        """Accept no more content, and drop the staged content."""
        ...

    def undo(self) -> None:
        """Remove the content from the spool: the log had no room for its record."""
        ...


def resolve(
    answered: "asyncio.Future[Commit]", status: Status, begin: ByteOffset, end: ByteOffset, message: str
) -> None:
    """Give an append's `answered` the commit [begin, end), or the error that `status` stands for."""
    if answered.done():
        return
    if status is Status.OK:
        answered.set_result(Commit(begin=begin, end=end))
    else:
        answered.set_exception(BY_STATUS[status](message))
        answered.exception()  # Marked as seen: perhaps no task waits for it any more.
