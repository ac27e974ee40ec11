"""A fragment store is tried when it is said: at the first start that names it, and by a journal that does."""

import asyncio
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import broadsheet
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import JournalName
from broadsheet.errors import AlreadyExists, ConfigError, StoreUnhealthy
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.runtime.disk import LocalFile
from broadsheet.runtime.role import StoreNotes
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.system import LocalStores
from simulator.disk import SimDisk
from tests.cli.processes import broadsheet as command
from tests.journal.crash_histories import JOURNALS, NAME, Shelf, running
from tests.journal.node_process import NodeProcess
from tests.journal.test_store_down import SECONDS_MAX, SPEC, Flaky
from tests.support.faultfs import Rule, mounted

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
    done = command("up", "--data-dir", tmp_path / "c", "--any-port", "--detach", **settings)

    assert done.returncode != 0
    assert "journals.store 'file:///dev/null/fragments/' cannot be used" in done.stderr


class Moves:
    """A real node whose default store is changed from start to start."""

    def __init__(self, root: Path) -> None:
        self.root, self.node = root, NodeProcess(root)
        self._config = (root / "node.toml").read_text()

    async def starts(self, store: str, before: str = "") -> bool:
        """Start it with this default, and these former ones."""
        text = self._config.replace("[journals]", f"[journals]\nstore = {store!r}\n{before}")
        (self.root / "node.toml").write_text(text)
        has_started = await self.node.start()
        assert has_started or await self.node.died()
        return has_started

    def log(self) -> str:
        return (self.root / "node.log").read_text()


@pytest.fixture
def moves(tmp_path: Path) -> Iterator[Moves]:
    found = Moves(tmp_path)
    yield found
    found.node.kill()


async def stored(node: NodeProcess, *, is_new: bool) -> bytes:
    """What a reader is shown of a journal that names no store, whose first fragment only its store has."""
    async with asyncio.timeout(SECONDS_MAX), broadsheet.connect(node.address) as client:
        if is_new:
            await client.journals.create("moved/a", fragment_length=1 << 10)
            for content in (b"1" * 2000, b"2" * 2000):
                await client.journals.append("moved/a", content)
        spools = node.root / "data" / "journals" / "spool"
        while len([*spools.glob("*/*.spool")]) > 1:  # noqa: ASYNC110 - another process removes it.
            await asyncio.sleep(0.01)
        return b"".join([chunk.data async for chunk in client.journals.read("moved/a")])


CONTENT = b"1" * 2000 + b"2" * 2000


async def test_a_start_with_another_default_store_is_refused_until_its_content_is_there(moves: Moves) -> None:
    """A shell without the variable: acknowledged bytes were `Trimmed` for readers, and nothing said why."""
    one, other = (f"file://{moves.root}/{name}/" for name in ("one", "other"))
    assert await moves.starts(one), moves.log()
    assert await stored(moves.node, is_new=True) == CONTENT
    moves.node.kill()

    for store in ("", other):
        assert not await moves.starts(store)
        assert f"and was {one!r} when the node last ran: 1 journals" in moves.log()
    assert "journals.store is '' (`fragments/` in the data directory)" in moves.log()
    assert not await moves.starts(other, f"stores_before = [{other!r}]"), "it is not the former one"
    shutil.copytree(moves.root / "one", moves.root / "other", dirs_exist_ok=True)
    assert await moves.starts(other, f"stores_before = [{one!r}]"), moves.log()
    assert await stored(moves.node, is_new=False) == CONTENT
    moves.node.kill()
    assert await moves.starts(other), "once it was said, it need not be said again"
    moves.node.kill()
    assert not await moves.starts(one, f"stores_before = [{one!r}]"), "what was said then is not said of this"


async def test_the_same_directory_by_another_url_is_the_same_default_store(moves: Moves) -> None:
    """Also the node's own, by its path: nothing has to be copied, and nothing to be said."""
    assert await moves.starts(""), moves.log()
    assert await stored(moves.node, is_new=True) == CONTENT
    moves.node.kill()

    assert await moves.starts(f"file://{moves.root}/data/../data/fragments/"), moves.log()
    assert await stored(moves.node, is_new=False) == CONTENT


async def test_a_default_store_that_no_journal_has_fragments_in_may_change(moves: Moves) -> None:
    """An operator who corrects the setting before the first journal is not asked to copy nothing."""
    assert await moves.starts(""), moves.log()
    moves.node.kill()
    assert await moves.starts(f"file://{moves.root}/one/"), moves.log()
    assert await stored(moves.node, is_new=True) == CONTENT
    moves.node.kill()
    assert not await moves.starts("")


def test_a_kept_default_survives_a_write_that_was_cut_off(tmp_path: Path) -> None:
    """Half a URL would be another one, and refuse every start."""
    (tmp_path / "data").mkdir()
    stores = LocalStores(tmp_path / "data" / "fragments", Syncs())
    assert stores.default() is None
    stores.keep_default("file:///one/")
    (tmp_path / "data" / "stores" / "default.new").write_text("file:///o")

    assert stores.default() == "file:///one/"
    stores.keep_default("")
    assert LocalStores(tmp_path / "data" / "fragments", Syncs()).default() == ""


@pytest.mark.parametrize("place", range(0, 25, 3))
def test_a_kept_default_that_is_damaged_is_told_and_taken_for_no_other(tmp_path: Path, place: int) -> None:
    """One flipped bit would be another URL, or no text at all; and the way out is to remove the file."""
    (tmp_path / "data").mkdir()
    stores, file = LocalStores(tmp_path / "data" / "fragments", Syncs()), tmp_path / "data/stores/default"
    stores.keep_default("file:///first/x/")
    content = bytearray(file.read_bytes())
    for bit in (0x01, 0x80):
        file.write_bytes(content[:place] + bytes((content[place] ^ bit,)) + content[place + 1 :])
        with pytest.raises(ConfigError, match=f"{file} cannot be read: .*remove the file"):
            stores.default()
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match="remove the file"):
        stores.default()
    file.unlink()
    assert stores.default() is None


async def test_a_start_on_a_full_disk_keeps_the_default_later() -> None:
    """A node starts on a full disk (node.11); one whose default was changed must not forget which it has."""
    full = OSError(errno.ENOSPC, "No space left on device")

    class Full(StoreNotes):
        kept: str | None = None

        def default(self) -> str | None:
            return self.kept

        def keep_default(self, _url: str) -> None:
            raise full

    notes = Full()
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=[], store_notes=notes):
        pass
    notes.kept = "file:///other/"
    with pytest.raises(OSError, match="No space"):
        async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=[], store_notes=notes):
            pass


@pytest.mark.needs_fuse
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Rule("mkdir", delay_ms=6_000, times=1), "does not answer within 0.3 s"),
        (Rule("create", error="EROFS"), "Read-only file system"),
        (Rule("write", error="ENOSPC"), "No space left on device"),
        (Rule("mkdir", error="EACCES"), "Permission denied"),
    ],
)
async def test_a_node_with_a_new_store_starts_when_the_store_can_be_used_and_not_before(
    moves: Moves, fault: Rule, said: str
) -> None:
    """On a real file system: one that hangs, is read-only, is full, or is another user's."""
    with mounted(moves.root / "nfs") as faults:
        faults.set(fault)
        store, wait = f"file://{faults.path}/store/", 'listing_wait = "300ms"'
        began = asyncio.get_running_loop().time()

        assert not await moves.starts(store, wait)
        assert asyncio.get_running_loop().time() - began < SECONDS_MAX
        assert f"journals.store {store!r} cannot be used: " in moves.log()
        assert said in moves.log()

        faults.set()
        assert await moves.starts(store), moves.log()
        assert await stored(moves.node, is_new=True) == CONTENT
        moves.node.kill()
        faults.set(fault)
        assert await moves.starts(store, wait), "it is known now, and may be as it likes"
        moves.node.kill()
