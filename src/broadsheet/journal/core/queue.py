"""Queue: appends that were evaluated and not yet answered, in order, and those that wait to be evaluated.

`pending_bytes` counts the bytes in memory of both. Entries leave at the front when they are answered; if the
disk refuses one, it and all later entries leave at the back. The queue does not decide answers.
Source: journals.9.
"""

from collections import deque

from broadsheet.base.types import ByteOffset, Token
from broadsheet.journal.core.append_admission import PendingAppend
from broadsheet.journal.core.registers import RegisterState


class Queue:
    """The appends of one pipeline that are not answered."""

    def __init__(self) -> None:
        self.entries: deque[PendingAppend] = deque()
        """Evaluated, in order. The spans of the adopted ones follow each other from the committed end on."""
        self.waiting: deque[PendingAppend] = deque()
        """Not evaluated, because a stream owns the tail."""
        self.pending_bytes = 0

    def pop(self) -> PendingAppend:
        """Take out the first entry, to answer it."""
        entry = self.entries.popleft()
        self.pending_bytes -= entry.pending_bytes
        return entry

    def durable_registers(self, persisted: Token) -> RegisterState | None:
        """The newest registers of an append that is durable and not yet committed."""
        newest: RegisterState | None = None
        for entry in self.entries:
            if entry.token > persisted:
                break
            newest = entry.registers or newest
        return newest

    def registers_of(self, version: int) -> RegisterState:
        """The registers of that version: they are being put, so their append waits here."""
        states = (each.registers for each in self.entries if each.registers is not None)
        return next(each for each in states if each.version == version)

    def take_from(self, token: Token) -> list[PendingAppend]:
        """Take out the entry of `token` and everything after it."""
        entries, kept = list(self.entries), 0
        while kept < len(entries) and entries[kept].token < token:
            kept += 1
        self.entries = deque(entries[:kept])
        return entries[kept:]

    def last_registers(self) -> RegisterState | None:
        """The registers that the last entry with a change sets; None if no entry changes them."""
        return next((each.registers for each in reversed(self.entries) if each.registers is not None), None)

    def withdraw(self, stream: int) -> PendingAppend | None:
        """Take out the waiting entry of a stream; None if it does not wait."""
        found = next((each for each in self.waiting if each.stream == stream), None)
        if found is not None:
            self.waiting.remove(found)
        return found

    def clear(self) -> None:
        """Forget every entry; the caller has answered them."""
        self.entries.clear()
        self.waiting.clear()
        self.pending_bytes = 0

    def check(self, *, committed_end: ByteOffset, adopted_end: ByteOffset, version: int) -> None:
        """Assert that the pipeline's queued appends lead from the committed to the adopted end."""
        end, pending = committed_end, 0
        for entry in self.entries:
            pending += entry.pending_bytes
            if not entry.token:
                assert entry.begin in (end, 0), "a refusal has the head that it met"
                continue
            assert entry.begin == end, "adopted appends tile the journal"
            assert entry.end == entry.begin + entry.length, "an append has its length"
            end = entry.end
            if entry.registers is not None:
                version += 1
                assert entry.registers.version == version, "each change is one version"
                assert entry.registers.at == entry.end, "registers are at the end of their append"
        assert end == adopted_end, "the head is the end of the last adopted append"
        pending += sum(entry.pending_bytes for entry in self.waiting)
        assert pending == self.pending_bytes, "pending bytes are counted once"
