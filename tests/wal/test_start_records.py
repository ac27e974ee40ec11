"""Records that a start needs wait for room in their log, for a while."""

from collections.abc import Callable

import pytest

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.wal import start_records
from broadsheet.wal.record import LogFull
from broadsheet.wal.start_records import made_durable


async def test_a_start_waits_for_room_that_comes() -> None:
    """A segment that is being filled is there in a moment; a node that had ended would not have seen it."""
    tries = 0

    def place(done: Callable[[], None]) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise LogFull("another segment is being filled")
        done()

    await made_durable(place)

    assert tries == 4


async def test_a_start_says_that_there_is_no_room_when_none_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody must free some space: a start that waits for ever says nothing."""
    monkeypatch.setattr(start_records, "ROOM_WAIT", Duration(50 * MILLISECOND))

    def place(_done: Callable[[], None]) -> None:
        raise LogFull("the disk has no space left")

    with pytest.raises(LogFull, match="no space left"):
        await made_durable(place)
