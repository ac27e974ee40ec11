"""What the loop hashes at a time is bounded, however the content comes."""

from pathlib import Path

import pytest

import broadsheet
from broadsheet.base.types import JournalName
from broadsheet.errors import TooLarge
from broadsheet.journal.messages import RunReply, RunRequest
from broadsheet.wire import frame as f
from broadsheet.wire.events import RecordsReceived
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.listening_machine import ListenerConnection
from broadsheet.wire.run import RUN_BYTES_MAX
from simulator.fuzz_sessions import good_session
from tests.journal.node_process import CONFIG, NodeProcess
from tests.wire.test_connection import START, feed


@pytest.mark.parametrize("size", [100, 4000, 65_536, 1_000_000])
def test_records_of_one_read_make_runs_that_may_be_hashed_on_the_loop(size: int) -> None:
    """node.2: no span above 1 MiB is hashed on the loop, though a read may bring 4 MiB at once."""
    listener = ListenerConnection(WireLimits(), now=START)
    feed(listener, good_session()[0], [])
    feed(listener, good_session()[5], [])
    count = (4 << 20) // size
    records = (f.header(f.RECORD, 5, payload_bytes=size) + bytes(size)) * count

    runs = [event for event in feed(listener, records, []) if isinstance(event, RecordsReceived)]

    assert max(run.size for run in runs) <= RUN_BYTES_MAX
    assert sum(run.count for run in runs) == count
    assert [run.sequence for run in runs] == [sum(r.count for r in runs[:n]) for n in range(len(runs))]


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
