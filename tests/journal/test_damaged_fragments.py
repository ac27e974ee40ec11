"""A stored fragment that is damaged is refused to readers, and its node says so where it is watched."""

import asyncio
import re
from pathlib import Path

import pytest

import broadsheet
from broadsheet.base.types import ByteOffset
from broadsheet.errors import BroadsheetError, Corrupt, Status
from broadsheet.journal import fragments as fragments_module
from broadsheet.journal.committed_reads import read
from broadsheet.journal.core.fragment import Fragment
from broadsheet.journal.readiness import troubles
from simulator.disk import SimDisk
from tests.doors.test_readiness import Watched, logged
from tests.journal.crash_histories import NAME, Running, running
from tests.journal.node_process import NodeProcess
from tests.journal.test_store_down import FIRST, SECOND, SECONDS_MAX, THIRD, Flaky, first_life

CAUSES = [("fragments_damaged", True)]


def told(node: Running) -> list[tuple[str, bool]]:
    """The troubles of the node, each with whether it is a warning."""
    context = next(iter(node.broker.replicas)).context
    return [(each.cause, each.is_warning) for each in troubles(context, node.broker)]


async def only_the_store_has_all_but_the_last(root: Path) -> None:
    """Return once the one journal of a node has one spool file."""
    spools = root / "data" / "journals" / "spool"
    async with asyncio.timeout(SECONDS_MAX):
        while len([*spools.glob("*/*.spool")]) > 1:  # noqa: ASYNC110 - another process removes them.
            await asyncio.sleep(0.01)


async def test_a_node_says_which_stored_fragment_it_refuses_until_it_is_read_again(tmp_path: Path) -> None:
    """Only the reader heard of it: an operator had to read every byte to learn that one was gone."""
    node, name = NodeProcess(tmp_path), "rotten/a"
    try:
        assert await node.start(), (tmp_path / "node.log").read_text()
        http = Watched(tmp_path / "data")
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(name, fragment_length=1 << 10)
            for content in (FIRST, SECOND, THIRD):
                await client.journals.append(name, content)
            await only_the_store_has_all_but_the_last(tmp_path)
            fragment = min((tmp_path / "data" / "fragments" / name).glob("*.raw"))
            whole = fragment.read_bytes()
            fragment.write_bytes(b"?" + whole[1:])

            for _ in range(3):
                with pytest.raises(Corrupt, match=f"fragment {name}/"):
                    _ = [chunk async for chunk in client.journals.read(name)]
            page = await http.says(200, "journals: warning: 1 stored fragments are damaged or gone")
            assert str(tmp_path) not in page
            assert name not in page, "the page needs no token, and names no journal"

            fragment.write_bytes(whole)
            assert (
                b"".join([chunk.data async for chunk in client.journals.read(name)]) == FIRST + SECOND + THIRD
            )
            assert (await http.says(200)).endswith("\r\n\r\nready\n")
    finally:
        node.kill()
    log = (tmp_path / "node.log").read_text()
    assert len(re.findall(rf'"fragment": ?"{name}/{fragment.name}"', log)) == 1, "each is told once"
    assert logged(tmp_path / "node.log", "trouble.began", "fragments_damaged") == 1


async def test_damaged_fragments_are_counted_up_to_a_bound_and_go_with_their_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store whose disk is gone has a hundred thousand; a deleted journal is no trouble any more."""
    monkeypatch.setattr(fragments_module, "DAMAGED_MAX", 1)
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))
    for name in shelf.objects:
        shelf.objects[name] = b"?"
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        assert told(node) == []
        for begin in (0, len(FIRST)):
            with pytest.raises(Corrupt):
                await anext(read(replica, ByteOffset(begin), None, block=False))
        assert told(node) == CAUSES
        assert len(replica.context.damaged) == 1

        await node.broker.delete(NAME, None)
        assert replica.context.damaged == {}
    assert not crashes


async def test_a_fragment_that_is_gone_is_no_trouble_once_it_is_trimmed() -> None:
    """The store does not list it any more, so that the trim removes no object."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        stored = dict(shelf.objects)
        shelf.objects.clear()
        for begin in (0, len(FIRST)):
            with pytest.raises(Corrupt, match="is not in its store any more"):
                await anext(read(replica, ByteOffset(begin), None, block=False))
        assert len(replica.context.damaged) == 2
        shelf.objects[max(stored)] = stored[max(stored)]

        await (await node.broker.trimming(NAME)).trim(ByteOffset(len(FIRST)))

        assert [*replica.context.damaged] == [max(stored)], "nobody has read the other one yet"
        assert (await anext(read(replica, ByteOffset(len(FIRST)), None, block=False))).data == SECOND
        assert told(node) == []
    assert not crashes


async def test_a_fragment_that_is_deleted_while_it_is_read_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever deletes a journal that is being read would be told for ever that bytes were lost."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        read_fragment = replica.store.read

        async def slow(_: str, fragment: Fragment, offset: ByteOffset, length: int) -> bytes:
            await node.broker.delete(NAME, None)
            return await read_fragment(replica.name, fragment, offset, length)

        monkeypatch.setattr(replica.store, "read", slow)
        with pytest.raises(BroadsheetError) as caught:
            await anext(read(replica, ByteOffset(0), None, block=False))
        assert caught.value.status is not Status.CORRUPT
        assert replica.context.damaged == {}
    assert not crashes
