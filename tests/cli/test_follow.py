"""`broadsheet journals follow`: what comes is printed, each byte once, whatever happens to the node."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import COMMAND, SECONDS_MAX, broadsheet, environment, from_a_terminal, node_of
from tests.journal.node_process import NodeProcess

NAME = "cli/followed"


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    with from_a_terminal():
        yield


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that has the same address after a restart, and an empty journal."""
    with node_of(tmp_path) as node:
        assert broadsheet("journals", "create", NAME, BROADSHEET_ADDRESS=node.address).returncode == 0
        yield node


@contextlib.contextmanager
def following(address: str, *arguments: str, command: str = "follow") -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(
        [*COMMAND, "journals", command, NAME, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(BROADSHEET_ADDRESS=address),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def append(address: str, content: bytes) -> None:
    done = subprocess.run(
        [*COMMAND, "journals", "append", NAME],
        check=False,
        capture_output=True,
        timeout=SECONDS_MAX,
        env=environment(BROADSHEET_ADDRESS=address),
        input=content,
    )
    assert done.returncode == 0, done.stderr.decode()


def printed(process: "subprocess.Popen[bytes]", count: int) -> bytes:
    """The next `count` bytes that it prints."""
    assert process.stdout is not None
    found = b""
    while len(found) < count:
        piece = os.read(process.stdout.fileno(), count - len(found))
        assert piece, f"it ended behind {found!r}"
        found += piece
    return found


def interrupted(process: "subprocess.Popen[bytes]") -> tuple[int, bytes, bytes]:
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=SECONDS_MAX)
    return process.returncode, out, said


def test_a_follower_goes_on_after_the_node_was_killed_and_ends_at_ctrl_c(node: NodeProcess) -> None:
    """No byte is left out or printed twice, and nothing is said of the restart or of the end."""
    append(node.address, b"one\ntw")
    with following(node.address) as process:
        assert printed(process, 6) == b"one\ntw"
        node.kill()
        assert asyncio.run(node.start())
        append(node.address, b"o\nthree\n")

        assert printed(process, 8) == b"o\nthree\n"
        assert interrupted(process) == (130, b"", b"")


@pytest.mark.parametrize(("start", "first"), [("latest", b"new\n"), ("4", b"two\n"), ("earliest", b"one\n")])
def test_a_follower_begins_where_it_is_told(node: NodeProcess, start: str, first: bytes) -> None:
    """`latest` is the end as it is when the read begins."""
    append(node.address, b"one\ntwo\n")
    with following(node.address, "--from", start) as process, contextlib.ExitStack() as stack:
        feeder = stack.enter_context(_feeding(node.address))

        assert printed(process, 4) == first
        assert interrupted(process)[0] == 130
        feeder.kill()


@contextlib.contextmanager
def _feeding(address: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Appends lines for ever, since nothing tells when a follower has its first place."""
    command = f"while echo new; do sleep 0.05; done | {' '.join(COMMAND)} journals append {NAME} --lines"
    with subprocess.Popen(
        command,
        shell=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment(BROADSHEET_ADDRESS=address),
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_by_lines_no_part_of_a_line_is_printed(node: NodeProcess) -> None:
    """What prints beside it, as another follower does, never comes between the parts of a line."""
    with following(node.address, "--lines") as process:
        append(node.address, b"one\npart")
        assert printed(process, 4) == b"one\n"
        append(node.address, b" and rest\nnot whole")

        assert printed(process, 14) == b"part and rest\n"
        assert interrupted(process) == (130, b"", b"")


def test_a_follower_ends_in_silence_once_nobody_reads_it(node: NodeProcess) -> None:
    """As in `follow | head`."""
    append(node.address, b"one\n")
    with following(node.address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert printed(process, 4) == b"one\n"
        process.stdout.close()
        append(node.address, b"two\n")

        assert process.wait(SECONDS_MAX) == 1
        assert process.stderr.read() == b""


@pytest.mark.parametrize("command", ["follow", "read"])
def test_a_reader_whose_output_nobody_takes_ends_at_ctrl_c(node: NodeProcess, command: str) -> None:
    """A pipe that is full, as that of a pager, held the command until a second Ctrl-C."""
    append(node.address, b"x" * (1 << 20))
    with following(node.address, command=command) as process:
        assert printed(process, 1) == b"x"
        process.send_signal(signal.SIGINT)

        assert process.wait(SECONDS_MAX) == 130


def test_a_journal_that_is_deleted_ends_its_follower(node: NodeProcess) -> None:
    """A later journal of the name is another one."""
    append(node.address, b"one\n")
    with following(node.address) as process:
        assert printed(process, 4) == b"one\n"
        broadsheet("journals", "delete", NAME, "--yes", BROADSHEET_ADDRESS=node.address)
        _, said = process.communicate(timeout=SECONDS_MAX)

    assert process.returncode == 1
    assert NAME in said.decode()
    assert b"Traceback" not in said


def test_a_start_that_is_none_is_refused(node: NodeProcess) -> None:
    """Before anything is read."""
    for start in ("-1", "first", ""):
        done = broadsheet("journals", "follow", NAME, "--from", start, BROADSHEET_ADDRESS=node.address)

        assert (done.returncode, done.stdout) == (2, "")
        assert "earliest, latest, or an offset" in " ".join(done.stderr.replace("│", " ").split())
