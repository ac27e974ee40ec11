"""What the local object store keeps beyond its port: crashes, other processes, its confinement."""

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broadsheet.base.names import PARTIAL_SEGMENT as PARTIAL
from broadsheet.errors import ConfigError, Corrupt
from broadsheet.runtime.disk import LocalDisk, LocalFile
from broadsheet.runtime.objects import PARTIAL_AGE_MAX_S, LocalObjects, local_root
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.system import LocalStores


async def test_an_object_is_a_file_of_its_name(tmp_path: Path) -> None:
    """Gazette's tools, and any other, read fragments from the directory."""
    objects = LocalObjects(tmp_path)
    await objects.put_if_absent("journal/part=1/fragment.gz", (b"content",))

    assert (tmp_path / "journal/part=1/fragment.gz").read_bytes() == b"content"
    assert list((tmp_path / PARTIAL).iterdir()) == []
    objects.close()


async def test_readers_do_not_wait_for_objects_that_are_being_put(tmp_path: Path) -> None:
    """Two uploads had both threads: while they compressed 64 MiB each, every read of the store took 5 s."""
    objects, gate = LocalObjects(tmp_path), threading.Event()
    await objects.put_if_absent("d/one", (b"one",))

    def slow() -> Iterator[bytes]:
        assert gate.wait(30)
        yield b"slow"

    puts = [asyncio.ensure_future(objects.put_if_absent(f"d/slow-{n}", slow())) for n in range(4)]
    try:
        assert await asyncio.wait_for(objects.get("d/one"), 10) == b"one"
        assert [each.name for each in await asyncio.wait_for(objects.list("d/"), 10)] == ["d/one"]
    finally:
        gate.set()
    assert await asyncio.gather(*puts) == [True] * 4
    objects.close()


async def test_a_store_that_cannot_be_made_has_not_answered() -> None:
    """Its error was taken for the answer that an object is absent, and the store for one that works."""
    objects = LocalObjects(Path("/proc/nothing"))
    for call in (objects.list(""), objects.get("a/b"), objects.delete("a/b")):
        with pytest.raises(OSError, match="cannot be made: No such file") as caught:
            await call
        assert not isinstance(caught.value, FileNotFoundError)
    objects.close()


async def test_two_processes_may_share_a_store(tmp_path: Path) -> None:
    """Every node of a machine may use one directory."""
    one, two = LocalObjects(tmp_path), LocalObjects(tmp_path)
    assert await one.put_if_absent("d/name", (b"one",))
    assert not await two.put_if_absent("d/name", (b"two",))

    assert await two.get("d/name") == b"one"
    one.close()
    two.close()


@pytest.mark.parametrize("removed", ["journal", "journal/part", PARTIAL])
async def test_a_directory_that_somebody_removed_is_made_again(tmp_path: Path, removed: str) -> None:
    """Each later put below it failed until a restart: uploads of its journals, or of all, stood still."""
    objects = LocalObjects(tmp_path)
    assert await objects.put_if_absent("journal/part/first", (b"1",))
    shutil.rmtree(tmp_path / removed)

    assert await objects.put_if_absent("journal/part/second", (b"2",))
    assert await objects.get("journal/part/second") == b"2"
    assert list((tmp_path / PARTIAL).iterdir()) == []
    objects.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_store_whose_directory_was_removed_is_down_until_it_is_put_back(tmp_path: Path) -> None:
    """It listed nothing, as if it were empty, and each put failed until a restart, also when it was back."""
    root, copy, before = tmp_path / "store", tmp_path / "copy", descriptors()
    objects = LocalObjects(root)
    await objects.put_if_absent("journal/first", (b"1",))
    shutil.copytree(root, copy)

    async def refused(call: Awaitable[object]) -> None:
        with pytest.raises(OSError, match="the store's directory was removed") as caught:
            await call
        assert caught.value.errno == errno.ESTALE

    for is_empty in (False, True):  # Gone, and then empty: another directory.
        root.mkdir() if is_empty else shutil.rmtree(root)
        await refused(objects.list(""))
        await refused(objects.get("journal/first"))
        await refused(objects.put_if_absent("journal/second", (b"2",)))
        await refused(objects.delete("journal/first"))
    root.rmdir()
    copy.rename(root)

    assert [found.name for found in await objects.list("")] == ["journal/first"]
    assert await objects.get("journal/first") == b"1"
    assert await objects.put_if_absent("journal/second", (b"2",))
    assert (root / "journal/second").read_bytes() == b"2"
    objects.close()
    assert descriptors() == before, "also the removed directory is closed"


async def test_the_mark_of_a_store_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the store's file system may not be mounted: an empty store was made in its place."""
    order = list[str]()
    mark = tmp_path / "stores" / "mark"
    touch, sync = Path.touch, Syncs.sync_directory

    def touched(self: Path) -> None:
        order.append(f"make {self.name}")
        touch(self)

    def synced(self: Syncs, fd: int, name: str) -> None:
        order.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink()}")
        sync(self, fd, name)

    monkeypatch.setattr(Path, "touch", touched)
    monkeypatch.setattr(Syncs, "sync_directory", synced)
    objects = LocalObjects(tmp_path / "store", mark=mark)
    await objects.put_if_absent("name", [b"content"])
    at = order.index("make mark")

    assert order[at - 1 : at + 2] == [f"sync {tmp_path}", "make mark", f"sync {mark.parent}"]
    objects.close()


async def test_a_store_that_hangs_while_it_is_opened_holds_nobody_who_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` is called on the loop: it waited there for the thread, and the loop stood still."""
    reached, go = threading.Event(), threading.Event()
    made: list[LocalDisk] = []

    class Hanging(LocalDisk):
        def make_dir(self, name: str) -> None:
            made.append(self)
            reached.set()
            assert go.wait(30)
            super().make_dir(name)

    monkeypatch.setattr("broadsheet.runtime.objects.LocalDisk", Hanging)
    objects = LocalObjects(tmp_path / "store")
    asked = asyncio.ensure_future(objects.get("d/name"))
    await asyncio.get_running_loop().run_in_executor(None, reached.wait, 30)
    closing = threading.Thread(target=objects.close)
    closing.start()
    closing.join(10)
    is_closed = not closing.is_alive()
    go.set()
    with pytest.raises(OSError, match="closed"):
        await asked
    closing.join()

    assert is_closed
    assert [disk.tree._fd for disk in made] == [-1]


async def test_what_a_crashed_writer_left_is_hidden_and_swept(tmp_path: Path) -> None:
    """Half an object must never be found under a name; nor fill the disk for ever."""
    (tmp_path / PARTIAL).mkdir()
    young, old = tmp_path / PARTIAL / "aa", tmp_path / PARTIAL / "bb"
    for path in (young, old):
        path.write_bytes(b"half")
    long_ago = time.time() - PARTIAL_AGE_MAX_S - 60
    os.utime(old, (long_ago, long_ago))
    objects = LocalObjects(tmp_path)

    assert list(await objects.list("")) == []
    assert young.exists(), "its writer may still live"
    assert not old.exists()
    objects.close()


def test_a_url_names_a_directory(tmp_path: Path) -> None:
    """As in journal specs."""
    assert local_root("file:///var/lib/fragments/") == Path("/var/lib/fragments")
    assert local_root(f"file://{tmp_path}/a%20b/", confined_to=tmp_path) == tmp_path / "a b"


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/",
        "s3:///base/",
        "file://host/a/",
        "file:///a",
        "file:///a/?x=1",
        "/a/",
        "file:///etc/",
        "file:///base/../etc/",
        "file:///base/%2e%2e/etc/",
    ],
)
def test_a_url_of_another_kind_or_outside_is_refused(url: str) -> None:
    """A journal's spec is written by a user; it must not choose any directory of the machine."""
    with pytest.raises(ConfigError, match="store"):
        local_root(url, confined_to=Path("/base"))


def test_a_link_does_not_lead_out_of_the_confinement(tmp_path: Path) -> None:
    """Nor does a name that only looks confined."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to("/etc")
    with pytest.raises(ConfigError, match="outside"):
        local_root(f"file://{tmp_path}/inside/link/", confined_to=tmp_path / "inside")


async def test_an_object_is_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a name with other bytes would be a damaged fragment, and the spool be gone."""
    order: list[str] = []
    sync, link, sync_dir = LocalFile.sync, os.link, LocalDisk.sync_dir

    def noted(word: str, act: Callable[..., None]) -> Callable[..., None]:
        def do(*given: Any, **more: Any) -> None:
            order.append(word)
            act(*given, **more)

        return do

    monkeypatch.setattr(LocalFile, "sync", noted("sync", sync))
    monkeypatch.setattr(os, "link", noted("link", link))
    monkeypatch.setattr(LocalDisk, "sync_dir", noted("sync the directory", sync_dir))
    objects = LocalObjects(tmp_path)
    await objects.put_if_absent("d/first", (b"content",))
    order.clear()
    await objects.put_if_absent("d/name", (b"content",))

    assert order == ["sync", "link", "sync the directory"]
    objects.close()


async def test_an_object_with_a_sector_that_cannot_be_read_is_damaged_and_the_store_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector looked like a store that is down: callers were told to try again later, for ever."""
    objects, read = LocalObjects(tmp_path), LocalFile.read_at

    def read_at(self: LocalFile, at: int, length: int) -> bytes:
        if self.name == "a/bad" and at < 4096:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, at, length)

    for name in ("a/bad", "a/good"):
        assert await objects.put_if_absent(name, (b"x" * 5_000,))
    monkeypatch.setattr(LocalFile, "read_at", read_at)
    with pytest.raises(Corrupt, match=r"the disk cannot read \[0, 10\) of a/bad"):
        await objects.get("a/bad", 0, 10)
    assert await objects.get("a/bad", 4096) == await objects.get("a/good", 4096) == b"x" * 904
    assert not await objects.put_if_absent("a/bad", (b"x" * 5_000,)), "its bytes are not written over"
    with pytest.raises(Corrupt):
        await objects.get("a/bad")
    monkeypatch.setattr(LocalFile, "size", lambda self: self.read_at(0, 1) and 0)
    with pytest.raises(Corrupt, match="the disk cannot read"):
        await objects.get("a/bad")  # Not even its length.
    objects.close()


async def test_one_directory_is_one_store(tmp_path: Path) -> None:
    """Two of them would not know of each other's failed syncs, and hold twice the threads."""
    stores = LocalStores(tmp_path / "own", Syncs())
    one, again, own = stores(f"file://{tmp_path}/a/"), stores(f"file://{tmp_path}/a/"), stores("")

    assert one is again
    assert own is not one
    assert own is stores("")
    for store in (one, own):
        assert isinstance(store, LocalObjects)
        store.close()
