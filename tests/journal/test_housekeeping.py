"""What a replica does beside its appends waits for what must be durable first."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from broadsheet.base.types import Buffer
from broadsheet.errors import Status
from broadsheet.journal.core.fragment import parse_name
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.streamed_append import StreamedAppend
from broadsheet.journal.troubles import Judged, Troubles
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import DiskState
from simulator.journalnode import status_of
from tests.journal.crash_histories import NAME, Running, Shelf, _idle, running
from tests.journal.test_damage import ROOMY, append, shown
from tests.journal.test_healing import until
from tests.journal.test_unreadable_spool import Returning

LARGE = b"large" * 600
"""Below what asks for a checkpoint, which would sync the name."""


class Watched(Shelf):
    """A store that looks at the committed end when a fragment comes."""

    def __init__(self) -> None:
        super().__init__(None, {})
        self.node: Running | None = None
        self.ends: list[tuple[int, int]] = []
        """Of each fragment: its end, and the committed end then."""

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        fragment = parse_name(name.removeprefix(f"{NAME}/"))
        if fragment is not None and self.node is not None:
            self.ends.append((fragment.end, (await self.node.broker.replica(NAME)).end))
        return await super().put_if_absent(name, body)


async def test_a_fragment_is_stored_only_once_its_end_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """journals.8: the store would have bytes that a power cut takes back, and other ones later (J1)."""
    disk, crashes, shelf = SimDisk(), list[BaseException](), Watched()
    gates: list[asyncio.Event] = []
    persist = SimFile.persist

    async def slow_persist(file: SimFile, at: int, parts: Sequence[Buffer]) -> None:
        if gates and file.name.startswith("journals/log"):
            await gates.pop(0).wait()
        await persist(file, at, parts)

    monkeypatch.setattr(SimFile, "persist", slow_persist)
    async with running(disk, shelf, seed=1, crashes=crashes, config=ROOMY) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1024)))
        replica = await node.broker.replica(NAME)
        await _idle()
        shelf.node = node
        first, second = asyncio.Event(), asyncio.Event()
        gates += [first, second]
        runs = []
        for length in (600, 600, 100):  # The third one closes the fragment of the first two.
            runs.append(UnaryAppend(b"x" * length))
            replica.deliver(Submitted(run=runs[-1], count=1, length=length))
            await asyncio.sleep(0)
        await _idle()
        first.set()
        await runs[0].answered
        await _idle()
        seen = replica.end, [each.end for each in replica.closed], list(shelf.ends)
        second.set()
        assert seen == (600, [1200], []), "it was stored before its second append was durable"
        assert [await status_of(run.answered) for run in runs] == [Status.OK] * 3
        await _idle()
        assert shelf.ends == [(1200, 1300)]
    assert not crashes


async def test_a_stream_behind_an_append_has_the_name_of_its_spool_file_synced() -> None:
    """journals.14, J2: the log says only where its content stands, and the power cut took the file's name."""
    disk, crashes = SimDisk(), list[BaseException]()
    store: Any = Shelf(None, {})
    async with running(disk, store, seed=1, crashes=crashes, config=ROOMY, is_last=False) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        replica = await node.broker.replica(NAME)
        assert await append(node, NAME, b"small") is Status.OK
        stream = StreamedAppend(replica, 1, None)
        await stream.begun
        stream.put(LARGE)
        stream.finish()
        assert await status_of(stream.answered) is Status.OK
        cut = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    async with running(cut, store, seed=2, crashes=crashes, config=ROOMY) as node:
        assert (await node.broker.replica(NAME)).stop_reason == ""
        assert await shown(node, NAME) == b"small" + LARGE
    assert not crashes


async def test_of_many_closed_files_each_upload_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each upload looked at all that waited: with 65,536 of them it held the loop for 57 ms, each time."""
    disk, crashes, store = SimDisk(), list[BaseException](), Returning(None, {})
    judged, judge = 0, Troubles.judge

    def counting(self: Troubles, journal: Judged) -> None:
        nonlocal judged
        judged += 1
        judge(self, journal)

    async with running(disk, store, seed=1, crashes=crashes, config=ROOMY) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1024)))
        replica = await node.broker.replica(NAME)
        for _ in range(31):
            assert await append(node, NAME, b"a" * 1100) is Status.OK
        await until(lambda: node.broker.troubles.unstored_count)
        assert len(replica.closed) == 30

        monkeypatch.setattr(Troubles, "judge", counting)
        store.is_down = False
        await until(lambda: not replica.closed)
        await _idle()
        assert node.broker.troubles.unstored_count == 0
        assert judged <= 3, "once for the file that the store did not take"
        node.broker.check()
    assert not crashes
