"""What a fragment store answered lately decides whether its node can serve (ADR 0203)."""

import asyncio
import errno
from collections.abc import Iterable

import pytest

from broadsheet.base.time import Duration
from broadsheet.base.types import Buffer
from broadsheet.journal.readiness import troubles
from broadsheet.journal.store_health import FAULT_AGE_MAX, SILENCE_MAX, StoreTimes, WatchedStore
from simulator.disk import SimDisk
from tests.doors.test_status import HandTime
from tests.journal.crash_histories import NAME, Shelf, Stored, running
from tests.journal.test_store_down import SPEC


class Moody(Shelf):
    """A store whose next answers are set by hand."""

    error: OSError | None = None
    hangs: asyncio.Event | None = None

    async def _answer(self) -> None:
        if self.hangs is not None:
            await self.hangs.wait()
        if self.error is not None:
            raise self.error

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        await self._answer()
        return await super().put_if_absent(name, body)

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        await self._answer()
        return await super().get(name, begin, end)

    async def list(self, prefix: str) -> list[Stored]:
        await self._answer()
        return [*await super().list(prefix)]


def stale() -> OSError:
    return OSError(errno.ESTALE, "Stale file handle", "/srv/store/users-journal/")


def moody() -> tuple[Moody, WatchedStore, HandTime]:
    shelf, time = Moody(None, {}), HandTime()
    return shelf, WatchedStore(shelf, time, StoreTimes(), url="file:///srv/store/"), time


async def test_a_store_is_silent_from_an_error_to_the_next_answer() -> None:
    """The text names no file: its directories are named after journals, and the page needs no token."""
    shelf, store, _ = moody()
    shelf.error = stale()
    await store.probe()
    assert store.silence == "Stale file handle"
    assert "/srv/store/users-journal/" in store.detail
    assert store.error_count == 1

    shelf.error = None
    await store.probe()
    assert store.silence == ""


async def test_an_object_that_is_absent_is_an_answer() -> None:
    """A new journal has no producer index in the store."""
    shelf, store, _ = moody()
    shelf.error = stale()
    await store.probe()
    shelf.error = FileNotFoundError(errno.ENOENT, "No such file or directory")

    with pytest.raises(FileNotFoundError):
        await store.get("a/b")

    assert (store.silence, store.error_count) == ("", 1)


async def test_a_listing_that_is_answered_does_not_hide_that_nothing_is_taken() -> None:
    """A store that is full can be read: its node goes on, and says what it waits for."""
    shelf, store, time = moody()
    shelf.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        await store.put_if_absent("a/b", [b"x"])
    shelf.error = None
    await store.probe()
    assert (store.silence, store.refusal) == ("", "No space left on device")

    time.at += FAULT_AGE_MAX + 1
    assert store.refusal == "", "perhaps nobody stores anything any more"


async def test_a_trial_tells_why_a_store_cannot_be_used_now() -> None:
    """A full store lists what it has, and takes no fragment: a journal that is made there waits for ever."""
    shelf, store, time = moody()
    assert await store.trial(SILENCE_MAX) == ""
    shelf.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        await store.put_if_absent("a/b", [b"x"])
    shelf.error = None
    assert "No space left on device" in await store.trial(SILENCE_MAX)

    time.at += FAULT_AGE_MAX + 1
    assert await store.trial(SILENCE_MAX) == "", "nobody has tried since"
    shelf.error = stale()
    assert "Stale file handle" in await store.trial(SILENCE_MAX)
    shelf.error, shelf.hangs = None, asyncio.Event()
    assert await store.trial(Duration(1_000_000)) == "it does not answer within 0.001 s"
    shelf.hangs.set()
    assert await store.trial(SILENCE_MAX) == "", "the call that hung is its answer"


async def test_a_store_that_owes_an_answer_for_long_is_silent_and_is_not_asked_twice() -> None:
    """A network directory hangs for minutes: each probe would leave another thread in it."""
    shelf, store, time = moody()
    shelf.hangs = asyncio.Event()
    probing = asyncio.ensure_future(store.probe())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.silence == ""

    time.at += SILENCE_MAX + 1
    assert store.silence.startswith("it owes an answer")
    again = asyncio.ensure_future(store.probe())
    await asyncio.sleep(0)
    assert len(store._asked) == 1
    shelf.hangs.set()
    await asyncio.gather(probing, again)
    assert store.silence == ""


async def test_a_stopped_journal_is_a_warning_and_a_full_disk_is_not() -> None:
    """The other journals of the node serve."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Moody(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=True) as node:
        await node.broker.create(SPEC)
        replica = await node.broker.replica(NAME)
        context = replica.context
        assert troubles(context, node.broker) == []

        replica.stop("its bytes are lost")
        (found,) = troubles(context, node.broker)
        assert (found.cause, found.is_warning) == ("journals_stopped", True)
        assert "1 of 1 journals" in found.text

        context.troubles.lacked_room(context.time.now())
        assert [(each.cause, each.is_warning) for each in troubles(context, node.broker)] == [
            ("disk_full", False),
            ("journals_stopped", True),
        ]
    assert not crashes
