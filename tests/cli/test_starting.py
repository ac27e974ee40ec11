"""Where a reader begins: at the last lines or messages, or at a time; and what is shown again and again."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

import broadsheet as library
from broadsheet.journal.core.spec import FRAMING_LABEL
from tests.cli.processes import COMMAND, SECONDS_MAX, broadsheet, environment, from_a_terminal, node_of
from tests.journal.node_process import NodeProcess

LINES, MESSAGES = "cli/lines", "cli/messages"
LINE = b"%06d " + b"x" * 90 + b"\n"
COUNT = 3_000


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    with from_a_terminal():
        yield


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with 3,000 lines in one journal, and as many messages of 30 transactions in another."""

    async def fill(address: str) -> None:
        async with library.connect(address) as client, client.publisher("cli/commits") as publisher:
            await client.journals.create(LINES, fragment_length=64 << 10)
            for low in range(0, COUNT, 100):
                await client.journals.append_many(LINES, [LINE % n for n in range(low, low + 100)])
            await client.journals.create(
                MESSAGES, fragment_length=32 << 10, labels={FRAMING_LABEL: "json-lines", "env": "eu"}
            )
            for low in range(0, COUNT, 100):
                async with publisher.transaction() as transaction:
                    await transaction.publish_many(MESSAGES, [{"n": n} for n in range(low, low + 100)])

    with node_of(tmp_path_factory.mktemp("node")) as node:
        asyncio.run(fill(node.address))
        yield node


def run(node: NodeProcess, *arguments: str, status: int = 0) -> str:
    done = broadsheet(*arguments, BROADSHEET_ADDRESS=node.address)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


@pytest.mark.parametrize("count", [0, 1, 7, 2_500, COUNT, COUNT + 1])
def test_the_last_lines_of_a_journal_are_those_at_its_end(node: NodeProcess, count: int) -> None:
    """However far they reach back: more than one look, more than one fragment, more than there are."""
    found = run(node, "journals", "read", LINES, "-n", str(count)).encode()
    assert found == b"".join(LINE % n for n in range(max(0, COUNT - count), COUNT))


@pytest.mark.parametrize("count", [0, 1, 7, 1_234, COUNT + 1])
def test_the_last_messages_are_those_that_were_committed_last(node: NodeProcess, count: int) -> None:
    """Counted from an index point on, and from earlier ones until there are enough."""
    found = run(node, "messages", "read", MESSAGES, "-n", str(count)).splitlines()
    assert found == [f'{{"n":{n}}}' for n in range(max(0, COUNT - count), COUNT)]


def test_an_unfinished_line_at_the_end_is_a_line(node: NodeProcess) -> None:
    """As `tail` has it; and of nothing there is nothing."""
    name = "cli/few"
    run(node, "journals", "create", name)
    assert not run(node, "journals", "read", name, "-n", "3")
    with library.connect_sync(node.address) as client:
        client.journals.append(name, b"one\n\ntwo\nthr")
    assert run(node, "journals", "read", name, "-n", "1") == "thr"
    assert run(node, "journals", "read", name, "-n", "3") == "\ntwo\nthr"
    assert run(node, "journals", "read", name, "-n", "9") == "one\n\ntwo\nthr"


def test_what_follows_comes_behind_the_last_lines(node: NodeProcess) -> None:
    """`follow -n 2` prints two lines and waits."""
    name = "cli/grows"
    run(node, "journals", "create", name)
    with library.connect_sync(node.address) as client:
        client.journals.append(name, b"a\nb\nc\n")
        with subprocess.Popen(
            [*COMMAND, "journals", "follow", name, "-n", "2"],
            stdout=subprocess.PIPE,
            env=environment(BROADSHEET_ADDRESS=node.address),
        ) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == [b"b\n", b"c\n"]
            client.journals.append(name, b"d\n")
            assert process.stdout.readline() == b"d\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS_MAX) == 130


def test_messages_since_a_time_are_those_that_were_stamped_since(node: NodeProcess) -> None:
    """Exactly: each carries its time. Bytes have none, so some from before come with them."""
    name = "cli/timed"
    run(node, "journals", "create", name, "--label", f"{FRAMING_LABEL}=json-lines")
    with library.connect_sync(node.address) as client, client.publisher() as publisher:
        publisher.publish(name, {"n": 1})
        between = time.time()
        publisher.publish(name, {"n": 2})
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between)) + f"{between % 1:.6f}"[1:] + "+00:00"
    assert run(node, "messages", "read", name, "--since", moment) == '{"n":2}\n'
    assert run(node, "messages", "read", name, "--since", "1h") == '{"n":1}\n{"n":2}\n'
    assert run(node, "journals", "read", name, "--since", "1h").count("\n") == 2
    assert not run(node, "messages", "read", name, "--since", "0s")


@pytest.mark.parametrize(
    "arguments",
    [
        ("journals", "read", LINES, "-n", "1", "--offset", "3"),
        ("journals", "follow", LINES, "-n", "1", "--since", "3m"),
        ("messages", "read", MESSAGES, "--start", "latest", "--since", "3m"),
    ],
)
def test_one_option_says_where_to_begin(node: NodeProcess, arguments: tuple[str, ...]) -> None:
    """Of two the command would have to leave out one."""
    assert "one of them says where to begin" in run(node, *arguments, status=2)


def test_a_listing_is_a_table_with_units_and_names_alone_for_pipes(node: NodeProcess) -> None:
    """Numbers stand to the right, lengths have their units; `--limit` takes the first ones."""
    table = run(node, "journals", "list", "cli/").splitlines()
    assert table[0].split() == ["NAME", "STATE", "SIZE", "END", "OPEN", "FRAGMENT", "LABELS"]
    lines = next(line for line in table if line.startswith(LINES)).split()
    assert lines[1:5] == ["open", "287.1", "KiB", str(98 * COUNT)]
    assert next(line for line in table if line.startswith(MESSAGES)).endswith(
        f"{FRAMING_LABEL}=json-lines,env=eu"
    )
    names = run(node, "journals", "list", "--names").split()
    assert names == sorted(names)
    assert run(node, "journals", "list", "--names", "--limit", "2").split() == names[:2]


@pytest.mark.parametrize(
    "arguments", [("journals", "list"), ("journals", "status", LINES), ("status",)], ids=" ".join
)
def test_what_is_watched_is_shown_again_until_an_interrupt(
    node: NodeProcess, arguments: tuple[str, ...]
) -> None:
    """On a pipe each show follows the one before."""
    with subprocess.Popen(
        [*COMMAND, *arguments, "--watch", "100ms"],
        stdout=subprocess.PIPE,
        env=environment(BROADSHEET_ADDRESS=node.address),
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        while (line := process.stdout.readline()).split()[:1] != first.split()[:1]:
            assert line
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(SECONDS_MAX) == 130
    assert "0.1 s or more" in run(node, *arguments, "--watch", "1ms", status=2)
