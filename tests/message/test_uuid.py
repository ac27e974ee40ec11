"""UUIDs, clocks and mappings are byte-compatible with the published vectors (journals.28)."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.time import WallTime
from broadsheet.message.clock import TICK, ProducerClock, clock_at
from broadsheet.message.mapping import modulo, modulo_each
from broadsheet.message.uuid import (
    NO_ID,
    Clock,
    Flag,
    ProducerId,
    from_text,
    meaning,
    pack,
    producer_from,
    to_text,
    unpack,
)

PRODUCER = ProducerId(0x010203040506)
VECTOR_CLOCK = Clock(2205855587517004112)


def test_the_published_vectors_come_out_bit_for_bit() -> None:
    """Gazette's clients must read what we write."""
    clock = ProducerClock()
    clock.update(WallTime(1567304621_981273734))
    clock.tick()

    assert clock.tick() == VECTOR_CLOCK
    assert to_text(pack(PRODUCER, VECTOR_CLOCK, 682)) == "83fc2f95-cc5f-11e9-82aa-010203040506"
    assert to_text(pack(PRODUCER, VECTOR_CLOCK, Flag.OUTSIDE)) == "83fc2f95-cc5f-11e9-8000-010203040506"
    assert to_text(pack(PRODUCER, VECTOR_CLOCK, Flag.CONTINUE)) == "83fc2f95-cc5f-11e9-8001-010203040506"
    assert to_text(pack(PRODUCER, VECTOR_CLOCK, Flag.ACK)) == "83fc2f95-cc5f-11e9-8002-010203040506"
    assert to_text(pack(PRODUCER, Clock(VECTOR_CLOCK | 5), 2)) == "83fc2f95-cc5f-11e9-9402-010203040506"


@given(st.integers(0, 2**48 - 1), st.integers(1, 2**64 - 1), st.integers(0, 0x3FF))
def test_a_uuid_taken_apart_gives_what_went_in(producer: int, clock: int, flags: int) -> None:
    """Every bit of clock, flags and producer survives, and the standard library agrees on the layout."""
    raw = pack(ProducerId(producer), Clock(clock), flags)

    assert unpack(raw) == (producer, clock, flags)
    assert from_text(to_text(raw).encode()) == (producer, clock, flags)
    assert UUID(bytes=raw).version == 1
    assert UUID(bytes=raw).time == clock >> 4


def test_a_text_with_dashes_in_other_places_is_no_uuid() -> None:
    """What has the length of one and too few digits made the reader of a journal fail."""
    text = to_text(pack(ProducerId(1), Clock(1 << 20), 0)).encode()

    for at in (0, 10, 20, 35):
        for count in (1, 2):
            begin = min(at, len(text) - count)
            assert from_text(text[:begin] + b"-" * count + text[begin + count :]) == NO_ID


@given(st.binary(max_size=40))
def test_anything_else_is_no_uuid(raw: bytes) -> None:
    """A foreign message is at-least-once, and never an exception."""
    if len(raw) != 16 or raw[6] >> 4 != 1 or raw[8] >> 6 != 2:
        assert unpack(raw) == NO_ID
    assert from_text(raw) == NO_ID


def test_an_unknown_flag_counts_as_outside() -> None:
    """The original does so, and a message must not wait for an ACK that its producer never sends."""
    assert meaning(0x2AA) is Flag.OUTSIDE


def test_a_producer_id_has_the_multicast_bit() -> None:
    """Otherwise it could be the address of a network card, and another's UUIDs would collide with ours."""
    assert producer_from(bytes(6)) == 0x010000000000


@given(st.lists(st.integers(0, 2**61), min_size=1))
def test_a_clock_never_goes_back(walls: list[int]) -> None:
    """Readers drop what is at or below the last clock, so one step back would lose messages."""
    clock, before = ProducerClock(), 0
    for wall in walls:
        clock.update(WallTime(wall))
        now = clock.tick(3)
        assert before < now <= clock.last - 2 * TICK
        before = clock.last


def test_a_clock_tells_the_time() -> None:
    """Whoever looks at an id wants to know when it was made; 100 ns are the unit of RFC 4122, 4.1.4."""
    ticks = 1567304621_9812737 + 0x01B21DD213814000
    assert clock_at(WallTime(1567304621_981273700)) == ticks << 4


def test_modulo_maps_as_published() -> None:
    """A producer in Go and one in Python must send a key to the same journal."""
    keys = {
        "It always": 119, "seems": 54, "impossible": 308, "until": 97, "it is done.": 179,
        "- Nelson Mandela": 437, "Shall I compare": 84, "thee to": 300, "a summer's day?": 214,
        "Thou art more": 135, "lovely and more": 118, "temperate - Shakespeare": 228,
    }  # fmt: skip

    assert [modulo(key.encode(), 443) for key in keys] == list(keys.values())
    assert modulo_each([key.encode() for key in keys] * 2, 443) == list(keys.values()) * 2
