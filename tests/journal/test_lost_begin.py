"""A journal that lost its first bytes, before an index point was stored, goes on for readers of messages.

Spans `loss_acceptance`, the checkpoint's `origin` and `producer_indexing` (journals.29; ADR 0123).
"""

import errno
from collections.abc import Iterable

import msgspec
import pytest

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import Corrupt, StoreUnhealthy
from broadsheet.journal.committed_reads import read
from broadsheet.journal.core.pipeline_events import RollAsked
from broadsheet.journal.core.spec import FRAMING_LABEL, FragmentSpec, JournalSpec
from broadsheet.journal.messages import LossReply
from broadsheet.message.columns import frames_of
from broadsheet.message.framing import JSON_LINES, Kind
from broadsheet.message.spans import sequence
from broadsheet.message.stored_index import decode
from broadsheet.message.uuid import Flag
from simulator.crashstates import crash_states, record_on
from simulator.disk import SimDisk
from simulator.disk_state import DiskState, Write
from tests.journal.crash_histories import JOURNALS, NAME, Running, Shelf, _idle, running
from tests.journal.test_healing import until as eventually
from tests.journal.test_trimming import DatedShelf, World, at_rest, message, point_at, trimmed
from tests.journal.test_unreadable_spool import checkpointed

MESSAGES = JournalSpec(
    name=NAME, fragment=FragmentSpec(length=1 << 20), labels={FRAMING_LABEL: Kind.JSON_LINES.value}
)
ROOMY = msgspec.structs.replace(JOURNALS, checkpoint_bytes=1 << 20)
"""No checkpoint comes by itself."""
SHORT = Duration(20 * MILLISECOND)


class Indexes(DatedShelf):
    """A store that takes producer indexes, and no fragment yet."""

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        if not name.endswith(".index"):
            raise OSError(errno.EIO, f"the store takes no {name}")
        return await super().put_if_absent(name, body)


async def begun(world: World, *, count: int = 3) -> int:
    """A journal whose first bytes are in a damaged spool file, and nowhere else; where they end."""
    async with world.node(config=ROOMY) as node:
        await node.broker.create(MESSAGES)
        for number in range(count):
            await message(node, 1, number, Flag.OUTSIDE)
        await _idle()
        name, end = await spoiled(world, node)
    world.disk.state.change(world.disk.state.files[name], Write(5, b"X"))
    return end


async def spoiled(world: World, node: Running) -> tuple[str, int]:
    """The open spool file, whose content the log has no more, and where it ends."""
    replica = await node.broker.replica(NAME)
    await checkpointed(node)
    await _idle()
    assert replica.spool.name in world.disk.state.files
    return replica.spool.name, replica.end


async def accept(node: Running, *, head: int | None = None) -> LossReply:
    """As `journals accept-loss --yes` does."""
    chosen = None if head is None else ByteOffset(head)
    return await node.broker.accept_loss(NAME, None, head=chosen, may_act=True, is_head_only=False)


async def committed_from(node: Running, begin: int) -> int:
    """How many messages a reader is given who begins at `begin`, an index point."""
    indexing, replica = await node.broker.indexing(NAME), await node.broker.replica(NAME)
    found = await indexing.at(ByteOffset(begin))
    assert found.offset == begin
    index = decode(await indexing.part(found, 0, found.size))
    assert (index.offset, index.states, index.forgotten) == (begin, {}, {})
    content = b"".join([each.data async for each in read(replica, index.offset, None, block=False)])
    return len(sequence(index, frames_of(JSON_LINES, content, begin)).rows)


async def test_committed_messages_behind_a_lost_begin_can_be_read() -> None:
    """No reader of messages could begin in the journal any more, also not at what was appended later."""
    world = World()
    end = await begun(world)
    async with world.node(config=ROOMY) as node:
        assert [(each.begin, each.end) for each in (await accept(node)).lost] == [(0, end)]
        for number in range(3, 5):
            await message(node, 1, number, Flag.OUTSIDE)
        assert await committed_from(node, end) == 2
    async with world.node(is_last=True) as node:
        await message(node, 1, 5, Flag.OUTSIDE)
        assert await committed_from(node, end) == 3
        assert node.broker.status(NAME).state == "open"
        assert "producer index" not in node.broker.status(NAME).reason


async def test_readers_begin_behind_a_lost_begin_when_the_store_takes_indexes_again() -> None:
    """The origin outlives restarts, and checkpoints, before its index point is stored."""
    world = World()
    end = await begun(world)
    world.shelf.takes_indexes = False
    async with world.node(config=ROOMY) as node:
        await accept(node)
        await message(node, 1, 3, Flag.OUTSIDE)
        with pytest.raises(OSError, match="takes no index"):
            await point_at(node, end)
        await checkpointed(node)
    async with world.node() as node:
        with pytest.raises(OSError, match="takes no index"):
            await point_at(node, end)
    world.shelf.takes_indexes = True
    async with world.node(is_last=True) as node:
        assert await committed_from(node, end) == 1


async def test_a_lost_begin_is_not_accepted_while_the_store_does_not_say_whether_it_has_an_index() -> None:
    """Without an origin no reader of messages could begin there for good; `--head` goes on all the same."""
    world = World()
    end = await begun(world)
    async with world.node(config=msgspec.structs.replace(ROOMY, listing_wait=SHORT)) as node:
        assert (await node.broker.replica(NAME)).is_listed
        world.shelf.is_shut = True
        with pytest.raises(StoreUnhealthy, match="nothing changed: try again when it answers"):
            await accept(node)
        assert (await node.broker.replica(NAME)).stop_reason
        world.shelf.is_shut = False
        await eventually(lambda: node.broker.replicas[0].is_listed)
        await accept(node)
        await message(node, 1, 3, Flag.OUTSIDE)
        assert await committed_from(node, end) == 1


async def test_a_lost_begin_that_is_accepted_without_the_store_has_no_origin() -> None:
    """journals.29: nobody knows whether the store has an index. Its bytes go on, and the error says how."""
    world = World()
    end = await begun(world)
    world.shelf.is_shut = True
    async with world.node(config=msgspec.structs.replace(ROOMY, listing_wait=SHORT)) as node:
        assert (await accept(node, head=end)).is_done
    world.shelf.is_shut = False
    async with world.node(is_last=True) as node:
        await message(node, 1, 3, Flag.OUTSIDE)
        with pytest.raises(Corrupt, match=f"journals export {NAME}"):
            await point_at(node, end)


async def test_a_second_loss_before_the_index_point_is_stored_moves_the_origin() -> None:
    """What the journal begins with may be lost again."""
    world = World()
    first = await begun(world)
    world.shelf.takes_indexes = False
    async with world.node(config=ROOMY) as node:
        await accept(node)
        await message(node, 1, 3, Flag.OUTSIDE)
        await _idle()
        name, second = await spoiled(world, node)
    world.disk.state.change(world.disk.state.files[name], Write(5, b"X"))
    async with world.node(is_last=True, config=ROOMY) as node:
        assert [(each.begin, each.end) for each in (await accept(node)).lost] == [(first, second)]
        world.shelf.takes_indexes = True
        await message(node, 1, 4, Flag.OUTSIDE)
        assert await committed_from(node, second) == 1


async def test_a_loss_above_the_origin_leaves_it_where_it_is() -> None:
    """What lies between the two holes has its readers, too."""
    world = World()
    first = await begun(world)
    world.shelf = Indexes(world.clock)
    world.shelf.takes_indexes = False
    async with world.node(config=ROOMY) as node:
        await accept(node)
        await message(node, 1, 3, Flag.OUTSIDE)
        replica = await node.broker.replica(NAME)
        replica.deliver(RollAsked())
        await message(node, 1, 4, Flag.OUTSIDE)
        await _idle()
        name, _ = await spoiled(world, node)
        assert replica.spool.begin > first
    world.disk.state.change(world.disk.state.files[name], Write(5, b"X"))
    async with world.node(config=ROOMY) as node:
        await accept(node)
    world.shelf.takes_indexes = True
    async with world.node(is_last=True) as node:
        assert await point_at(node, first) == first


async def test_indexes_that_are_lost_behind_a_lost_begin_are_made_again_while_all_its_bytes_are_here() -> (
    None
):
    """As those of a journal that begins at 0. After a trim they cannot, and readers are refused."""
    world = World()
    end = await begun(world)
    async with world.node() as node:
        await accept(node)
        for number in range(3, 9):
            await message(node, 1, number, Flag.OUTSIDE)
        assert await point_at(node, end) == end
    indexes = [name for name in world.shelf.objects if name.endswith(".index")]
    for name in indexes:
        del world.shelf.objects[name]
    async with world.node(is_last=True) as node:
        assert await committed_from(node, end) == 6
    assert [name for name in world.shelf.objects if name.endswith(".index")] == indexes[:1]


@pytest.mark.parametrize("is_gone_before", [False, True], ids=["lost later", "lost before the acceptance"])
async def test_a_lost_begin_whose_index_points_were_stored_is_no_origin(*, is_gone_before: bool) -> None:
    """journals.29: without them a reader would begin from an empty state, and might take repeats."""
    world = World()
    world.shelf = Indexes(world.clock)
    async with world.node(config=ROOMY) as node:
        await node.broker.create(msgspec.structs.replace(MESSAGES, fragment=FragmentSpec(length=1 << 10)))
        for number in range(2):
            length = await message(node, 1, number, Flag.OUTSIDE)
        await eventually(lambda: [name for name in world.shelf.objects if name.endswith(".index")])
        await checkpointed(node)
        replica = await node.broker.replica(NAME)
        names = [each.name for each in (*replica.closed, replica.spool)]
    for name in names:
        world.disk.state.change(world.disk.state.files[name], Write(5, b"X"))
    async with world.node(config=ROOMY) as node:
        replica = await node.broker.replica(NAME)
        assert (replica.begin, replica.named_end) == (0, length)
        if is_gone_before:
            world.shelf.objects.clear()
        end = (await accept(node)).head
        await message(node, 1, 2, Flag.OUTSIDE)
        await message(node, 1, 3, Flag.OUTSIDE)
        if not is_gone_before:
            await eventually(lambda: f"{end:016x}" in "".join(world.shelf.objects))
            world.shelf.objects.clear()
    async with world.node(is_last=True) as node:
        with pytest.raises(Corrupt, match="no producer index"):
            await point_at(node, end)


async def test_a_journal_that_was_trimmed_and_whose_indexes_are_lost_gets_no_origin_from_a_loss() -> None:
    """Nothing tells whether its producers had said more before what is lost than the operator knows."""
    world = World()
    async with world.node(config=ROOMY) as node:
        await node.broker.create(msgspec.structs.replace(MESSAGES, fragment=FragmentSpec(length=1 << 10)))
        for number in range(4):
            length = await message(node, 1, number, Flag.OUTSIDE)
        await at_rest(node)
        assert (await trimmed(node, length)).begin == length
        name, end = await spoiled(world, node)
    world.disk.state.change(world.disk.state.files[name], Write(5, b"X"))
    world.shelf.objects.clear()
    async with world.node(is_last=True, config=ROOMY) as node:
        assert (await node.broker.replica(NAME)).begin > 0
        await accept(node)
        await message(node, 1, 4, Flag.OUTSIDE)
        with pytest.raises(Corrupt, match="no producer index"):
            await point_at(node, end)


async def test_readers_begin_behind_a_lost_begin_after_a_power_cut_at_any_step_of_its_acceptance() -> None:
    """The decision and the origin are durable together, and the index point is stored when it can be."""
    world = World()
    end = await begun(world)
    image = {name: bytes(inode.view) for name, inode in world.disk.state.files.items()}
    world.disk = SimDisk(DiskState.of(image, tuple(world.disk.state.directories)))
    world.shelf.tape = tape = record_on(world.disk.state)
    first = len(tape.steps)
    async with world.node(is_last=True, config=ROOMY) as node:
        await accept(node)
        await message(node, 1, 3, Flag.OUTSIDE)
        assert await committed_from(node, end) == 1
    count, crashes = 0, list[BaseException]()
    for count, state in enumerate(crash_states(tape, atoms_max=4, first=first), 1):
        stored = {mark[1]: mark[2] for mark in state.marks if mark[0] == "stored"}  # type: ignore[index]
        async with running(state.disk(), Shelf(None, stored), seed=count, crashes=crashes) as node:
            if (await node.broker.replica(NAME)).stop_reason:
                await accept(node)
            await message(node, 1, 4, Flag.OUTSIDE)
            assert await committed_from(node, end) in {1, 2}
    assert count > 20
    assert not crashes
