"""Recovery: derives from the records of a journal's stream what its spool files must hold.

Offsets are bytes. A pure function: it reads no file, so it cannot tell whether the spool agrees; the caller
compares the files with the sums in the plan. The base is the last checkpoint. The proposals above it follow
in order of offset, and the plan ends at the first gap between two of them. Records below the base are
skipped: the log trims them late. Source: journals.2 (R=1: all members have answered), journals.6,
journals.14.
"""

from collections.abc import Iterable

import msgspec

from broadsheet.base.types import ByteOffset, Epoch
from broadsheet.journal.core.attempts import Attempts, Remembered
from broadsheet.journal.core.fragment import EMPTY_SUM
from broadsheet.journal.core.records import Checkpoint, ClosedSpool, Identity, Proposal
from broadsheet.journal.core.registers import NO_REGISTERS, RegisterState


class SpoolPlan(msgspec.Struct):
    """The content that one fragment's spool file must have."""

    begin: ByteOffset
    end: ByteOffset
    sum: bytes
    """SHA-1 of the content through `end`."""
    first_append: int
    writes: list[tuple[ByteOffset, memoryview]] = []
    """Content from the log, to be written again: the file may have lost what was not synced."""
    is_closed: bool = False
    known: ClosedSpool | None = None
    """What the last checkpoint says of it; None if the fragment began behind that."""

    def is_in_log(self, since: ByteOffset | None = None) -> bool:
        """Whether the log has the whole content of the fragment, or that from `since` on."""
        at = self.begin if since is None else since
        for begin, content in self.writes:
            if begin > at:
                return False
            at = ByteOffset(max(at, begin + len(content)))
        return at >= self.end

    def is_unsummed(self) -> bool:
        """Whether it has content behind the last checkpoint that the log has not."""
        return not self.is_in_log(None if self.known is None else self.known.end)


class RecoveryPlan(msgspec.Struct):
    """The state of a journal according to the log."""

    epoch: Epoch
    """The greatest epoch of a record; 0 if there is none."""
    end: ByteOffset
    registers: RegisterState | None
    spools: list[SpoolPlan]
    """By offset; the last one is the open fragment."""
    attempts: Attempts
    """The attempts of the last conditional appends."""
    is_sealed: bool = False
    """Whether a seal must tell why the journal takes no appends."""
    origin: ByteOffset = ByteOffset(0)
    """As `Checkpoint.origin`."""
    gap: str = ""
    """Why records above `end` are ignored; empty if there are none."""


def replay(records: Iterable[Proposal | Checkpoint | Identity]) -> RecoveryPlan:
    """The plan of a journal's recovery that its `records`, in log order, lead to."""
    everything = list(records)
    base = _base(everything)
    opened = ClosedSpool(base.fragment_begin, base.end, base.sum)
    spools = [
        SpoolPlan(each.begin, each.end, each.sum, base.first_append, is_closed=True, known=each)
        for each in (*base.closed, opened)
    ]
    spools[-1].is_closed = False
    known_from = base.end if base.attempts_from is None else base.attempts_from
    attempts = Attempts(base.attempts, known_from=known_from)
    plan = RecoveryPlan(
        epoch=base.epoch,
        end=base.end,
        registers=base.registers,
        spools=spools,
        attempts=attempts,
        is_sealed=base.is_sealed is True,
        origin=base.origin or ByteOffset(0),
    )
    for record in everything:
        if not isinstance(record, Proposal) or record.end <= base.end:
            continue  # The checkpoint includes it; the log trims such records late.
        if record.begin != plan.end:  # Applying it would leave a hole in a spool file.
            plan.gap = f"the log continues at {record.begin}, not at {plan.end}"
            break
        _apply(plan, record)
    return plan


def _base(records: list[Proposal | Checkpoint | Identity]) -> Checkpoint:
    for record in reversed(records):
        if isinstance(record, Checkpoint):
            return record
    first = next((record for record in records if isinstance(record, Proposal)), None)
    # Without a checkpoint nothing was ever trimmed: the first proposal is the journal's first.
    begin = first.begin if first else ByteOffset(0)
    return Checkpoint(
        epoch=Epoch(0),
        fragment_begin=begin,
        end=begin,
        sum=EMPTY_SUM,
        first_append=0,
        registers=NO_REGISTERS,
        attempts_from=begin,
    )


def _apply(plan: RecoveryPlan, record: Proposal) -> None:
    spool = plan.spools[-1]
    if record.fragment_begin != spool.begin:
        spool.is_closed = True
        if spool.end == spool.begin:
            plan.spools.pop()  # The fragment never got a byte, so it has no file.
        spool = SpoolPlan(record.begin, record.begin, EMPTY_SUM, record.first_append)
        plan.spools.append(spool)
    if spool.end == spool.begin:
        spool.first_append = record.first_append
    if record.content is not None:
        spool.writes.append((record.begin, record.content))
    spool.end, spool.sum = record.end, record.sum
    plan.end, plan.epoch = record.end, max(plan.epoch, record.epoch)
    if record.attempt:
        plan.attempts.remember(Remembered(record.attempt, record.begin, record.end))
    if record.registers is not None:
        plan.registers = record.registers
