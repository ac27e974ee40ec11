"""kill -9 of a real node at every failpoint of append, roll, registers put and index write."""

import asyncio
import contextlib
from pathlib import Path

import pytest

import broadsheet
from broadsheet.client import Client
from broadsheet.errors import BroadsheetError, NotFound, Refused, Unknown
from tests.journal.node_process import NodeProcess
from tests.support.failpoints import labels_of

MAIN = "kill/main"
EXTRA = "kill/extra"
NDJSON = {"content-type": "application/x-ndjson"}
ROUNDS_MAX = 12
FRAGMENT = 64 << 10


class History:
    """What the client did and was told."""

    def __init__(self) -> None:
        self.acked: dict[int, bytes] = {}
        self.attempted: list[bytes] = []
        self.read: dict[int, bytes] = {}
        self.registers: list[int] = [0]
        self.registers_in_doubt = 0
        self.label = self.label_in_doubt = ""
        self.serial = 0

    def line(self, length: int = 40) -> bytes:
        self.serial += 1
        head = b'{"id":%d,"pad":"' % self.serial
        return head + b"x" * max(0, length - len(head) - 3) + b'"}\n'

    def lines(self, count: int, length: int) -> bytes:
        return b"".join(self.line(length) for _ in range(count))


async def workload(client: Client, history: History) -> None:
    """Everything that journals do, round after round, until the node dies."""
    journals = client.journals
    await journals.create(MAIN, fragment_length=FRAGMENT, labels=NDJSON, if_absent=True)
    for number in range(ROUNDS_MAX):
        await append(client, history, history.line())
        many = [history.line() for _ in range(20)]
        history.attempted += many
        for commit, content in zip(await journals.append_many(MAIN, many), many, strict=True):
            history.acked[commit.begin] = content
        history.registers_in_doubt = number + 1
        await append(client, history, history.line(), union={"n": str(number + 1)})
        history.registers.append(number + 1)
        await append(client, history, history.lines(30, 4000))
        await abort_one(client, history)
        history.label_in_doubt = str(number)
        await journals.alter(MAIN, labels={"round": history.label_in_doubt})
        history.label = history.label_in_doubt
        async for chunk in journals.read(MAIN):
            history.read[chunk.offset] = chunk.data
        await journals.create(EXTRA, fragment_length=1 << 10, if_absent=True)
        await journals.append(EXTRA, b"y" * 4096)
        await journals.append(EXTRA, b"z" * 4096)
        await journals.append(EXTRA, b"w" * 4096)
        await until_stored(client)
        await until_trimmed(client)
        await journals.delete(EXTRA)
        with pytest.raises(NotFound):
            await journals.get(EXTRA)


async def append(
    client: Client, history: History, content: bytes, **condition: dict[str, str | None]
) -> None:
    history.attempted.append(content)
    commit = await client.journals.append(MAIN, content, **condition)  # type: ignore[arg-type]
    history.acked[commit.begin] = content


async def abort_one(client: Client, history: History) -> None:
    """A client that breaks off in the middle of its content."""

    async def broken() -> "asyncio.AsyncIterator[bytes]":  # type: ignore[name-defined]
        yield history.lines(30, 4000)
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        await client.journals.append(MAIN, broken())


async def until_stored(client: Client) -> None:
    for _ in range(200):
        if any(each.is_stored for each in await client.journals.fragments(EXTRA)):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a closed fragment is stored")


async def until_trimmed(client: Client) -> None:
    for _ in range(500):
        if (await client.journals.trim(EXTRA, 4096)).begin:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the first of two stored fragments is removed, once the log names it no more")


async def verify(client: Client, history: History) -> None:
    """Nothing acknowledged is lost, no byte changed, nothing stands there in part or twice."""
    status = await client.journals.status(MAIN)
    assert status.state == "open", status
    content = b""
    async for chunk in client.journals.read(MAIN):
        assert chunk.offset == len(content)
        content += chunk.data
    assert len(content) == status.end
    for begin, acked in history.acked.items():
        assert content[begin : begin + len(acked)] == acked, f"acknowledged at {begin}"
    for begin, seen in history.read.items():
        assert content[begin : begin + len(seen)] == seen, f"read before at {begin}"
    at, found = 0, dict.fromkeys(history.attempted, 0)
    by_first_line = {each.partition(b"\n")[0]: each for each in history.attempted}
    while at < len(content):
        first = content[at : content.index(b"\n", at)]
        whole = by_first_line[first]
        assert content[at : at + len(whole)] == whole, f"an append stands in part at {at}"
        found[whole] += 1
        at += len(whole)
    assert max(found.values(), default=0) <= 1, "no append stands twice"
    registers = await client.journals.registers(MAIN)
    assert int(registers.values.get("n", "0")) in (history.registers[-1], history.registers_in_doubt)
    assert history.registers[-1] <= registers.version <= history.registers_in_doubt
    label = (await client.journals.get(MAIN)).spec.labels.get("round", "")
    assert label in (history.label, history.label_in_doubt)
    point = await client.journals.index_points(MAIN)
    assert point == sorted(point)


@pytest.mark.parametrize("label", [each for each in labels_of("journal", least=47) if ".seal." not in each])
async def test_a_node_killed_at_this_point_loses_nothing(label: str, tmp_path: Path) -> None:
    """Must show: nothing acknowledged lost, no byte changed, at 30 and more labelled points."""
    node, history = NodeProcess(tmp_path), History()
    count = 3 if label.startswith(("journal.append", "journal.stream")) else 2
    try:
        assert await node.start(f"{label}:{count}"), (tmp_path / "node.log").read_text()
        with contextlib.suppress(Unknown, Refused):
            async with asyncio.timeout(30), broadsheet.connect(node.address) as client:
                working = asyncio.create_task(workload(client, history))
                dying = asyncio.create_task(node.died(30.0))
                await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
                await dying
                working.cancel()
                with contextlib.suppress(asyncio.CancelledError, BroadsheetError):
                    await working
        assert await node.died() == -9, f"{label} was not passed {count} times"
        assert await node.start()
        staged = tmp_path / "data" / "journals" / "staged"
        assert list(staged.iterdir()) == [], "what was staged is nobody's"
        async with broadsheet.connect(node.address) as client:
            if not history.acked:
                await client.journals.create(MAIN, if_absent=True)
            await verify(client, history)
            await append(client, history, history.line())
            await verify(client, history)
    finally:
        node.kill()
