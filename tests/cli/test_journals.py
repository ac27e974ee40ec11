"""`broadsheet journals`: what a user types, and what comes back."""

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.cli.append import Appended
from tests.cli.processes import COMMAND, SECONDS_MAX, environment, from_a_terminal
from tests.journal.node_process import NodeProcess

Done = subprocess.CompletedProcess[bytes]


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    with from_a_terminal():
        yield


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node"))
    assert asyncio.run(node.start())
    yield node
    node.kill()


@pytest.fixture(scope="module")
def address(node: NodeProcess) -> str:
    return node.address


def journals(address: str, *arguments: str, content: bytes = b"") -> Done:
    """Run a command of the group to its end."""
    return subprocess.run(
        [*COMMAND, "journals", *arguments],
        check=False,
        capture_output=True,
        timeout=SECONDS_MAX,
        env=environment(BROADSHEET_ADDRESS=address),
        input=content,
    )


def told(done: Done) -> dict[str, object]:
    """The JSON object that it printed, and nothing else."""
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_journal_from_its_making_to_its_end(address: str, tmp_path: Path) -> None:
    """Line 8 of the issue: create, list, append, read, status, delete, each with `--json`."""
    name, content, copy = "cli/a", b"one\ntwo\nthree\n", tmp_path / "copy"

    made = told(journals(address, "create", name, "--codec", "gzip", "--label", "app=x-y", "--json"))
    assert made["spec"] == {"name": name, "fragment": {"codec": "gzip"}, "labels": {"app": "x-y"}}
    whole = told(journals(address, "append", name, "--json", content=content))
    assert whole == {"journal": name, "begin": 0, "end": 14, "appends": 1}
    (tmp_path / "lines").write_bytes(content)
    lines = told(journals(address, "append", name, str(tmp_path / "lines"), "--lines", "--json"))
    assert lines == {"journal": name, "begin": 14, "end": 28, "appends": 3}
    assert journals(address, "append", name, "--offset", "28", content=b"end").returncode == 0

    assert journals(address, "read", name).stdout == content * 2 + b"end"
    assert journals(address, "read", name, "--offset", "4", "--end", "8").stdout == b"two\n"
    nowhere = journals(address, "read", name, "--output", "/no/such/directory/x")
    assert (nowhere.returncode, b"Traceback" in nowhere.stderr) == (2, False)
    read = told(journals(address, "read", name, "--output", str(copy), "--json"))
    assert (read, copy.read_bytes()) == ({"journal": name, "begin": 0, "end": 31}, content * 2 + b"end")
    listed = told(journals(address, "list", "cli/a", "--json"))["journals"]
    assert [each["spec"]["name"] for each in listed] == [name]  # type: ignore[attr-defined]
    status = told(journals(address, "status", name, "--json"))
    assert (status["state"], status["begin"], status["end"]) == ("open", 0, 31)

    assert journals(address, "delete", name).returncode != 0, "nobody confirmed it"
    assert told(journals(address, "delete", name, "--yes", "--json")) == {"journal": name, "deleted": True}
    assert told(journals(address, "list", "cli/a", "--json")) == {"journals": []}


def test_without_json_it_prints_text(address: str) -> None:
    """What somebody reads who tries it out."""
    assert b"cli/text: created at revision" in journals(address, "create", "cli/text").stdout
    assert journals(address, "append", "cli/text", content=b"x").stdout == b"cli/text: [0, 1) in 1 append\n"
    assert journals(address, "list", "cli/t", "--names").stdout == b"cli/text\n"
    assert b"state: open\n" in journals(address, "status", "cli/text").stdout
    assert journals(address, "delete", "cli/text", "--yes").stdout == b"cli/text: deleted\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "../x"), "../x"),
        (("create", "cli/b", "--codec", "lz4"), "codec 'lz4' is unknown"),
        (("create", "cli/b", "--label", "x"), "is not NAME=VALUE"),
        (("create", "cli/b", "--label", "env=a", "--label", "env=b"), "env is given twice, as 'a' and 'b'"),
        (("create", "cli/b", "--flush-interval", "300"), "--flush-interval: 300 has no unit"),
        (("create", "cli/b", "--flush-interval", "3s"), "flush_interval of 3"),
        (("create", "cli/b", "--fragment-length", "1"), "fragment.length 1"),
        (("create", "cli/b", "--store", "s3://nobody/"), "journals.stores"),
        (("append", "cli/none"), "cli/none does not exist"),
        (("append", "cli/none", "--lines", "--offset", "3"), "--offset is for one"),
        (("append", "cli/none", "--lines", "--atomic"), "--atomic one"),
        (("append", "cli/none", "/no/such/file"), "/no/such/file"),
        (("read", "cli/none"), "cli/none does not exist"),
        (("read", "cli/none", "--json"), "needs --output"),
        (("read", "cli/none", "--offset", "3", "--end", "1"), "--end 1 is below the offset 3"),
        (("read", "cli/none", "--offset", "-2"), "--offset"),
        (("append", "cli/none", "--offset", "-2"), "--offset"),
        (("status", "cli/none"), "cli/none does not exist"),
        (("delete", "cli/none", "--yes"), "cli/none does not exist"),
        (("list", "--address", "127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_a_bad_argument_is_named_and_nothing_changes(
    address: str, arguments: tuple[str, ...], words: str
) -> None:
    """House rule: a clear error, on standard error, with a status; never a traceback."""
    done = journals(address, *arguments)
    said = " ".join(done.stderr.decode().replace("│", " ").split())

    assert done.returncode != 0
    assert done.stdout == b""
    assert words in said
    assert "Traceback" not in said
    assert told(journals(address, "list", "cli/b", "--json")) == {"journals": []}


def test_progress_is_shown_on_a_terminal_only(address: str, tmp_path: Path) -> None:
    """On standard error, so that content can be piped; where nobody watches, nothing is written."""
    (tmp_path / "big").write_bytes(b"x" * 5_000_000)
    journals(address, "create", "cli/big")
    silent = journals(address, "append", "cli/big", str(tmp_path / "big"))
    assert (silent.returncode, silent.stderr) == (0, b"")

    terminal, theirs = pty.openpty()
    command = [*COMMAND, "journals", "append", "cli/big", str(tmp_path / "big"), "--json"]
    shown = environment(BROADSHEET_ADDRESS=address, TERM="xterm")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=shown) as process:
        os.close(theirs)
        drawn = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # It has ended, and so has its terminal.
                break
            if not piece:
                break
            drawn += piece
        assert process.stdout is not None
        printed = json.loads(process.stdout.read())
    os.close(terminal)
    assert process.returncode == 0
    assert b"append cli/big" in drawn
    assert b"5.0/5.0 MB" in drawn
    assert printed["end"] == 10_000_000


def test_a_refused_read_leaves_the_file_that_was_there(address: str, tmp_path: Path) -> None:
    """A mistyped offset must not cost somebody yesterday's copy; an empty journal is an empty file."""
    journals(address, "create", "cli/kept")
    (tmp_path / "kept").write_bytes(b"yesterday")

    refused = journals(address, "read", "cli/kept", "--offset", "9", "--output", str(tmp_path / "kept"))
    assert (refused.returncode, (tmp_path / "kept").read_bytes()) == (1, b"yesterday")
    assert b"offset 9 is above the committed end 0" in refused.stderr
    assert journals(address, "read", "cli/kept", "--output", str(tmp_path / "kept")).returncode == 0
    assert (tmp_path / "kept").read_bytes() == b""


def test_nothing_and_standard_input_by_name_are_appended(address: str) -> None:
    """An empty append is an append; `-` is what other tools call standard input."""
    journals(address, "create", "cli/nothing")

    assert journals(address, "append", "cli/nothing").stdout == b"cli/nothing: [0, 0) in 1 append\n"
    assert (
        journals(address, "append", "cli/nothing", "--lines").stdout == b"cli/nothing: [0, 0) in 0 appends\n"
    )
    assert told(journals(address, "append", "cli/nothing", "-", "--json", content=b"x"))["end"] == 1
    lines = told(journals(address, "append", "cli/nothing", "--lines", "--json", content=b"a\rb\n\nlast"))
    assert (lines["begin"], lines["end"], lines["appends"]) == (1, 10, 3)


def test_a_line_of_any_length_is_an_append_of_its_own(address: str) -> None:
    """Those above 64 KiB take another way, in their place among the others."""
    journals(address, "create", "cli/long")
    content = b"short\n" + b"x" * 70_000 + b"\n" + b"y" * 200_000 + b"\nshort\n"

    said = told(journals(address, "append", "cli/long", "--lines", "--json", content=content))

    assert (said["begin"], said["end"], said["appends"]) == (0, len(content), 4)
    assert journals(address, "read", "cli/long").stdout == content


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_end_no_process(address: str, closed: str) -> None:
    """Some daemons start what they start so; a loop on descriptor 0 ended the process with a core."""
    journals(address, "create", "cli/closed", "--if-absent")
    command = " ".join([*COMMAND, "journals", "append", "cli/closed", closed])
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        check=False,
        capture_output=True,
        timeout=SECONDS_MAX,
        env=environment(BROADSHEET_ADDRESS=address),
        stdin=subprocess.DEVNULL,
    )

    if closed.startswith("<"):
        assert done.returncode == 1
        assert done.stderr in (b"broadsheet: Bad file descriptor\n", b"")
    else:
        assert done.returncode == 0


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--lines",)])
def test_an_append_that_could_not_be_told_is_no_failed_one(address: str, arguments: tuple[str, ...]) -> None:
    """Its status was 1, and its words those of a full disk of the node: a script appended the bytes again."""
    journals(address, "create", "cli/untold", "--if-absent")
    begin = len(journals(address, "read", "cli/untold").stdout)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "journals", "append", "cli/untold", *arguments],
            check=False,
            input=b"once\n",
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=SECONDS_MAX,
            env=environment(BROADSHEET_ADDRESS=address),
        )

    assert done.returncode == 3
    assert done.stderr.decode() == (
        f"broadsheet: cli/untold: [{begin}, {begin + 5}) in 1 append; standard output took no word of it:"
        " No space left on device\n"
    )
    assert journals(address, "read", "cli/untold", "--offset", str(begin)).stdout == b"once\n"


def test_where_the_first_append_is_in_doubt_no_offset_is_invented() -> None:
    """`--offset 0` showed the begin of the journal: the bytes were not there, and were appended again."""
    appended = Appended("cli/doubt", offset=None, skipped=0, advance=lambda _: None)
    appended.in_flight = 5
    assert appended.report().endswith(
        " if they are: they would be the last before the end that `broadsheet journals status cli/doubt`"
        " tells, and `broadsheet journals read cli/doubt --offset OFFSET` shows them"
    )
    placed = Appended("cli/doubt", offset=0, skipped=0, advance=lambda _: None)
    placed.in_flight = 5
    assert placed.report().endswith("`broadsheet journals read cli/doubt --offset 0` shows them")


def test_lines_are_appended_as_they_come(address: str) -> None:
    """`tail -f log | broadsheet journals append … --lines`: what has come is on disk, not in a buffer."""
    journals(address, "create", "cli/slow")
    command = [*COMMAND, "journals", "append", "cli/slow", "--lines", "--json"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(BROADSHEET_ADDRESS=address)
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntw")
        process.stdin.flush()
        blocking = [*COMMAND, "journals", "read", "cli/slow", "--block", "--end", "4"]
        read = subprocess.run(
            blocking,
            check=True,
            capture_output=True,
            timeout=SECONDS_MAX,
            env=environment(BROADSHEET_ADDRESS=address),
        )
        process.stdin.write(b"o\n")
        process.stdin.close()
        said = json.loads(process.stdout.read())

    assert read.stdout == b"one\n"
    assert (said["begin"], said["end"], said["appends"]) == (0, 8, 2)


def _until_end(address: str, name: str, end: int) -> bytes:
    """The journal's first bytes, once there are so many."""
    read = journals(address, "read", name, "--block", "--end", str(end))
    assert read.returncode == 0, read.stderr
    return read.stdout


@pytest.mark.parametrize(("end", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_comes_slowly_is_appended_as_it_comes(address: str, end: signal.Signals, status: int) -> None:
    """`tail -f log | broadsheet journals append …`: it waited for a mebibyte, and lost it with Ctrl-C."""
    journals(address, "create", "cli/tail", "--if-absent")
    journals(address, "delete", "cli/tail", "--yes")
    journals(address, "create", "cli/tail")
    command = [*COMMAND, "journals", "append", "cli/tail"]
    shown = environment(BROADSHEET_ADDRESS=address)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=shown
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nthr")
        process.stdin.flush()
        assert _until_end(address, "cli/tail", 8) == b"one\ntwo\n"
        process.stdin.write(b"ee\n")
        process.stdin.flush()
        assert _until_end(address, "cli/tail", 14) == b"one\ntwo\nthree\n"
        process.send_signal(end)
        _, said = process.communicate(timeout=SECONDS_MAX)

    assert process.returncode == status
    assert said == (
        b"broadsheet: 14 bytes of the input (3 lines) are in cli/tail, up to offset 14;"
        b" go on with --skip-bytes 14\n"
    )


def test_what_comes_steadily_is_appended_before_it_fills_a_piece(address: str) -> None:
    """A log of ten lines a second is never silent: its lines were in no journal for a quarter of an hour."""
    journals(address, "create", "cli/steady")
    command = [*COMMAND, "journals", "append", "cli/steady"]
    shown = environment(BROADSHEET_ADDRESS=address)
    reading = [*COMMAND, "journals", "read", "cli/steady", "--block", "--end", "10"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=shown) as process,
        subprocess.Popen(reading, stdout=subprocess.PIPE, env=shown) as reader,
    ):
        assert process.stdin is not None
        until = time.monotonic() + SECONDS_MAX
        while reader.poll() is None and time.monotonic() < until:
            process.stdin.write(b"line\n")
            process.stdin.flush()
            time.sleep(0.05)
        reader.kill()
        read, _ = reader.communicate()

    assert read == b"line\nline\n"


def test_ctrl_c_says_what_may_be_in(tmp_path: Path) -> None:
    """An append that is on its way may be in: whoever repeated it, as was told, had it twice."""
    node = NodeProcess(tmp_path)
    assert asyncio.run(node.start())
    journals(node.address, "create", "cli/doubt")
    command = [*COMMAND, "journals", "append", "cli/doubt"]
    shown = environment(BROADSHEET_ADDRESS=node.address)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=shown
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert _until_end(node.address, "cli/doubt", 4) == b"one\n"
            node.process.send_signal(signal.SIGSTOP)
            process.stdin.write(b"x" * (1 << 20))
            process.stdin.flush()
            _until_it_waits(process.pid)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=SECONDS_MAX)
        finally:
            process.kill()
            node.process.send_signal(signal.SIGCONT)
            node.kill()

    assert process.returncode == 130
    assert said.decode() == (
        "broadsheet: 4 bytes of the input (1 lines) are in cli/doubt, up to offset 4; go on with"
        " --skip-bytes 4 if the next 1048576 bytes of the input are not in the journal, and with"
        " --skip-bytes 1048580 if they are: `broadsheet journals read cli/doubt --offset 4` shows them\n"
    )


@pytest.mark.parametrize("arguments", [(), ("--lines",), ("--atomic",)])
def test_an_append_that_waits_for_its_node_says_so_and_until_when(
    address: str, node: NodeProcess, arguments: tuple[str, ...]
) -> None:
    """It was silent for two minutes, or an hour: as if it waited for more input."""
    journals(address, "create", "cli/waits", "--if-absent")
    command = [*COMMAND, "journals", "append", "cli/waits", *arguments]
    shown = environment(BROADSHEET_ADDRESS=address)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=shown
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            _until_it_waits(process.pid)
            node.process.send_signal(signal.SIGSTOP)
            process.stdin.write(b"one\n")
            process.stdin.close()
            said = process.stderr.readline().decode()
        finally:
            node.process.send_signal(signal.SIGCONT)
        process.stdin = None
        done, rest = process.communicate(timeout=SECONDS_MAX)

    assert said.startswith(
        "broadsheet: no commit for 3 s of 4 bytes for cli/waits: the node may be busy, full"
    )
    assert re.search(r"waiting until \d\d:\d\d:\d\d, and saying then", said)
    assert (process.returncode, rest) == (0, b"")
    assert done.endswith(b" in 1 append\n")


def test_input_of_any_size_is_appended_in_pieces_that_end_at_line_ends(address: str) -> None:
    """An append has a limit; a stream has none. Nobody's line is torn by another writer."""
    journals(address, "create", "cli/pieces")
    content = b"".join(b"%d %s\n" % (n, b"x" * (n % 300)) for n in range(24_000))

    said = told(journals(address, "append", "cli/pieces", "--json", content=content))
    assert (said["begin"], said["end"], said["appends"]) == (0, len(content), -(-len(content) // (1 << 20)))
    assert journals(address, "read", "cli/pieces").stdout == content
    whole = told(journals(address, "append", "cli/pieces", "--atomic", "--json", content=content))
    assert (whole["begin"], whole["end"], whole["appends"]) == (len(content), 2 * len(content), 1)
    unbroken = told(journals(address, "append", "cli/pieces", "--json", content=b"y" * 1_100_000))
    assert unbroken["appends"] == 2


def test_a_failed_append_says_what_is_in_and_how_to_go_on(address: str) -> None:
    """Somebody who appends for hours must not start again, or append twice."""
    journals(address, "create", "cli/go-on")
    command = [*COMMAND, "journals", "append", "cli/go-on", "--offset", "0"]
    shown = environment(BROADSHEET_ADDRESS=address)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=shown
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        _until_end(address, "cli/go-on", 8)
        assert journals(address, "append", "cli/go-on", content=b"others\n").returncode == 0
        _, said = process.communicate(b"three\n", timeout=SECONDS_MAX)

    assert process.returncode == 1
    words = b"8 bytes of the input (2 lines) are in cli/go-on, up to offset 8; with a head below 8 nothing"
    words += b" stands there; with a head above, `broadsheet journals read cli/go-on --offset 8` shows what"
    words += b" does: to go on behind it, give its end as --offset, and --skip-bytes 8\n"
    assert words in said  # With --offset 8 it would be refused for ever.
    content = b"one\ntwo\nthree\n"
    assert journals(address, "append", "cli/go-on", "--skip-bytes", "8", content=content).returncode == 0
    assert journals(address, "read", "cli/go-on").stdout == b"one\ntwo\nothers\nthree\n"
    lines = journals(address, "append", "cli/go-on", "--lines", "--skip-bytes", "8", content=content)
    assert lines.stdout == b"cli/go-on: [21, 27) in 1 append\n"
    beyond = journals(address, "append", "cli/go-on", "--skip-bytes", "99", content=content)
    assert (beyond.returncode, b"the input has 14 bytes" in beyond.stderr) == (2, True)


def test_an_append_at_another_offset_than_the_head_names_a_read_only_where_it_works(address: str) -> None:
    """With a head below the offset it named a read that is refused."""
    journals(address, "create", "cli/elsewhere")
    journals(address, "append", "cli/elsewhere", content=b"x" * 5)
    for offset in ("2", "9"):
        refused = journals(address, "append", "cli/elsewhere", "--offset", offset, content=b"y")

        assert refused.returncode == 1
        assert refused.stderr.decode() == (
            "broadsheet: wrong append offset: journal cli/elsewhere: the head is 5, not the expected offset;"
            f" 0 bytes of the input (0 lines) are in cli/elsewhere; with a head below {offset} nothing stands"
            f" there; with a head above, `broadsheet journals read cli/elsewhere --offset {offset}` shows"
            " what does: to go on behind it, give its end as --offset\n"
        )


def test_an_append_that_was_refused_whole_tells_of_no_input_to_skip(address: str) -> None:
    """`go on with --skip-bytes 0` sent the user back to the same refusal."""
    refused = journals(address, "append", "no name", content=b"y")

    assert (refused.returncode, b"skip" in refused.stderr) == (1, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("append", "cli/stopped"),
        ("append", "cli/stopped", "--lines"),
        ("read", "cli/stopped", "--block"),
    ],
)
def test_ctrl_c_ends_a_command_that_waits(address: str, arguments: tuple[str, ...]) -> None:
    """For a pipe that stays silent, or for content that does not come; nothing is appended or said."""
    journals(address, "create", "cli/stopped", "--if-absent")
    shown = environment(BROADSHEET_ADDRESS=address)
    command = [*COMMAND, "journals", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=shown
    ) as process:
        try:
            _until_it_waits(process.pid)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=SECONDS_MAX)
        finally:
            process.kill()

    assert (process.returncode, said) == (130, (b"", b""))
    assert told(journals(address, "status", "cli/stopped", "--json"))["end"] == 0


def _until_it_waits(pid: int) -> None:
    """Until it is connected, and has used no CPU for a while."""
    before = ""
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        used = " ".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
        if used == before and _has_socket(pid):
            return
        before = used
        time.sleep(0.25)
    raise AssertionError("it never came to wait")


def _has_socket(pid: int) -> bool:
    """Whether one of its descriptors is a socket; one that it closes meanwhile is none."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(each.readlink()).startswith("socket:"):
                return True
    return False
