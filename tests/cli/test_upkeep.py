"""What of a journal is kept: `journals trim`, and retention, as one types them, with their readers beside."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broadsheet as library
from broadsheet.client import Client
from broadsheet.journal.core.spec import FRAMING_LABEL
from tests.cli.processes import SECONDS_MAX, broadsheet, from_a_terminal, node_of
from tests.journal.node_process import NodeProcess

NAME, COMMITS = "cli/kept", "cli/commits"
PIECE = 4096


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    with from_a_terminal():
        yield


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that has the same address after a restart."""
    with node_of(tmp_path) as node:
        yield node


def run(node: NodeProcess, *arguments: str, status: int = 0) -> str:
    """What a command of the group prints; of a refused one, what it says."""
    done = broadsheet("journals", *arguments, BROADSHEET_ADDRESS=node.address)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status in (1, 2) else done.stdout


async def stored(client: Client, name: str, count: int) -> None:
    """Return when the store has `count` fragments of a journal, and its log names none of them any more."""
    async with asyncio.timeout(SECONDS_MAX):
        while sum(each.is_stored for each in await client.journals.fragments(name)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while "log still names" in (await client.journals.trim(name, 0)).kept:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def filled(node: NodeProcess, count: int) -> None:
    async def fill() -> None:
        async with library.connect(node.address) as client:
            await client.journals.create(NAME, fragment_length=1024)
            for number in range(count):
                await client.journals.append(NAME, bytes([number]) * PIECE)
            await stored(client, NAME, count - 1)

    asyncio.run(fill())


def removed(node: NodeProcess, *arguments: str) -> dict[str, Any]:
    """The JSON of a trim that has removed what it may: the log lets go of the last file a little later."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        found: dict[str, Any] = json.loads(run(node, "trim", NAME, *arguments, "--yes", "--json"))
        if "log still names" not in found["kept"] or time.monotonic() > until:
            return found


def test_a_trim_tells_what_would_go_and_removes_it_with_yes(node: NodeProcess) -> None:
    """The exit status of a trim that changed nothing is 4, as of all commands that need --yes."""
    filled(node, 6)
    told = run(node, "trim", NAME, "--to", "9KiB", status=4)
    assert told == (
        f"{NAME}: at most 2 fragments below 9216 go, 8 KiB\nnothing was changed: --yes removes them\n"
    )
    assert run(node, "read", NAME).encode()[:1] == b"\0"

    assert removed(node, "--to", "9KiB")["begin"] == 2 * PIECE
    node.kill()
    assert asyncio.run(node.start())
    said = run(node, "read", NAME, "--offset", "0", status=1)
    assert f"trimmed: journal {NAME}: no fragment has offset 0; the next that can be read is 8192" in said
    assert run(node, "read", NAME).encode() == b"".join(bytes([number]) * PIECE for number in range(2, 6))
    assert json.loads(run(node, "status", NAME, "--json"))["begin"] == 2 * PIECE


def test_a_trim_to_a_time_removes_what_was_stored_before(node: NodeProcess) -> None:
    """An age, or a time as ISO 8601 writes it. The newest stored fragment stays, and the command says so."""
    filled(node, 4)
    assert removed(node, "--to", "1h")["begin"] == 0
    assert removed(node, "--to", "2020-01-01T00:00Z")["begin"] == 0
    found = removed(node, "--to", "1ms")
    assert (found["begin"], found["kept"]) == (2 * PIECE, "the newest stored fragment stays")
    assert "an offset as in 64GiB, a time, or an age" in run(node, "trim", NAME, "--to", "noon", status=2)


def test_a_retention_that_is_given_at_the_creation_removes_what_is_too_far_below_the_end(
    node: NodeProcess,
) -> None:
    """Nobody asks for it; `describe` tells it."""
    run(node, "create", NAME, "--fragment-length", "1KiB", "--retained-bytes", "8KiB", "--retention", "7d")

    async def fill() -> int:
        async with library.connect(node.address) as client:
            for number in range(8):
                await client.journals.append(NAME, bytes([number]) * PIECE)
            async with asyncio.timeout(SECONDS_MAX):
                while (begin := (await client.journals.status(NAME)).begin) != 6 * PIECE:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            content = b"".join([each.data async for each in client.journals.read(NAME, begin)])
            assert content[-2 * PIECE :] == b"\6" * PIECE + b"\7" * PIECE
            return begin

    assert asyncio.run(fill()) % PIECE == 0
    told = " ".join(run(node, "describe", NAME).split())
    assert "retention 604800 s" in told
    assert "retained bytes 8 KiB" in told


def test_a_reader_of_committed_messages_begins_where_a_trim_ended(node: NodeProcess) -> None:
    """Each message once; what a transaction has not decided yet stays, so that it is seen whole."""

    async def work() -> None:
        async with library.connect(node.address) as client, client.publisher(COMMITS) as publisher:
            await client.journals.create(NAME, fragment_length=1024, labels={FRAMING_LABEL: "json-lines"})
            for number in range(40):
                async with publisher.transaction() as transaction:
                    for part in range(10):
                        await transaction.publish(NAME, {"n": number, "part": part, "pad": "x" * 100})
            async with publisher.transaction() as transaction:
                before = await client.journals.end(NAME)
                await transaction.publish(NAME, {"n": 40, "part": 0})
                async with asyncio.timeout(SECONDS_MAX):
                    while await client.journals.end(NAME) == before:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                for _ in range(4):
                    await client.journals.append(NAME, b'{"n":"raw","pad":"%s"}\n' % (b"y" * 2048))
                count = len(await client.journals.fragments(NAME))
                await stored(client, NAME, count)
                end = await client.journals.end(NAME)
                half = await client.journals.trim(NAME, end // 2)
                assert 0 < half.begin <= end // 2
                seen = [each async for each in client.messages(NAME)]
                kept = [each.json() for each in seen if each.json()["n"] != "raw"]
                whole = [{"n": n, "part": part} for n in range(40) for part in range(10)]
                parts = [{"n": each["n"], "part": each["part"]} for each in kept]
                assert parts == whole[len(whole) - len(parts) :]
                assert 150 < len(parts) < 250
                assert min(await client.journals.index_points(NAME)) == half.begin
                most = await client.journals.trim(NAME, end)
                assert most.begin < end
                assert "readers of committed messages" in most.kept
                await transaction.publish(NAME, {"n": 40, "part": 1})
            last = [each.json() async for each in client.messages(NAME)]
            assert [each["part"] for each in last if each["n"] == 40] == [0, 1]

    asyncio.run(work())


def test_what_a_spec_may_change_counts_at_once_and_after_a_restart(node: NodeProcess) -> None:
    """Length, interval, codec, retention and labels; an alteration that changes nothing says so."""
    run(node, "create", NAME, "--label", "env=eu", "--label", "topic=clicks")

    async def work() -> None:
        async with library.connect(node.address) as client:
            await client.journals.append(NAME, b"a" * PIECE)
            done = await asyncio.to_thread(
                run,
                node,
                "alter",
                NAME,
                *("--fragment-length", "1KiB", "--codec", "gzip", "--flush-interval", "10m"),
                *("--retention", "30d", "--label", "env=us", "--label", "topic"),
            )
            assert done.startswith(f"{NAME}: changed at revision ")
            await client.journals.append(NAME, b"b" * PIECE)  # The fragment was longer than it may be now.
            await stored(client, NAME, 1)
            assert (await client.journals.fragments(NAME))[0].name.endswith(".gz")

    asyncio.run(work())
    for _ in range(2):
        told = json.loads(run(node, "describe", NAME, "--json"))["info"]["spec"]
        assert told["labels"] == {"env": "us"}
        assert told["fragment"] == {
            "length": 1024,
            "codec": "gzip",
            "flush_interval": 600_000_000_000,
            "retention": 30 * 86_400_000_000_000,
        }
        node.kill()
        assert asyncio.run(node.start())
    assert run(node, "alter", NAME, "--codec", "gzip") == f"{NAME}: nothing to change\n"
    assert run(node, "alter", NAME, "--retention", "0").startswith(f"{NAME}: changed at revision ")
    assert "retention" not in json.loads(run(node, "describe", NAME, "--json"))["info"]["spec"]["fragment"]
    assert run(node, "delete", NAME, "--yes") == f"{NAME}: deleted\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--store", "file:///elsewhere/"), "stays the node's own: what is stored there would not be found"),
        (("--label", "content-type=application/x-ndjson"), "how its messages are framed, which stays none"),
        (("--fragment-length", "1"), "fragment.length 1"),
        (("--flush-interval", "3s"), "flush_interval of 3"),
        (("--label", "env=a", "--label", "env"), "a name is given twice"),
    ],
)
def test_what_a_spec_cannot_change_is_refused_with_the_reason(
    node: NodeProcess, arguments: tuple[str, ...], words: str
) -> None:
    """Nothing changes, not even what could."""
    run(node, "create", NAME)
    status = 2 if "env" in arguments else 1
    said = " ".join(run(node, "alter", NAME, "--codec", "gzip", *arguments, status=status).split())
    assert words in said.replace("│ ", "")
    assert json.loads(run(node, "describe", NAME, "--json"))["info"]["spec"] == {"name": NAME, "fragment": {}}


def test_alterations_at_once_all_count(node: NodeProcess) -> None:
    """Each changes its own label; the second is made of the first one's result."""

    async def work() -> None:
        async with library.connect(node.address) as client:
            await client.journals.create(NAME)
            changes = [client.journals.alter(NAME, labels={f"l{number}": "x"}) for number in range(8)]
            await asyncio.gather(*changes)
            assert (await client.journals.get(NAME)).spec.labels == {f"l{number}": "x" for number in range(8)}
            await client.journals.delete(NAME)

    asyncio.run(work())
