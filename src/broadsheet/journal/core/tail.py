"""Tail: which streaming append is being copied to the end of the journal.

FREE --grant--> OWNED --placed or failed--> FREE. The owner's content is whole: the host copies and syncs it
at the speed of the disk, and waits for no client meanwhile. Source: journals.17.
"""

from broadsheet.journal.core.append_admission import PendingAppend


class Tail:
    """The streaming append that owns the journal's tail, if there is one."""

    def __init__(self) -> None:
        self.owner: PendingAppend | None = None
        """None: the tail is free."""

    def is_owned_by(self, stream: int) -> bool:
        """Whether that stream owns the tail."""
        return self.owner is not None and self.owner.stream == stream

    def grant(self, entry: PendingAppend) -> None:
        """Make `entry` the owner."""
        assert self.owner is None, "one owner at a time"
        assert entry.length, "an append without content needs no tail"
        self.owner = entry

    def release(self) -> PendingAppend:
        """Free the tail; returns the former owner."""
        owner, self.owner = self.owner, None
        assert owner is not None, "only an owner releases the tail"
        return owner
