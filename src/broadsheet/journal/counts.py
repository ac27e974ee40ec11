"""Counts: what the journals of a node have done since its start, for its metrics.

Whoever ends a run of appends, a chunk of a read or an upload adds to a number: some tens of nanoseconds for
each, whatever appends a run carries. A scrape reads the numbers. They do not survive a restart. Source:
code.18.
"""

from broadsheet.errors import Status


class Counts:
    """The numbers, which only rise."""

    __slots__ = (
        "append_bytes", "appends", "appends_refused",
        "fragment_bytes_stored", "fragments_stored", "read_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.appends = self.append_bytes = 0
        """Appends with content that were committed, and their bytes."""
        self.appends_refused = 0
        """Appends that a pipeline refused: a condition did not hold, or there was no room."""
        self.read_bytes = 0
        """Content that was sent to readers."""
        self.fragments_stored = self.fragment_bytes_stored = 0
        """Fragments that a store has taken and given back, and their bytes before compression."""

    def answered(self, status: Status, count: int, size: int) -> None:
        """A run of `count` appends ended with `status`; together they have `size` bytes, 0 if refused."""
        if status is not Status.OK:
            self.appends_refused += count
        elif size:
            self.appends += count
            self.append_bytes += size
