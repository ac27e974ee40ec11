"""Start records: the records without which a start cannot go on, such as whose data a log holds.

A log that has just been opened may be full: the next segment is still being filled, or the disk has no space
for it. Both may pass in a moment, and a start that gave up would end the node. Source: log.10, W8.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import MILLISECOND, SECOND, Duration, in_seconds
from broadsheet.wal.record import LogFull

ROOM_WAIT: Final = Duration(10 * SECOND)
"""How long a start waits for room in a log."""
FIRST_PAUSE, LONGEST_PAUSE = Duration(5 * MILLISECOND), Duration(500 * MILLISECOND)


async def made_durable(place: Callable[[Callable[[], None]], object]) -> None:
    """Have records placed, and return when they are durable.

    Args:
        place: appends them to a log, with the `done` that it is given. See `placed`.

    Raises:
        LogFull: there was no room within `ROOM_WAIT`.
    """
    durable = asyncio.Event()
    await placed(lambda: place(durable.set))
    await durable.wait()


async def placed(place: Callable[[], object]) -> None:
    """Have records placed, and return when they are, durable or not.

    Args:
        place: appends them to a log. It is called again while the log is full, so it must first look at what
            it has done already.

    Raises:
        LogFull: there was no room within `ROOM_WAIT`.
    """
    backoff, waited = Backoff(FIRST_PAUSE, LONGEST_PAUSE), 0
    while True:
        try:
            place()
            break
        except LogFull:
            if waited >= ROOM_WAIT:
                raise
            pause = backoff.next()
            waited += pause
            await asyncio.sleep(in_seconds(pause))
