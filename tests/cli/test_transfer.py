"""`journals export` and `journals import`: all of a journal goes out and in again, whatever breaks it off."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broadsheet as library
from broadsheet.cli import transfer
from broadsheet.journal.core.spec import FRAMING_LABEL
from tests.cli.processes import COMMAND, SECONDS_MAX, broadsheet, environment, from_a_terminal, node_of
from tests.journal.node_process import NodeProcess

NAME, COPY = "cli/source", "cli/copy"
LINE = b"%08d " + b"x" * 1014 + b"\n"
BIG = 100_000
"""Lines of 1 KiB: two parts, and enough to be broken off in."""


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    with from_a_terminal():
        yield


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that has the same address after a restart."""
    (tmp_path / "node").mkdir()
    with node_of(tmp_path / "node") as node:
        yield node


def run(node: NodeProcess, *arguments: str | Path, status: int = 0) -> str:
    done = broadsheet("journals", *arguments, BROADSHEET_ADDRESS=node.address)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def content_of(node: NodeProcess, name: str) -> bytes:
    with library.connect_sync(node.address) as client:
        return b"".join(chunk.data for chunk in client.journals.read(name))


def filled(node: NodeProcess, count: int) -> bytes:
    content = b"".join([LINE % number for number in range(count)])
    with library.connect_sync(node.address) as client:
        client.journals.create(NAME, fragment_length=1 << 20, codec="gzip", labels={"env": "eu"})
        for at in range(0, len(content), 8 << 20):
            client.journals.append(NAME, content[at : at + (8 << 20)])
    return content


def parts(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.raw"))


def test_what_was_exported_is_imported_and_the_sums_are_equal(node: NodeProcess, tmp_path: Path) -> None:
    """A new journal gets labels and settings of the old one. A second export adds what came since."""
    content, there = filled(node, 3_000), tmp_path / "export"
    size = len(content)
    assert run(node, "export", NAME, there) == f"{NAME}: [0, {size}), 2.9 MiB, in {there}\n"
    assert (
        run(node, "import", COPY, there)
        == f"{COPY}: [0, {size}) appended; the sums of [0, {size}) are equal\n"
    )
    assert content_of(node, COPY) == content
    spec: dict[str, Any] = json.loads(run(node, "describe", COPY, "--json"))["info"]["spec"]
    assert (spec["labels"], spec["fragment"]["codec"]) == ({"env": "eu"}, "gzip")

    with library.connect_sync(node.address) as client:
        client.journals.append(NAME, b"more\n")
    assert json.loads(run(node, "export", NAME, there, "--json"))["end"] == size + 5
    assert len(parts(there)) == 2
    found = json.loads(run(node, "import", COPY, there, "--json"))
    assert (found["begin"], found["end"]) == (size, size + 5)
    assert content_of(node, COPY) == content + b"more\n"
    assert run(node, "export", NAME, "-").encode() == content + b"more\n"


def test_a_file_is_imported_and_an_import_said_again_appends_nothing(
    node: NodeProcess, tmp_path: Path
) -> None:
    """The file may have grown: what is new is appended."""
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    assert "[0, 8) appended" in run(node, "import", COPY, file)
    assert "[8, 8) appended" in run(node, "import", COPY, file)
    file.write_bytes(b"one\ntwo\nthree\n")
    assert "[8, 14) appended" in run(node, "import", COPY, file)
    file.write_bytes(b"one\nTWO\nthree\nfour\n")
    assert "are not the first ones of what is imported: none was appended" in run(
        node, "import", COPY, file, status=1
    )
    file.write_bytes(b"one\n")
    assert "has 14 bytes, and what is imported only 4" in run(node, "import", COPY, file, status=1)
    assert content_of(node, COPY) == b"one\ntwo\nthree\n"


@contextlib.contextmanager
def running(node: NodeProcess, *arguments: str | Path, until: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A command that has come so far that `until` is true, or to its end."""
    with subprocess.Popen(
        [*COMMAND, "journals", *map(str, arguments)],
        env=environment(BROADSHEET_ADDRESS=node.address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        over = time.monotonic() + SECONDS_MAX
        while not until() and process.poll() is None:
            assert time.monotonic() < over
            time.sleep(0.002)
        yield process


def killed(node: NodeProcess, *arguments: str | Path, when: Any) -> None:
    """Start a command, and kill it as soon as `when` is true."""
    with running(node, *arguments, until=when) as process:
        process.send_signal(signal.SIGKILL)


def has_some(node: NodeProcess) -> bool:
    """Whether an import has appended something."""
    with library.connect_sync(node.address) as client:
        found = client.journals.list(COPY)
        return bool(found) and client.journals.end(COPY) > 0


def test_an_export_and_an_import_that_were_killed_go_on(node: NodeProcess, tmp_path: Path) -> None:
    """A part counts when it is whole; an append at an explicit offset is there once."""
    content, there = filled(node, BIG), tmp_path / "export"
    killed(node, "export", NAME, there, when=lambda: bool(parts(there)))
    first = parts(there)
    assert len(first) == 1
    before = first[0].stat().st_mtime_ns
    run(node, "export", NAME, there)
    assert len(parts(there)) == 2
    assert parts(there)[0].stat().st_mtime_ns == before
    assert b"".join(part.read_bytes() for part in parts(there)) == content

    killed(node, "import", COPY, there, when=lambda: has_some(node))
    found = json.loads(run(node, "import", COPY, there, "--json"))
    assert found["end"] == len(content)
    assert content_of(node, COPY) == content


def test_a_restart_of_the_node_breaks_neither_off(node: NodeProcess, tmp_path: Path) -> None:
    """Reads go on where they broke off, and an append whose answer was lost is asked for."""
    content, there = filled(node, BIG), tmp_path / "export"
    begun: dict[str, Any] = {
        "export": lambda: any(each.stat().st_size for each in there.glob(".partial")),
        "import": lambda: has_some(node),
    }
    for command, name in (("export", NAME), ("import", COPY)):
        with running(node, command, name, there, until=begun[command]) as process:
            node.kill()
            assert asyncio.run(node.start())
            _, said = process.communicate(timeout=SECONDS_MAX)
            assert process.returncode == 0, said.decode()
    assert content_of(node, COPY) == content


def test_a_damaged_part_is_named_and_a_missing_one_too(node: NodeProcess, tmp_path: Path) -> None:
    """What is imported from it is not what was exported, and was appended up to its last 4 MiB."""
    filled(node, 5_000)
    there = tmp_path / "export"
    run(node, "export", NAME, there)
    with library.connect_sync(node.address) as client:
        client.journals.append(NAME, b"more\n")
    run(node, "export", NAME, there)
    first, second = parts(there)
    with first.open("r+b") as file:
        file.seek(1000)
        file.write(b"?")
    assert f"{first} has the SHA-1" in run(node, "import", COPY, there, status=1)
    assert not content_of(node, COPY)
    with second.open("ab") as file:
        file.write(b"?")
    assert "has 6 bytes, and its name tells 5" in run(node, "import", "cli/third", there, status=2)
    second.unlink()
    os.truncate(first, 10)
    assert "and its name tells" in run(node, "import", "cli/third", there, status=2)


def test_messages_that_were_imported_are_read_as_they_were(node: NodeProcess, tmp_path: Path) -> None:
    """Transactions, each once, from a journal whose appends were cut elsewhere."""
    there = tmp_path / "export"

    async def work() -> None:
        async with library.connect(node.address) as client, client.publisher("cli/commits") as publisher:
            await client.journals.create(NAME, labels={FRAMING_LABEL: "json-lines"})
            for low in range(0, 2_000, 100):
                async with publisher.transaction() as transaction:
                    await transaction.publish_many(NAME, [{"n": n} for n in range(low, low + 100)])
            await asyncio.to_thread(run, node, "export", NAME, there)
            await asyncio.to_thread(run, node, "import", COPY, there)
            assert [each.json()["n"] async for each in client.messages(COPY)] == list(range(2_000))

    asyncio.run(work())


def test_a_directory_of_something_else_is_left_as_it_is(node: NodeProcess, tmp_path: Path) -> None:
    """Neither files of others, nor the export of another journal."""
    filled(node, 10)
    run(node, "create", COPY)
    other = tmp_path / "mine"
    other.mkdir()
    (other / "file").write_text("mine")
    assert "is no export, and not empty (it holds file)" in run(node, "export", NAME, other, status=2)
    assert [path.name for path in other.iterdir()] == ["file"]
    assert "is no export" in run(node, "import", COPY, other, status=2)
    there = tmp_path / "export"
    run(node, "export", NAME, there)
    assert f"is an export of journal {NAME}" in run(node, "export", COPY, there, status=2)
    assert "there is no file or directory" in run(node, "import", COPY, tmp_path / "none", status=2)
    with transfer._alone_in(there):
        assert "another export writes into" in run(node, "export", NAME, there, status=2)
