"""What the loop hashes at a time is bounded, however the content comes."""

from pathlib import Path

import pytest

import broadsheet
from broadsheet.base.types import JournalName
from broadsheet.errors import TooLarge
from broadsheet.journal.messages import RunReply, RunRequest
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
