"""A fragment store is tried when it is said: at the first start that names it, and by a journal that does."""

import asyncio
import errno
from pathlib import Path

import msgspec
import pytest

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import JournalName
from broadsheet.errors import AlreadyExists, ConfigError, StoreUnhealthy
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.runtime.disk import LocalFile
from broadsheet.runtime.role import StoreNotes
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.system import LocalStores
from simulator.disk import SimDisk
from tests.cli.processes import broadsheet
from tests.journal.crash_histories import JOURNALS, NAME, Shelf, running
from tests.journal.test_store_down import SPEC, Flaky

SOON = msgspec.structs.replace(JOURNALS, listing_wait=Duration(50 * MILLISECOND))
OTHER = "file:///other/"


class New(StoreNotes):
    """A node that has never used one of its stores, or any."""

    def __init__(self, only: str = "") -> None:
        self.only = only

    def is_known(self, url: str) -> bool:
        return url != (self.only or url)


@pytest.mark.parametrize("how", ["down", "hangs"])
async def test_a_start_refuses_a_store_that_never_answered_and_goes_on_with_one_that_did(how: str) -> None:
    """journals.20 is for a store that was there: a mistyped one was told when the disk was full."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    shelf.is_down, shelf.hangs = how == "down", asyncio.Event() if how == "hangs" else None
    said = "the store is down" if how == "down" else r"does not answer within 0\.05 s"
    with pytest.raises(ConfigError, match=rf"journals\.store 'file:///fragments/' cannot be used: .*{said}"):
        async with running(disk, shelf, seed=1, crashes=crashes, config=SOON, store_notes=New()):
            pass

    async with running(disk, shelf, seed=2, crashes=crashes, config=SOON) as node:
        await node.broker.create(SPEC)
        assert (await node.broker.replica(NAME)).end == 0
    assert not crashes


async def test_only_stores_that_are_new_are_asked_at_a_start() -> None:
    """An old store that is down beside a new one keeps no node from its start; the new one is named."""

    class Two(Flaky):
        other = Flaky(None, {})

        def at(self, url: str) -> Shelf:
            return self.other if url == OTHER else self

    shelf = Two(None, {})
    shelf.is_down = True
    config = msgspec.structs.replace(SOON, stores=(OTHER,))
    async with running(SimDisk(), shelf, seed=1, crashes=[], config=config, store_notes=New(OTHER)):
        pass
    shelf.other.is_down = True
    with pytest.raises(ConfigError, match=rf"journals\.stores '{OTHER}' cannot be used"):
        async with running(SimDisk(), shelf, seed=1, crashes=[], config=config, store_notes=New(OTHER)):
            pass


@pytest.mark.parametrize(
    ("url", "why"), [("file:///dev/null/x/", "Not a directory"), ("file:///proc/nothing/", "No such file")]
)
async def test_a_path_that_cannot_be_a_directory_is_refused_at_each_start(
    tmp_path: Path, url: str, why: str
) -> None:
    """A refused start does not make the store a known one."""
    config = msgspec.structs.replace(SOON, store=url)
    for _ in range(2):
        shelf, stores = Shelf(None, {}), LocalStores(tmp_path / "fragments", Syncs())
        shelf.at = stores  # type: ignore[assignment, method-assign]  # As a node has it.
        with pytest.raises(ConfigError, match=f"cannot be used: .*{why}.*Mend that, or name another store"):
            async with running(SimDisk(), shelf, seed=1, crashes=[], config=config, store_notes=stores):
                pass


async def test_a_store_that_can_only_be_read_is_not_opened_as_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists what it has, so only a write shows that no fragment would ever be taken."""
    own, url = tmp_path / "data" / "fragments", f"file://{tmp_path}/store/"
    stores = LocalStores(own, Syncs())
    write_at = LocalFile.write_at

    def refuse(self: LocalFile, _at: int, _parts: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", self.name)

    monkeypatch.setattr(LocalFile, "write_at", refuse)
    with pytest.raises(OSError, match="Read-only"):
        await stores(url).list("")
    assert not stores.is_known(url)
    assert [*(tmp_path / "store" / ".partial").iterdir()] == []

    monkeypatch.setattr(LocalFile, "write_at", write_at)
    (tmp_path / "data").mkdir()
    assert await stores(url).list("") == []
    assert stores.is_known(url)
    monkeypatch.setattr(LocalFile, "write_at", refuse)
    again = LocalStores(own, Syncs())
    assert await again(url).list("") == []  # Once known, what it has is served.


async def test_a_journal_is_not_made_in_a_store_that_cannot_be_used() -> None:
    """It was made, and every reader of what it stored was refused; one that exists is found all the same."""
    crashes: list[BaseException] = []
    config = msgspec.structs.replace(SOON, stores=(OTHER,))
    spec = JournalSpec(name=JournalName("tried/a"), fragment=FragmentSpec(store=OTHER))
    disk, shelf = SimDisk(), Flaky(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes, config=config) as node:
        shelf.is_down = True
        with pytest.raises(StoreUnhealthy, match=r"the store is down; no journal was made"):
            await node.broker.create(spec)
        assert node.broker.count == 0
        shelf.is_down, shelf.hangs = False, asyncio.Event()
        time = node.broker._context.time
        with pytest.raises(StoreUnhealthy, match="does not answer within 0 s"):
            await node.broker.create(spec, by=time.now())  # The caller gives up now.

        shelf.hangs.set()
        assert (await node.broker.create(spec)).spec == spec
        shelf.hangs, shelf.is_down = None, True
        with pytest.raises(AlreadyExists):
            await node.broker.create(spec)
        await node.broker.create(SPEC)  # It names no store: settings and starts answer for the node's own.
    assert not crashes


def test_up_says_which_setting_names_a_store_that_cannot_be(tmp_path: Path) -> None:
    """It said ready, and fragments stayed on the node's disk until it was full."""
    settings = {"BROADSHEET_JOURNALS__STORE": "file:///dev/null/fragments/"}
    done = broadsheet("up", "--data-dir", tmp_path / "c", "--any-port", "--detach", **settings)

    assert done.returncode != 0
    assert "journals.store 'file:///dev/null/fragments/' cannot be used" in done.stderr
