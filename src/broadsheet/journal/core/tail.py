"""Tail: which streaming append is being put at the end of the journal.

FREE --grant--> OWNED --placed or failed--> FREE. The owner's content is whole: it is copied from beside the
tail and synced, at the pace of our disk; no client is waited for. Source: journals.17.
"""

from broadsheet.journal.core.append_admission import Entry


class Tail:
    """The owner of the tail, if there is one."""

    def __init__(self) -> None:
        self.owner: Entry | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody owns it."""
        return self.owner is None

    def is_owned_by(self, stream: int) -> bool:
        """Whether it is that stream's."""
        return self.owner is not None and self.owner.stream == stream

    def grant(self, entry: Entry) -> None:
        """Give it to `entry`."""
        assert self.owner is None, "one owner at a time"
        assert entry.length, "what has no content has no place"
        self.owner = entry

    def release(self) -> Entry:
        """The owner is done with it; returns it."""
        owner, self.owner = self.owner, None
        assert owner is not None, "nobody owns the tail"
        return owner
