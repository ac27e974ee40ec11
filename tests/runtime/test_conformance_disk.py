"""What every disk keeps, whoever made it: the words of `ports.Disk` and `ports.File`, one by one."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broadsheet.errors import InvalidArgument
from broadsheet.ports import Disk
from tests.runtime.conformance import DISKS, Implementation, over


@over(DISKS)
def test_parts_are_written_back_to_back_at_their_position(
    implementation: Implementation, tmp_path: Path
) -> None:
    """A log writes a batch as many parts; a gap or a swap between them would be damage."""

    async def story(disk: Disk) -> None:
        file = disk.open("log", create=True)
        file.write_at(4, (b"one", bytearray(b"two"), b"", memoryview(b"three")))

        assert file.read_at(0, 100) == b"\0\0\0\0onetwothree"
        assert file.read_at(5, 3) == b"net"
        assert file.read_at(15, 10) == b""
        assert file.read_at(100, 10) == b""
        assert file.size() == 15
        assert file.name == "log"
        file.close()
        file.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_more_parts_than_one_call_takes_all_arrive(implementation: Implementation, tmp_path: Path) -> None:
    """The kernel takes 1,024 parts a call; a batch may have more."""

    async def story(disk: Disk) -> None:
        file = disk.open("log", create=True)
        parts = [number.to_bytes(4, "little") for number in range(5000)]
        await file.persist(1, parts)

        assert file.read_at(1, 30_000) == b"".join(parts)
        file.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_overwriting_keeps_what_stands_around(implementation: Implementation, tmp_path: Path) -> None:
    """Recycled segments are overwritten in place."""

    async def story(disk: Disk) -> None:
        file = disk.open("log", create=True)
        file.write_at(0, (b"abcdefgh",))
        await file.persist(2, (b"CD",))
        await file.flush()

        assert file.read_at(0, 8) == b"abCDefgh"
        file.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_truncate_cuts_and_extends_with_zeros(implementation: Implementation, tmp_path: Path) -> None:
    """What was cut must not come back when the file grows again."""

    async def story(disk: Disk) -> None:
        file = disk.open("log", create=True)
        file.write_at(0, (b"abcdefgh",))
        file.truncate(3)
        file.truncate(6)
        file.sync()

        assert file.read_at(0, 8) == b"abc\0\0\0"
        assert file.size() == 6
        file.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_a_reservation_changes_neither_length_nor_content(
    implementation: Implementation, tmp_path: Path
) -> None:
    """A start takes a spool's length for its content: blocks ahead of the end must not count (ADR 0192)."""

    async def story(disk: Disk) -> None:
        file = disk.open("spool", create=True)
        file.write_at(0, (b"abc",))
        file.reserve(3, 3_000_000)

        assert file.size() == 3
        assert file.read_at(0, 100) == b"abc"
        file.write_at(3, (b"def",))
        file.truncate(6)
        assert file.read_at(0, 100) == b"abcdef"
        file.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_allocate_zero_fills_and_never_shrinks(implementation: Implementation, tmp_path: Path) -> None:
    """A new segment reads as zeros, which no frame header is."""

    async def story(disk: Disk) -> None:
        file = disk.open("segment", create=True)
        file.write_at(0, (b"x" * 10,))
        file.allocate(3_000_000)

        assert file.size() == 3_000_000
        assert file.read_at(0, 3_000_000) == bytes(3_000_000)
        file.allocate(10)
        assert file.size() == 3_000_000
        file.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_what_is_written_early_or_need_not_stay_in_memory_is_read_as_before(
    implementation: Implementation, tmp_path: Path
) -> None:
    """These are hints: synced or not, no byte changes."""

    async def story(disk: Disk) -> None:
        file = disk.open("spool", create=True)
        file.write_at(0, (b"synced" * 10_000,))
        await file.flush()
        file.write_at(60_000, (b"not yet" * 10_000,))
        await file.write_back(50_000, 70_000)
        await file.write_back(100_000, 200_000)  # It ends behind the file.
        await file.uncache(0, 100_000)

        assert file.read_at(0, 130_000) == b"synced" * 10_000 + b"not yet" * 10_000
        file.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_open_says_whether_a_file_is_there(implementation: Implementation, tmp_path: Path) -> None:
    """A log that is opened where it should be created, or the other way round, is a lost log."""

    async def story(disk: Disk) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open("log")
        assert not disk.exists("log")
        disk.open("log", create=True, exclusive=True).close()
        with pytest.raises(FileExistsError):
            disk.open("log", create=True, exclusive=True)
        disk.open("log", create=True).close()

        assert disk.exists("log")
        with pytest.raises(FileNotFoundError):
            disk.open("absent/log", create=True)

    implementation.run(story, tmp_path)


@over(DISKS)
def test_two_handles_of_a_file_see_the_same_bytes(implementation: Implementation, tmp_path: Path) -> None:
    """A reader opens the spool that a writer appends to."""

    async def story(disk: Disk) -> None:
        writer = disk.open("spool", create=True)
        reader = disk.open("spool")
        writer.write_at(0, (b"content",))

        assert reader.read_at(0, 100) == b"content"
        writer.close()
        assert reader.read_at(3, 100) == b"tent"
        reader.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_directories_are_made_with_their_parents_and_listed_sorted(
    implementation: Implementation, tmp_path: Path
) -> None:
    """Recovery walks what `list` says, in an order that never depends on the kernel."""

    async def story(disk: Disk) -> None:
        disk.make_dir("a/b/c")
        disk.make_dir("a/b")
        for name in ("a/z", "a/10", "a/9"):
            disk.open(name, create=True).close()
        disk.sync_dir("a")
        disk.sync_dir("")

        assert disk.list("a") == ["10", "9", "b", "z"]
        assert disk.list("") == ["a"]
        assert disk.list("absent") == []
        assert disk.list("a/b/c") == []
        assert disk.exists("a/b/c")

    implementation.run(story, tmp_path)


@over(DISKS)
def test_a_directory_is_removed_only_when_it_is_empty(implementation: Implementation, tmp_path: Path) -> None:
    """A deleted journal leaves no directory; one that still has a file keeps it."""

    async def story(disk: Disk) -> None:
        disk.make_dir("a/b")
        disk.open("a/b/file", create=True).close()

        with pytest.raises(OSError, match="not empty"):
            disk.remove_dir("a/b")
        disk.remove("a/b/file")
        disk.remove_dir("a/b")
        disk.sync_dir("a")
        assert not disk.exists("a/b")
        with pytest.raises(FileNotFoundError):
            disk.remove_dir("a/b")

    implementation.run(story, tmp_path)


@over(DISKS)
def test_rename_replaces_its_target(implementation: Implementation, tmp_path: Path) -> None:
    """A document is replaced whole: written beside, renamed over."""

    async def story(disk: Disk) -> None:
        disk.make_dir("d")
        for name in ("old", "d/new"):
            file = disk.open(name, create=True)
            file.write_at(0, (name.encode(),))
            file.sync()
            file.close()
        disk.rename("old", "d/new")

        assert disk.list("") == ["d"]
        file = disk.open("d/new")
        assert file.read_at(0, 100) == b"old"
        file.close()
        with pytest.raises(FileNotFoundError):
            disk.rename("old", "d/new")

    implementation.run(story, tmp_path)


@over(DISKS)
def test_remove_takes_the_name_and_says_when_there_is_none(
    implementation: Implementation, tmp_path: Path
) -> None:
    """Trimming removes segments."""

    async def story(disk: Disk) -> None:
        disk.open("segment", create=True).close()
        disk.remove("segment")

        assert not disk.exists("segment")
        with pytest.raises(FileNotFoundError):
            disk.remove("segment")

    implementation.run(story, tmp_path)


@over(DISKS)
def test_a_lock_has_one_holder(implementation: Implementation, tmp_path: Path) -> None:
    """Two processes on one data directory would each overwrite what the other acknowledged (node.3)."""

    async def story(disk: Disk) -> None:
        lock = disk.lock("LOCK")
        with pytest.raises(BlockingIOError):
            disk.lock("LOCK")
        lock.release()
        lock.release()
        again = disk.lock("LOCK")
        with pytest.raises(BlockingIOError):
            disk.lock("LOCK")
        again.release()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_run_returns_or_raises_what_the_work_does(implementation: Implementation, tmp_path: Path) -> None:
    """Work off the loop must not lose its errors there."""

    async def story(disk: Disk) -> None:
        assert await disk.run(lambda: 42) == 42
        with pytest.raises(ZeroDivisionError):
            await disk.run(lambda: 1 // 0)

    implementation.run(story, tmp_path)


@over(DISKS)
def test_persists_of_several_files_go_on_side_by_side(implementation: Implementation, tmp_path: Path) -> None:
    """Each role has a log of its own, and none waits for another's."""

    async def story(disk: Disk) -> None:
        files = []
        for number in range(12):
            disk.make_dir(f"role{number}")
            files.append(disk.open(f"role{number}/log", create=True))
        await asyncio.gather(*(file.persist(0, (file.name.encode(),)) for file in files))

        assert [file.read_at(0, 100) for file in files] == [file.name.encode() for file in files]
        for file in files:
            file.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_a_cancelled_persist_has_ended_when_its_caller_goes_on(
    implementation: Implementation, tmp_path: Path
) -> None:
    """The caller reuses its buffers then: bytes that are still on their way would be other bytes."""

    async def story(disk: Disk) -> None:
        file = disk.open("log", create=True)
        slab = bytearray(b"a" * 2_000_000)
        task = asyncio.ensure_future(file.persist(0, (memoryview(slab),)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        slab[:] = b"b" * len(slab)

        assert task.cancelled()
        assert file.read_at(0, len(slab)) == b"a" * len(slab)
        file.close()

    implementation.run(story, tmp_path)


@over(DISKS)
def test_cancelled_work_has_ended_when_its_caller_goes_on(
    implementation: Implementation, tmp_path: Path
) -> None:
    """The caller frees its lock then: a second writer beside the first would leave neither's file."""

    async def story(disk: Disk) -> None:
        done: list[str] = []
        task = asyncio.ensure_future(disk.run(lambda: done.append("work")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))

        assert task.cancelled()
        assert done == ["work"]

    implementation.run(story, tmp_path)


@over(DISKS)
def test_free_space_is_a_count_of_bytes(implementation: Implementation, tmp_path: Path) -> None:
    """Appends are refused at a reserve of it."""

    async def story(disk: Disk) -> None:
        assert disk.free() > 1 << 20
        assert disk.free() <= disk.size()

    implementation.run(story, tmp_path)


@over(DISKS, trait="real")
@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../out", "a//b", ".", "a\0b", "", "x" * 300])
def test_a_name_that_leads_outside_is_refused(
    implementation: Implementation, tmp_path: Path, name: str
) -> None:
    """Names may come from users; none reaches a file that is not ours."""

    async def story(disk: Disk) -> None:
        attempts: list[Callable[[], object]] = [
            lambda: disk.open(name, create=True),
            lambda: disk.remove(name),
            lambda: disk.rename("log", name),
            lambda: disk.make_dir(name),
        ]
        for attempt in attempts:
            with pytest.raises(InvalidArgument, match=r"file name"):
                attempt()

    implementation.run(story, tmp_path)


@over(DISKS, trait="real")
def test_a_link_is_not_followed(implementation: Implementation, tmp_path: Path) -> None:
    """Whoever may write to the data directory must not be able to point us elsewhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")

    async def story(disk: Disk) -> None:
        (tmp_path / "disk" / "directory").symlink_to(outside)
        (tmp_path / "disk" / "file").symlink_to(outside / "secret")

        for name in ("directory/secret", "file"):
            with pytest.raises(OSError, match=name.split("/", 1)[0]):
                disk.open(name, create=True)

    implementation.run(story, tmp_path)
