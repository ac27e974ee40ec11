"""What unvouched records claim is all that they say of the spool, and no more."""

import pytest
from msgspec.structs import replace

from broadsheet.base.types import ByteOffset, Epoch
from broadsheet.errors import InvalidArgument
from broadsheet.journal.core.attempts import Remembered
from broadsheet.journal.core.records import Checkpoint, ClosedSpool, encode_checkpoint, encode_proposal
from broadsheet.journal.core.recovery import SpoolPlan
from broadsheet.journal.core.registers import (
    NO_REGISTERS,
    REGISTERS_MAX,
    VALUE_CHARS_MAX,
    Condition,
    RegisterState,
    is_within_limits,
    validate_condition,
)
from broadsheet.journal.core.spool_claims import Claim, Claims, claims_of, is_put

SUM, OTHER = bytes(range(20)), bytes(range(1, 21))


def at(n: int) -> ByteOffset:
    return ByteOffset(n)


def spans(found: Claims) -> list[tuple[int, int, bytes, int]]:
    return [(each.begin, each.end, each.sum, each.told_from) for each in found.claims]


def test_a_checkpoint_claims_its_closed_spools_and_its_open_one() -> None:
    """Each of them may be the only proof of a spool whose log is damaged."""
    checkpoint = encode_checkpoint(
        Checkpoint(Epoch(1), at(10), at(30), OTHER, 5, closed=(ClosedSpool(at(0), at(10), SUM),))
    )
    proposal = encode_proposal(
        epoch=Epoch(1),
        fragment_begin=at(10),
        begin=at(30),
        end=at(42),
        first_append=5,
        digest=SUM,
        registers=None,
        is_spooled=True,
    )

    found = claims_of([b"damaged", checkpoint, proposal], is_complete=True, is_tail=False)
    assert spans(found) == [(0, 10, SUM, 0), (10, 30, OTHER, 0), (10, 42, SUM, 30)]
    assert (found.last_end, found.last) == (42, proposal)
    for is_tail, last in ((True, proposal), (False, b"")):
        cut = claims_of([checkpoint, proposal], is_complete=False, is_tail=is_tail)
        assert (cut.last_end, cut.last) == (None, last), "only behind a cut is the last that was found known"
    assert claims_of([proposal, b"damaged"], is_complete=True, is_tail=False).last_end is None
    assert claims_of([], is_complete=True, is_tail=False) == Claims([], None)


@pytest.mark.parametrize(
    ("writes", "is_in_log"),
    [
        ([(10, 5), (15, 5)], True),
        ([(10, 7), (15, 5)], True),
        ([(10, 5), (16, 4)], False),
        ([(11, 9)], False),
        ([(10, 9)], False),
        ([], False),
    ],
)
def test_a_spool_is_in_the_log_if_every_byte_of_it_is(writes: list[tuple[int, int]], is_in_log: bool) -> None:
    """Only then may its file be made anew; with a gap, zeros would be served as content."""
    plan = SpoolPlan(at(10), at(20), SUM, 0, [(at(n), memoryview(bytes(size))) for n, size in writes])

    assert plan.is_in_log() is is_in_log


def test_as_many_registers_as_are_allowed_are_taken() -> None:
    """And one more is refused, by its number."""
    names = [f"r{n}" for n in range(REGISTERS_MAX + 1)]

    validate_condition(Condition(union=dict.fromkeys(names[:-1], "v")))
    with pytest.raises(InvalidArgument, match=f"{REGISTERS_MAX + 1} registers in one request"):
        validate_condition(Condition(union=dict.fromkeys(names, "v")))


def test_registers_of_many_bytes_are_as_bounded_as_many_registers() -> None:
    """The key space keeps room for them: characters alone may be four bytes each."""
    ascii_only = {f"r{n:063}": "v" * VALUE_CHARS_MAX for n in range(REGISTERS_MAX)}

    assert is_within_limits(replace(NO_REGISTERS, values=ascii_only))
    assert not is_within_limits(replace(NO_REGISTERS, values=ascii_only | {f"r{0:063}": "\u20ac" * 256}))


def test_registers_of_which_no_key_is_known_were_not_put() -> None:
    """Their append was not acknowledged, so nobody may be told that its bytes are proven."""
    states = [NO_REGISTERS, *(RegisterState({}, version, at(9 * version)) for version in (1, 2))]
    claims = [Claim(at(0), at(9), SUM, 0, state, at(0)) for state in states]

    assert [is_put(each, None) for each in claims] == [True, False, False]
    assert [is_put(each, states[1]) for each in claims] == [True, True, False]


def test_a_checkpoint_that_may_be_damaged_vouches_for_no_attempt() -> None:
    """Its ids and offsets may have rotted, and a repeated append would be told that it is there (C2)."""
    attempt = Remembered(b"0123456789abcdef", ByteOffset(3), ByteOffset(5))
    checkpoint = Checkpoint(
        epoch=Epoch(1),
        fragment_begin=ByteOffset(0),
        end=ByteOffset(5),
        sum=b"s" * 20,
        first_append=1,
        attempts=(attempt,),
    )

    (claim,) = claims_of([encode_checkpoint(checkpoint)], is_complete=True, is_tail=False).claims
    assert claim.attempts == ()
