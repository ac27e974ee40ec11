"""Spool repair believes no more than was acknowledged: registers that were never put end it (journals.11)."""

from hashlib import sha1

import pytest
from msgspec.structs import replace

from broadsheet.base.types import ByteOffset, Epoch
from broadsheet.journal.core.attempts import ATTEMPT_BYTES
from broadsheet.journal.core.records import (
    Checkpoint,
    Proposal,
    decode,
    encode_checkpoint,
    encode_proposal,
)
from broadsheet.journal.core.recovery import RecoveryPlan, replay
from broadsheet.journal.core.registers import RegisterState
from broadsheet.journal.core.spool_claims import claims_of, is_put, tells_no_other_registers
from broadsheet.journal.spool_file import spool_name
from broadsheet.journal.spool_repair import Witnesses, repair
from simulator.disk import SimDisk

CONTENT = b"known, and fenced, and last"
KNOWN, FENCED = 5, 17
PUT = RegisterState(values={}, version=1, at=ByteOffset(KNOWN))
NEWER = RegisterState(values={"author": "another"}, version=2, at=ByteOffset(FENCED))


def record(
    begin: int,
    end: int,
    registers: RegisterState | None = None,
    content: bytes = CONTENT,
    *,
    is_spooled: bool = False,
    attempt: bytes = b"",
) -> bytes:
    digest = sha1(content[:end], usedforsecurity=False).digest()
    head = encode_proposal(
        epoch=Epoch(1),
        fragment_begin=ByteOffset(0),
        begin=ByteOffset(begin),
        end=ByteOffset(end),
        first_append=1,
        digest=digest,
        registers=registers,
        is_spooled=is_spooled,
        attempt=attempt,
    )
    return head if is_spooled else head + content[begin:end]


def repaired(
    *suspects: bytes, is_tail: bool = True, settled: int = 0, held: bytes = CONTENT
) -> tuple[RecoveryPlan, bool]:
    """The plan after the repair of a torn batch with these records, or of a stream that has lost some.

    Args:
        held: what the spool file has. The second value says whether the repair takes that for all.
    """
    disk = SimDisk()
    disk.make_dir("spool")
    disk.open(spool_name("spool", ByteOffset(0)), create=True).write_at(0, [held])
    known = decode(record(0, KNOWN, PUT))
    assert isinstance(known, Proposal)
    plan = replay([known])

    claims = claims_of(suspects, is_complete=not is_tail, is_tail=is_tail)
    is_whole = repair(disk, "spool", plan, Witnesses(claims, PUT, ByteOffset(settled)))
    return plan, is_whole


def flipped(payload: bytes, at: int, bit: int = 1) -> bytes:
    return payload[:at] + bytes((payload[at] ^ bit,)) + payload[at + 1 :]


def test_no_append_is_repaired_behind_registers_that_were_never_put() -> None:
    """Otherwise a fence of another author is read in the journal, and its register says the former one.

    The power tears a batch of such an append and a plain one behind it, which the spool file has whole.
    Neither was acknowledged, and the sum of the last one proves the bytes of both.
    """
    plan, _ = repaired(record(KNOWN, FENCED, NEWER), record(FENCED, len(CONTENT)))
    assert plan.end == KNOWN


def test_appends_without_registers_are_repaired() -> None:
    """They may have been acknowledged, and their sums prove them."""
    for is_tail in (True, False):
        plan, _ = repaired(record(KNOWN, FENCED), record(FENCED, len(CONTENT)), is_tail=is_tail)
        assert (plan.end, plan.registers) == (len(CONTENT), PUT)


HEAD_BYTES = len(record(KNOWN, KNOWN))
BROKEN = flipped(record(KNOWN, FENCED, NEWER), HEAD_BYTES)
"""It has newer registers, and does not decode."""


@pytest.mark.parametrize("unreadable", [b"", bytes(len(BROKEN)), BROKEN])
def test_registers_are_lost_with_the_record_of_an_append_that_may_have_set_others(unreadable: bytes) -> None:
    """J6: a power cut came before its registers were put, and then its record was damaged or gone.

    The next record proves its bytes: the journal showed them, with the registers from before.
    """
    plan, _ = repaired(unreadable, record(FENCED, len(CONTENT)), is_tail=False)
    assert (plan.end, plan.registers) == (len(CONTENT), None)


@pytest.mark.parametrize("unreadable", [b"", bytes(len(BROKEN)), BROKEN])
def test_the_repair_of_a_torn_batch_ends_before_a_record_that_is_not_told(unreadable: bytes) -> None:
    """It was never acknowledged, so its journal needs no operator after a power cut."""
    plan, _ = repaired(unreadable, record(FENCED, len(CONTENT)), is_tail=True)
    assert (plan.end, plan.registers) == (KNOWN, PUT)


def test_a_missing_record_of_an_earlier_epoch_takes_no_registers_with_it() -> None:
    """A start puts the registers before it takes an append, so what it found had none that were not put."""
    plan, _ = repaired(b"", record(FENCED, len(CONTENT)), is_tail=False, settled=FENCED)
    assert (plan.end, plan.registers) == (len(CONTENT), PUT)


def test_a_later_checkpoint_tells_the_registers_of_a_missing_record() -> None:
    """It names the registers behind all appends that it covers."""
    found = decode(record(KNOWN, FENCED))
    assert isinstance(found, Proposal)
    checkpoint = Checkpoint(Epoch(1), ByteOffset(0), ByteOffset(FENCED), found.sum, 1, PUT)
    plan, _ = repaired(b"", encode_checkpoint(checkpoint), record(FENCED, len(CONTENT)), is_tail=False)
    assert (plan.end, plan.registers) == (len(CONTENT), PUT)


@pytest.mark.parametrize("held", [KNOWN, FENCED])
def test_a_checkpoint_does_not_tell_the_end_of_an_append_that_came_while_it_was_made(held: int) -> None:
    """J2: its record stands before the checkpoint, which ends below it, and a power cut took its bytes.

    Damage elsewhere made both suspect. The journal was open without it, and nothing told of it.
    """
    found = decode(record(0, KNOWN, PUT))
    assert isinstance(found, Proposal)
    checkpoint = encode_checkpoint(Checkpoint(Epoch(1), ByteOffset(0), ByteOffset(KNOWN), found.sum, 1, PUT))
    plan, is_whole = repaired(record(KNOWN, FENCED), checkpoint, is_tail=False, held=CONTENT[:held])
    assert (plan.end, is_whole) == (held, held == FENCED)


@pytest.mark.parametrize("is_spooled", [True, False])
@pytest.mark.parametrize("content", [CONTENT, b'%d {"values": {}, "version": 2}'])
def test_one_flipped_bit_in_a_record_without_registers_takes_none_away(
    content: bytes, *, is_spooled: bool
) -> None:
    """Whatever its content says: it cannot be taken for a record that has registers."""
    whole = record(KNOWN, len(content), content=content, is_spooled=is_spooled)
    for place in range(8 * len(whole)):
        assert tells_no_other_registers(flipped(whole, place // 8, 1 << place % 8), PUT), place


def test_a_flipped_flag_of_an_attempt_leaves_a_record_its_sum() -> None:
    """It may be the only one that names the end of its fragment. The attempt id is what is lost."""
    whole = record(KNOWN, FENCED, is_spooled=True, attempt=bytes(range(ATTEMPT_BYTES)))
    (claim,) = claims_of([flipped(whole, 1, 2)], is_complete=True, is_tail=False).claims
    assert (claim.end, claim.attempts) == (FENCED, ())


@pytest.mark.parametrize("is_spooled", [True, False])
def test_one_flipped_bit_in_a_record_with_newer_registers_does_not_hide_them(*, is_spooled: bool) -> None:
    """In its head, or in the registers: they were never put, and nobody may take them for older ones.

    They are 64 bytes long: one bit in that length makes it 0.
    """
    newer = replace(NEWER, values={"author": "another with a long name"})
    whole = record(KNOWN, FENCED, newer, is_spooled=is_spooled)
    assert len(whole) - HEAD_BYTES - (0 if is_spooled else FENCED - KNOWN) == 64
    for place in range(8 * (HEAD_BYTES + 64)):
        damaged = flipped(whole, place // 8, 1 << place % 8)
        claims = claims_of([damaged], is_complete=True, is_tail=False).claims
        assert not tells_no_other_registers(damaged, PUT), place
        assert not any(is_put(each, PUT) for each in claims), place
