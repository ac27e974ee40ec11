"""What the loop hashes at a time is bounded, however the content comes."""

import asyncio
from pathlib import Path

import pytest

import broadsheet
from broadsheet.base.types import JournalName
from broadsheet.errors import TooLarge, WrongAppendOffset
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.append_admission import Limits
from broadsheet.journal.messages import RunReply, RunRequest
from broadsheet.wal.config import WALConfig
from tests.journal.node_process import CONFIG, NodeProcess


@pytest.mark.parametrize(("segment_bytes", "fitting"), [(8 << 20, 16), (1 << 20, 3)])
async def test_a_run_frame_above_the_bound_is_refused_whole(
    tmp_path: Path, segment_bytes: int, fitting: int
) -> None:
    """It cannot be cut without knowing its records. With a small log it once ended the node."""
    node = NodeProcess(tmp_path)
    config = CONFIG.replace("segment_bytes = 1048576", f"segment_bytes = {segment_bytes}", 1)
    (tmp_path / "node.toml").write_text(config)
    record = b"x" * 65_536
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            journals = client.journals
            await journals.create("spans/a")
            _, stream = await journals._caller.open_run(
                "journal.append_run", RunRequest(journal=JournalName("spans/a")), reply=RunReply
            )
            with pytest.raises(TooLarge, match=r"1114112 bytes in one run: \d+ at most"):
                await (await stream.submit([record] * 17))
            assert (await (await stream.submit([record] * fitting))).begin == 0
            assert (await journals.status("spans/a")).end == fitting * len(record)
            assert b"".join([chunk.data async for chunk in journals.read("spans/a")]) == record * fitting
    finally:
        node.kill()


async def test_frames_that_came_together_stand_where_they_were_told_after_a_kill(tmp_path: Path) -> None:
    """ADR 0196: frames of one read are one record of the log; each keeps its own place and outcome."""
    node = NodeProcess(tmp_path)
    contents = [bytes([number % 251]) * (number * 37 % 3000) for number in range(400)]
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create("spans/a")
            _, stream = await client.journals._caller.open_run(
                "journal.append_run", RunRequest(journal=JournalName("spans/a")), reply=RunReply
            )
            answers = [
                await stream.submit([each], at=1 << 50 if number % 50 == 49 else None)
                for number, each in enumerate(contents)
            ]
            found = await asyncio.gather(*answers, return_exceptions=True)
        node.kill()
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            content = b"".join([chunk.data async for chunk in client.journals.read("spans/a")])
    finally:
        node.kill()

    end = 0
    for number, (each, told) in enumerate(zip(contents, found, strict=True)):
        if number % 50 == 49:
            assert isinstance(told, WrongAppendOffset), f"frame {number}: {told}"
            continue
        assert not isinstance(told, BaseException), f"frame {number}: {told}"
        assert (told.sequence, told.begin, told.end) == (number, end, end + len(each))
        assert content[told.begin : told.end] == each
        end = told.end
    assert len(content) == end


def test_frames_are_joined_only_as_far_as_an_idle_journal_takes_them() -> None:
    """Joined further, they would be refused together, and again each time that they are sent."""
    small = JournalsConfig(wal=WALConfig(segment_bytes=256 << 10, initial_fill_bytes=64 << 10))

    assert JournalsConfig().joined_bytes_max == 256 << 10
    assert small.joined_bytes_max == small.run_bytes_max < 64 << 10
    assert JournalsConfig(limits=Limits(pending_bytes_max=1000)).joined_bytes_max == 1000
    assert JournalsConfig(wal=WALConfig(pending_bytes_max=64 << 10)).joined_bytes_max == 52 << 10
    assert JournalsConfig(wal=WALConfig(pending_bytes_max=4 << 10)).joined_bytes_max == 0
