"""What every object store keeps, whoever made it: the words of `ports.ObjectStore`."""

import asyncio
from pathlib import Path

import pytest

from broadsheet.ports import ObjectStore
from tests.runtime.conformance import OBJECTS, Implementation, over


@over(OBJECTS)
def test_an_object_is_stored_once_and_never_changed(implementation: Implementation, tmp_path: Path) -> None:
    """Fragments are immutable: a second writer learns that it came second, and its bytes go nowhere."""

    async def story(objects: ObjectStore) -> None:
        assert await objects.put_if_absent("journal/a", (b"con", bytearray(b"te"), memoryview(b"nt")))
        assert not await objects.put_if_absent("journal/a", (b"other",))

        assert await objects.get("journal/a") == b"content"

    implementation.run(story, tmp_path)


@over(OBJECTS)
def test_of_many_writers_at_once_one_wins(implementation: Implementation, tmp_path: Path) -> None:
    """Two primaries may upload the same fragment name at once."""

    async def story(objects: ObjectStore) -> None:
        bodies = [bytes([number]) * 1000 for number in range(8)]
        won = await asyncio.gather(*(objects.put_if_absent("name", (body,)) for body in bodies))

        assert sum(won) == 1
        assert await objects.get("name") == bodies[won.index(True)]

    implementation.run(story, tmp_path)


@over(OBJECTS)
def test_get_returns_the_range_that_is_there(implementation: Implementation, tmp_path: Path) -> None:
    """A read at an offset fetches a part of a fragment."""

    async def story(objects: ObjectStore) -> None:
        await objects.put_if_absent("name", (b"0123456789",))

        assert await objects.get("name", 3) == b"3456789"
        assert await objects.get("name", 3, 5) == b"34"
        assert await objects.get("name", 8, 20) == b"89"
        assert await objects.get("name", 5, 5) == b""
        assert await objects.get("name", 20) == b""
        with pytest.raises(FileNotFoundError):
            await objects.get("absent")
        with pytest.raises(FileNotFoundError):
            await objects.get("absent/name", 1, 2)

    implementation.run(story, tmp_path)


@over(OBJECTS)
def test_an_empty_object_is_an_object(implementation: Implementation, tmp_path: Path) -> None:
    """Length zero is not absence."""

    async def story(objects: ObjectStore) -> None:
        assert await objects.put_if_absent("empty", ())
        assert not await objects.put_if_absent("empty", (b"x",))
        assert await objects.get("empty") == b""
        assert [(each.name, each.size_bytes) for each in await objects.list("")] == [("empty", 0)]

    implementation.run(story, tmp_path)


@over(OBJECTS)
def test_list_finds_every_name_by_its_prefix_in_order(implementation: Implementation, tmp_path: Path) -> None:
    """The index of a journal is rebuilt from such a list: one left out is data that nobody finds."""

    async def story(objects: ObjectStore) -> None:
        names = ["a", "ab/c", "ab/d/e", "ab/d/f", "abc", "b/c"]
        for name in reversed(names):
            await objects.put_if_absent(name, (name.encode(),))

        for prefix in ("", "a", "ab", "ab/", "ab/d", "ab/d/", "ab/d/e", "b/", "c", "ab/d/e/"):
            found = await objects.list(prefix)
            assert [each.name for each in found] == [name for name in names if name.startswith(prefix)], (
                prefix
            )
            assert [each.size_bytes for each in found] == [len(each.name) for each in found]
            assert all(each.modified >= 0 for each in found)

    implementation.run(story, tmp_path)


@over(OBJECTS)
def test_delete_is_idempotent_and_frees_the_name(implementation: Implementation, tmp_path: Path) -> None:
    """Retention deletes, and repeats itself after a crash."""

    async def story(objects: ObjectStore) -> None:
        await objects.put_if_absent("d/name", (b"1",))
        await objects.delete("d/name")
        await objects.delete("d/name")
        await objects.delete("absent/name")

        assert list(await objects.list("")) == []
        assert await objects.put_if_absent("d/name", (b"2",))
        assert await objects.get("d/name") == b"2"

    implementation.run(story, tmp_path)
