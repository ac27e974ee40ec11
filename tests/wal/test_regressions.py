"""Named regressions of the log: what once hurt others, or us, and must not come back."""

import pytest

from tests.wal import scenarios


async def test_a_restart_after_a_failed_sync_does_not_believe_the_page_cache() -> None:
    """Nothing is acknowledged after a failed sync, and what the next start tells is durable (log.15)."""
    assert await scenarios.sync_fails_and_the_page_cache_lies() is None


async def test_a_byte_identical_append_after_a_torn_tail_revives_nothing() -> None:
    """The torn batch's last record fits the new chain byte for byte, and is still not of this life.

    Source: log.6.
    """
    assert await scenarios.torn_tail_and_the_same_bytes_again() is None


@pytest.mark.parametrize("is_same", [True, False], ids=["the same bytes", "other bytes"])
@pytest.mark.parametrize("is_trimmed", [False, True], ids=["behind a record", "all before is trimmed"])
async def test_a_whole_record_behind_a_torn_one_never_comes_back(*, is_same: bool, is_trimmed: bool) -> None:
    """The batch's header survives, its first record does not: the second fits what is appended next.

    Where all before it was trimmed, no run led to the point of the cut, and the stream was quarantined.
    """
    told = await scenarios.torn_record_before_a_whole_one(is_same=is_same, is_trimmed=is_trimmed)
    assert told is None


async def test_sectors_of_another_boot_are_not_records_of_this_one() -> None:
    """The same batch number at the same place behind the same bytes: only the boot tells them apart.

    Source: log.6.
    """
    assert await scenarios.stale_sectors_of_another_boot() is None


async def test_a_lost_batch_with_a_truncation_is_damage() -> None:
    """Offsets without a gap are no proof: only the links are. Nor may it be taken for a torn tail."""
    assert await scenarios.lost_batch_with_a_truncation() is None


async def test_a_batch_frees_only_what_its_own_rows_say_was_trimmed() -> None:
    """A trim while an earlier batch waits: freed too early, its stream looks damaged after a crash."""
    assert await scenarios.trim_while_a_batch_waits() is None


async def test_frames_of_another_lap_are_free_space() -> None:
    """Not records, and not a cut tail either (log.8)."""
    assert await scenarios.frames_of_another_lap_behind_the_head() is None


async def test_a_stream_that_pins_is_copied_forward_while_another_writes_ten_times_the_pool() -> None:
    """One forgotten record must not fill the disk, and must not be lost."""
    assert await scenarios.one_stream_pins_while_another_writes(flushes=False) is None


async def test_a_stream_that_pins_is_asked_to_flush_first() -> None:
    """Its domain knows a cheaper way than a copy."""
    assert await scenarios.one_stream_pins_while_another_writes(flushes=True) is None
