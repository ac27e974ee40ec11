"""Spool repair believes no more than was acknowledged: registers that were never put end it (journals.11)."""

from hashlib import sha1

from broadsheet.base.types import ByteOffset, Epoch
from broadsheet.journal.core.records import Proposal, decode, encode_proposal
from broadsheet.journal.core.recovery import replay
from broadsheet.journal.core.registers import RegisterState
from broadsheet.journal.core.spool_claims import claims_of
from broadsheet.journal.spool_file import spool_name
from broadsheet.journal.spool_repair import Witnesses, repair
from simulator.disk import SimDisk

CONTENT = b"known, and fenced, and last"
KNOWN, FENCED = 5, 17
PUT = RegisterState(values={}, version=1, at=ByteOffset(KNOWN))
NEWER = RegisterState(values={"author": "another"}, version=2, at=ByteOffset(FENCED))


def record(begin: int, end: int, registers: RegisterState | None = None) -> bytes:
    digest = sha1(CONTENT[:end], usedforsecurity=False).digest()
    head = encode_proposal(
        epoch=Epoch(1),
        fragment_begin=ByteOffset(0),
        begin=ByteOffset(begin),
        end=ByteOffset(end),
        first_append=1,
        digest=digest,
        registers=registers,
        is_spooled=False,
    )
    return head + CONTENT[begin:end]


def repaired(*suspects: bytes) -> int:
    """Where the journal ends after the repair of a torn batch with these records."""
    disk = SimDisk()
    disk.make_dir("spool")
    disk.open(spool_name("spool", ByteOffset(0)), create=True).write_at(0, [CONTENT])
    known = decode(record(0, KNOWN, PUT))
    assert isinstance(known, Proposal)
    plan = replay([known])

    repair(disk, "spool", plan, Witnesses(claims_of(suspects, is_complete=False, is_tail=True), PUT))
    return plan.end


def test_no_append_is_repaired_behind_registers_that_were_never_put() -> None:
    """Otherwise a fence of another author is read in the journal, and its register says the former one.

    The power tears a batch of such an append and a plain one behind it, which the spool file has whole.
    Neither was acknowledged, and the sum of the last one proves the bytes of both.
    """
    assert repaired(record(KNOWN, FENCED, NEWER), record(FENCED, len(CONTENT))) == KNOWN


def test_appends_without_registers_are_repaired() -> None:
    """They may have been acknowledged, and their sums prove them."""
    assert repaired(record(KNOWN, FENCED), record(FENCED, len(CONTENT))) == len(CONTENT)
