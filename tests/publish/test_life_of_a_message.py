"""`docs/concepts/life-of-a-message.md` is a true walk: a traced message passes the modules that it names."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

import broadsheet
from broadsheet.client import Client
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.position import Position
from tests.journal.node_process import NodeProcess

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = f"{ROOT / 'src' / 'broadsheet'}/"
JOURNAL: Final = "life/m"


async def transacted_and_read(client: Client, number: int) -> list[Any]:
    """What a reader sees once `number` was published in a transaction, with the position of an input."""
    async with client.publisher("life/commits") as publisher, publisher.transaction() as transaction:
        await transaction.publish(JOURNAL, {"number": number})
        transaction.positions["life/input"] = Position(number, create_revision=1)
    return [message.json() async for message in client.messages(JOURNAL)]


async def test_a_message_passes_each_module_that_its_walk_names(tmp_path: Path) -> None:
    """The page told of Spark only, as if no program published and read by itself."""
    page = (ROOT / "docs/concepts/life-of-a-message.md").read_text()
    walk = page.partition("\n## The same from Python")[2]
    named = dict.fromkeys(re.findall(r"\*\*`([a-z_/]+\.py)`\*\*", walk))
    passed = dict[str, None]()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        passed[frame.f_code.co_filename.removeprefix(SOURCE)] = None

    node, before = NodeProcess(tmp_path), sys.getprofile()
    assert await node.start()
    try:
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(JOURNAL, labels={FRAMING_LABEL: "json-lines"})
            await transacted_and_read(client, 1)  # Imports what it needs.
            sys.setprofile(note)
            seen = await transacted_and_read(client, 2)
    finally:
        sys.setprofile(before)
        node.kill()

    assert seen == [{"number": 1}, {"number": 2}]
    assert len(named) >= 15
    assert [each for each in named if each not in passed] == []
