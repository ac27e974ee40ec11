"""The journal's records keep their bytes, and recovery knows whose the last conditional appends were."""

import pytest
from msgspec.structs import replace

from broadsheet.base.types import ByteOffset, Epoch
from broadsheet.errors import Corrupt
from broadsheet.journal.core.attempts import ATTEMPT_BYTES, Remembered
from broadsheet.journal.core.records import Checkpoint, Proposal, decode, encode_checkpoint, encode_proposal
from broadsheet.journal.core.recovery import replay
from broadsheet.journal.core.registers import NO_REGISTERS, RegisterState
from broadsheet.journal.core.seal import checkpoint_of

MINE, OTHER = b"m" * ATTEMPT_BYTES, b"o" * ATTEMPT_BYTES
REGISTERS = RegisterState(values={"author": "x"}, version=1, at=ByteOffset(7), attempt=MINE)
GOLDEN = (
    "010200003900000003000000000000000000000000000000050000000000000007000000000000006300000000000000"
    "73737373737373737373737373737373737373730000000084a676616c75657381a6617574686f72a178a77665727369"
    "6f6e01a2617407a7617474656d7074c4106d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d"
    "6d6869"
)


def proposal(begin: int, end: int, attempt: bytes, registers: RegisterState | None = None) -> bytes:
    head = encode_proposal(
        epoch=Epoch(3),
        fragment_begin=ByteOffset(0),
        begin=ByteOffset(begin),
        end=ByteOffset(end),
        first_append=99,
        digest=b"s" * 20,
        registers=registers,
        is_spooled=False,
        attempt=attempt,
    )
    return head + b"hi"[: end - begin]


def test_a_proposal_with_registers_and_an_attempt_has_these_bytes() -> None:
    """A log that was written is read by every later version."""
    encoded = proposal(5, 7, MINE, REGISTERS)
    found = decode(encoded)

    assert encoded.hex() == GOLDEN
    assert isinstance(found, Proposal)
    assert (found.attempt, found.registers, bytes(found.content or b"")) == (MINE, REGISTERS, b"hi")
    with pytest.raises(Corrupt):
        decode(proposal(5, 7, MINE)[: -ATTEMPT_BYTES // 2 - 2])


def test_recovery_remembers_the_attempts_of_the_checkpoint_and_of_what_follows_it() -> None:
    """journals.11: a restart must not make an append that took effect look like another writer's."""
    checkpoint = Checkpoint(
        epoch=Epoch(3),
        fragment_begin=ByteOffset(0),
        end=ByteOffset(5),
        sum=b"s" * 20,
        first_append=99,
        registers=NO_REGISTERS,
        attempts=(Remembered(OTHER, ByteOffset(2), ByteOffset(5)),),
        attempts_from=ByteOffset(2),
    )
    records = [proposal(5, 7, MINE), proposal(7, 9, b""), encode_checkpoint(checkpoint)]
    plan = replay(decode(each) for each in (records[2], *records[:2]))

    assert plan.attempts.known_from == 2
    assert plan.attempts.remembered() == (
        Remembered(OTHER, ByteOffset(2), ByteOffset(5)),
        Remembered(MINE, ByteOffset(5), ByteOffset(7)),
    )


def test_recovery_ends_at_the_first_gap_between_two_proposals() -> None:
    """journals.6: content above a hole would be served at offsets whose beginning nobody has."""
    records = [proposal(5, 7, MINE), proposal(8, 10, OTHER), proposal(10, 12, b"")]
    plan = replay(decode(each) for each in records)

    assert (plan.end, plan.gap) == (7, "the log continues at 8, not at 7")
    assert plan.attempts.find(OTHER) is None
    assert [(each.begin, each.end) for each in plan.spools] == [(5, 7)]


def test_a_fragment_is_as_old_as_its_first_byte() -> None:
    """`flush_interval` closes it by that, and a checkpoint of an empty fragment knows no age."""
    empty = Checkpoint(
        epoch=Epoch(3), fragment_begin=ByteOffset(0), end=ByteOffset(0), sum=bytes(20), first_append=0
    )
    plan = replay([empty, decode(proposal(0, 2, MINE)), decode(proposal(2, 4, b""))])

    assert [(each.begin, each.end, each.first_append) for each in plan.spools] == [(0, 4, 99)]


def test_a_checkpoint_that_says_nothing_of_attempts_leaves_all_before_it_in_doubt() -> None:
    """One that was written otherwise: nobody may conclude from its silence that an append failed."""
    checkpoint = Checkpoint(
        epoch=Epoch(3), fragment_begin=ByteOffset(0), end=ByteOffset(5), sum=b"s" * 20, first_append=99
    )

    assert replay([checkpoint]).attempts.known_from == 5
    assert replay([]).attempts.known_from == 0


def test_only_the_checkpoint_of_a_journal_that_lost_its_begin_has_an_origin() -> None:
    """Readers of messages begin there, also after the checkpoint was read, and written again."""
    plain = Checkpoint(
        epoch=Epoch(3), fragment_begin=ByteOffset(0), end=ByteOffset(5), sum=b"s" * 20, first_append=99
    )
    plan = replay([decode(encode_checkpoint(replace(plain, origin=ByteOffset(4))))])

    assert b"origin" not in encode_checkpoint(plain)
    assert b"origin" not in encode_checkpoint(checkpoint_of(replay([plain])))
    assert (plan.origin, checkpoint_of(plan).origin) == (4, 4)


def test_only_a_checkpoint_beside_a_seal_says_so() -> None:
    """The file may be lost: the log must know that there was one."""
    plain = Checkpoint(
        epoch=Epoch(3), fragment_begin=ByteOffset(0), end=ByteOffset(5), sum=b"s" * 20, first_append=99
    )
    sealed = encode_checkpoint(replace(plain, is_sealed=True))

    assert b"is_sealed" not in encode_checkpoint(plain)
    assert replay([decode(sealed)]).is_sealed
    assert not replay([decode(sealed), decode(encode_checkpoint(plain))]).is_sealed
