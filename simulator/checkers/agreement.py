"""Log agreement: one entry for each (stream, position), whoever reports it and whenever (K3, J1).

Report what nodes hold as committed. Positions count entries from 0; committed ends never go back, not even
over a restart, since what was committed was durable. Source: Raft's State Machine Safety; K3.
"""

from collections.abc import Hashable, Sequence

from simulator.workload import Violation


class LogAgreement:
    """What has been reported so far."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], tuple[Hashable, str]] = {}
        self._ends: dict[str, int] = {}

    def committed(self, stream: str, position: int, entry: Hashable, *, by: str) -> None:
        """`by` holds `entry` as committed at `position`.

        Raises:
            Violation: somebody held another there.
        """
        known = self._entries.setdefault((stream, position), (entry, by))
        if known[0] != entry:
            raise Violation(f"{stream}[{position}] is {known[0]!r} by {known[1]} and {entry!r} by {by}")
        self._ends[stream] = max(self._ends.get(stream, 0), position + 1)

    def whole(self, stream: str, entries: Sequence[Hashable], *, by: str, first: int = 0) -> None:
        """`by` holds just `entries` from `first` on, with everything that was ever committed among them.

        Raises:
            Violation: an entry differs, or a committed one is missing.
        """
        for index, entry in enumerate(entries):
            self.committed(stream, first + index, entry, by=by)
        end = self._ends.get(stream, 0)
        if first + len(entries) < end:
            raise Violation(f"{stream}: {by} ends at {first + len(entries)}, {end} were committed")
