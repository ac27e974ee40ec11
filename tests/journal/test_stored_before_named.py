"""A fragment may be stored, and its file gone, before the log names the one behind it."""

import contextlib
from hashlib import sha1
from pathlib import Path

import broadsheet
from broadsheet.errors import Unknown
from tests.journal.node_process import NodeProcess

NAME = "named/late"
CONTENT = b"x" * (64 << 10)
"""In one record of the log, and enough for a checkpoint behind it."""


async def test_the_last_fragment_of_the_log_may_be_in_the_store_only(tmp_path: Path) -> None:
    """Found by kill -9 under load: its file was made again, empty, and the journal called damaged.

    An append that is aborted rolls the journal and leaves no record. What it closed may be stored, and its
    file removed, when the node dies: the log's last record is of a fragment that only the store has.
    """
    node = NodeProcess(tmp_path)
    try:
        assert await node.start("journal.checkpoint.before_trim:1")
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME, fragment_length=1 << 10)
            with contextlib.suppress(Unknown):
                await client.journals.append(NAME, CONTENT)
        assert await node.died() == -9  # From now on the log leaves it to the file.
        (spool,) = (tmp_path / "data" / "journals" / "spool").glob("*/*.spool")
        stored = tmp_path / "data" / "fragments" / NAME
        stored.mkdir(parents=True)
        spool.rename(stored / f"{0:016x}-{len(CONTENT):016x}-{sha1(CONTENT).hexdigest()}.raw")

        for more in (b"one", b"two"):  # The second start finds the fragment behind it in the log.
            assert await node.start()
            async with broadsheet.connect(node.address) as client:
                status = await client.journals.status(NAME)
                assert status.state == "open", status
                await client.journals.append(NAME, more)
            node.kill()

        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            found = b"".join([chunk.data async for chunk in client.journals.read(NAME)])
        assert found == CONTENT + b"onetwo"
    finally:
        node.kill()
