"""Rereading: a read that fails with EIO is asked again before anybody believes it (ADR 0198).

All times are nanoseconds. A path that fails over, a virtual disk that is plugged in again, a controller that
is reset: each answers EIO for about a second, and every byte is still there. So a read in a thread is asked
again for up to `PATIENCE`. If it fails for so long, the disk is asked elsewhere:
    ASKED --EIO--> ASKED AGAIN --it reads--> its bytes
                               --PATIENCE--> the disk reads elsewhere: EIO, this sector is bad
                                             the disk reads nothing:   DISK_AWAY, nothing is known of it
All reads of a disk share one wait. Once it was in vain, EIO is believed without another wait until a read
that had failed succeeds, or until none has failed for `CALM`. So a start waits once, however many sectors are
bad. A read on the loop is not asked again: whoever decides by it asks in a thread first.
This module does not know files, and it does not know what a reader does with a bad sector.
"""

import errno
from collections.abc import Callable, Iterable
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.base.time import MILLISECOND, SECOND

PATIENCE: Final = 5 * SECOND
"""How long a read is asked again: longer than a failover takes."""
CALM: Final = 60 * SECOND
"""How long no read may fail before a failure is waited for again."""
FIRST_PAUSE: Final = 5 * MILLISECOND
PAUSE_MAX: Final = 250 * MILLISECOND
DISK_AWAY: Final = errno.ENODEV
"""The error of a read if the disk reads nothing at all. Whoever takes EIO for damage must not take this."""


class Rereading:
    """How long one disk has failed, and whether it is still waited for."""

    def __init__(self, *, now: Callable[[], int], pause: Callable[[int], bool]) -> None:
        """Begin with a disk that has not failed.

        Args:
            pause: waits so many nanoseconds, perhaps 0; or returns False at once: its caller is the loop.
        """
        self._now, self._pause = now, pause
        self._failed_at: int | None = None
        """When a read failed last; None if the last one that had failed was read."""
        self._until = 0
        """Until when the disk is waited for; `PATIENCE` after the first failure that came in a calm."""

    def again(
        self, error: OSError, ask: Callable[[], bytes], elsewhere: Iterable[Callable[[], object]]
    ) -> bytes:
        """The result of the read `ask`, which has failed with `error`, an EIO.

        Args:
            elsewhere: reads of other places of the disk, each past the page cache.

        Raises:
            OSError: EIO: the place cannot be read. DISK_AWAY: nor can any other.
        """
        until = self._wait_end()
        pause = FIRST_PAUSE
        while self._now() < until and self._pause(pause):
            self._until, self._failed_at = until, self._now()
            if (content := _asked(ask)) is not None:
                self._failed_at = None
                return content
            pause = min(2 * pause, PAUSE_MAX)
        if not self._pause(0):
            raise error
        self._until, self._failed_at = until, self._now()
        if _is_silent(elsewhere):
            text = "the disk answers no read; nothing was changed: try again, or start again, when it does"
            raise OSError(DISK_AWAY, text, error.filename) from error
        if (content := _asked(ask)) is not None:  # The outage may have ended between the last two reads.
            self._failed_at = None
            return content
        raise error

    def _wait_end(self) -> int:
        now = self._now()
        is_calm = self._failed_at is None or now > self._failed_at + CALM
        return now + PATIENCE if is_calm else self._until


def _asked(ask: Callable[[], bytes]) -> bytes | None:
    hit("disk.read_again")
    try:
        return ask()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None


def _is_silent(places: Iterable[Callable[[], object]]) -> bool:
    """Whether all reads of `places` fail; False if there is none, because then nothing shows it."""
    failed = False
    for read in places:
        try:
            read()
        except OSError:
            failed = True
        else:
            return False
    return failed
