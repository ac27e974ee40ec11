"""`broadsheet messages`: each message is published once, and read once, from where somebody asks."""

import asyncio
import base64
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broadsheet as library
from broadsheet.journal.core.spec import FRAMING_LABEL
from tests.cli.processes import COMMAND, SECONDS_MAX, environment, from_a_terminal, node_of
from tests.journal.node_process import NodeProcess

Done = subprocess.CompletedProcess[bytes]
ORDERS, OTHER, FIXED = "cli/orders", "cli/other", "cli/fixed"


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    with from_a_terminal():
        yield


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that has the same address after a restart, and three journals."""
    with node_of(tmp_path) as node:
        with library.connect_sync(node.address) as client:
            for name, framing in ((ORDERS, "json-lines"), (OTHER, "json-lines"), (FIXED, "fixed")):
                client.journals.create(name, labels={FRAMING_LABEL: framing})
        yield node


def messages(node: NodeProcess, *arguments: str, content: bytes = b"") -> Done:
    return subprocess.run(
        [*COMMAND, "messages", *arguments],
        check=False,
        capture_output=True,
        timeout=SECONDS_MAX,
        env=environment(BROADSHEET_ADDRESS=node.address),
        input=content,
    )


def started(node: NodeProcess, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*COMMAND, "messages", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(BROADSHEET_ADDRESS=node.address),
    )


def read(node: NodeProcess, *arguments: str) -> list[Any]:
    """The objects that a read prints."""
    done = messages(node, "read", *arguments)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def said(done: Done) -> str:
    return " ".join(done.stderr.decode().replace("│", " ").split())


def test_lines_are_published_and_read_as_they_were(node: NodeProcess) -> None:
    """Numbers too, which a JSON library would round. Without the UUID they can be published again."""
    lines = b'{"n": 1.10, "big": 123456789012345678901}\n\n{"n":2}\n{}'
    done = messages(node, "publish", ORDERS, "--json", content=lines)

    assert (done.returncode, json.loads(done.stdout)) == (0, {"published": {ORDERS: 3}})
    assert messages(node, "read", ORDERS).stdout == b'{"n":1.10,"big":123456789012345678901}\n{"n":2}\n{}\n'
    again = messages(node, "publish", OTHER, content=messages(node, "read", ORDERS).stdout)
    assert again.stdout == b"cli/other: 3 messages\n"
    assert messages(node, "read", OTHER).stdout == messages(node, "read", ORDERS).stdout


def test_a_read_goes_on_behind_a_position_that_was_printed(node: NodeProcess) -> None:
    """`--limit` and `--start` cut a journal without a message left out or given twice."""
    messages(node, "publish", ORDERS, content=b"".join(b'{"n":%d}\n' % n for n in range(10)))
    found, start = [], "earliest"
    while part := read(node, ORDERS, "--json", "--limit", "3", "--start", start):
        found += [each["value"]["n"] for each in part]
        assert {each["journal"] for each in part} == {ORDERS}
        assert all(each["uuid"] for each in part)
        start = json.dumps(part[-1]["position"])

    assert found == list(range(10))
    assert read(node, ORDERS, "--start", "latest") == []
    part = read(node, ORDERS, "--json", "--limit", "2")
    assert [each["n"] for each in read(node, ORDERS, "--start", str(part[1]["end"]))] == list(range(2, 10))


def test_what_is_rolled_back_is_read_only_where_somebody_asks(node: NodeProcess) -> None:
    """As readers of Kafka know it: read committed is the default, read uncommitted an option."""
    with library.connect_sync(node.address) as client, client.publisher("cli/commits") as publisher:
        with publisher.transaction() as transaction:
            transaction.publish(ORDERS, {"n": 1})
        transaction = publisher.transaction()
        transaction.publish(ORDERS, {"n": 2})
        transaction.roll_back()

    assert read(node, ORDERS) == read(node, ORDERS, "--committed") == [{"n": 1}]
    assert {"n": 1} in read(node, ORDERS, "--uncommitted")
    assert messages(node, "publish", ORDERS, content=b'{"n":3}').returncode == 0
    assert read(node, ORDERS) == [{"n": 1}, {"n": 3}]


def test_bytes_are_read_as_they_are_and_in_json_as_base64(node: NodeProcess) -> None:
    """A fixed frame holds anything, and so may a line that no publisher of ours wrote."""
    with library.connect_sync(node.address) as client:
        client.journals.append(ORDERS, b"no json\n\xff\n[1]\n")
        with client.publisher() as publisher:
            publisher.publish(FIXED, b"\x00\xff")

    assert messages(node, "read", ORDERS).stdout == b"no json\n\xff\n[1]\n"
    found = [each.get("value", each.get("base64")) for each in read(node, ORDERS, "--json")]
    assert found == [base64.b64encode(b"no json").decode(), base64.b64encode(b"\xff").decode(), [1]]
    (fixed,) = read(node, FIXED, "--json")
    assert base64.b64decode(fixed["base64"]) == b"\x00\xff"


def test_a_key_chooses_the_journal_as_a_publisher_of_python_does(node: NodeProcess) -> None:
    """Whoever publishes from both must find a customer's messages in one journal."""
    lines = [{"customer": {"id": n % 7 if n % 2 else str(n % 7)}, "n": n} for n in range(60)]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with library.connect_sync(node.address) as client:
        for name in ("py/a", "py/b"):
            client.journals.create(name)
        with client.publisher() as publisher:
            for n in range(60):
                publisher.publish(["py/a", "py/b"], {"n": n}, key=str(n % 7))
    done = messages(node, "publish", ORDERS, OTHER, "--key", "customer.id", content=content)

    assert done.returncode == 0, done.stderr.decode()
    for name, theirs in ((ORDERS, "py/a"), (OTHER, "py/b")):
        assert [each["n"] for each in read(node, name)] == [each["n"] for each in read(node, theirs)] != []


def test_what_is_published_through_kills_of_the_node_is_read_once(node: NodeProcess) -> None:
    """The lines go on coming while the node is killed and started; a follower sees each, in order."""
    count = 3_000
    with started(node, "publish", ORDERS) as publisher, started(node, "read", ORDERS, "--follow") as reader:
        try:
            assert publisher.stdin is not None
            assert reader.stdout is not None
            feeder = threading.Thread(target=_feed, args=(publisher, count))
            feeder.start()
            seen = [json.loads(reader.stdout.readline())["n"] for _ in range(100)]
            for _ in range(3):
                node.kill()
                assert asyncio.run(node.start())
                seen += [json.loads(reader.stdout.readline())["n"] for _ in range(100)]
            seen += [json.loads(reader.stdout.readline())["n"] for _ in range(count - len(seen))]
            feeder.join()
            told = publisher.communicate(timeout=SECONDS_MAX)[0]
            reader.send_signal(signal.SIGINT)
            rest = reader.communicate(timeout=SECONDS_MAX)
        finally:
            publisher.kill()
            reader.kill()

    assert seen == list(range(count))
    assert (told, publisher.returncode) == (b"cli/orders: 3000 messages\n", 0)
    assert (rest, reader.returncode) == ((b"", b""), 130)
    assert [each["n"] for each in read(node, ORDERS)] == seen


def _feed(publisher: "subprocess.Popen[bytes]", count: int) -> None:
    """Small writes, so that lines come in many pieces and the kills fall between them."""
    assert publisher.stdin is not None
    for n in range(count):
        publisher.stdin.write(b'{"n":%d}\n' % n)
        if n % 10 == 0:
            publisher.stdin.flush()
    publisher.stdin.close()
    publisher.stdin = None


def test_after_a_failure_a_second_call_publishes_the_rest(node: NodeProcess) -> None:
    """The line is named, what stands before it is published, and the option that is told works."""
    content = b'{"n":1}\n{"n":2}\n{"n":3\n{"n":4}\n'
    bad = messages(node, "publish", ORDERS, content=content)

    assert (bad.returncode, bad.stdout) == (2, b"")
    assert "line 3:" in said(bad)
    assert "2 messages are published: go on with --skip-lines 2" in said(bad)
    content = content.replace(b'{"n":3\n', b'{"n":3}\n')
    assert messages(node, "publish", ORDERS, "--skip-lines", "2", content=content).returncode == 0
    assert read(node, ORDERS) == [{"n": n} for n in range(1, 5)]
    beyond = messages(node, "publish", ORDERS, "--skip-lines", "9", content=content)
    assert (beyond.returncode, "the input has 4 lines" in said(beyond)) == (2, True)


def test_a_node_that_stays_away_leaves_an_outcome_that_is_told(node: NodeProcess) -> None:
    """How many are published for certain, and how many may be: status 3 if some may."""
    with started(node, "publish", ORDERS, "--patience", "1s") as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b'{"n":1}\n{"n":2}\n')
            process.stdin.flush()
            _until_read(node, 2)
            node.process.send_signal(signal.SIGSTOP)
            _, told = process.communicate(b'{"n":3}\n', timeout=SECONDS_MAX)
        finally:
            process.kill()
            node.process.send_signal(signal.SIGCONT)

    assert process.returncode == 3, told
    assert b"2 messages are published: go on with --skip-lines 2 if none of the next 1 lines is there" in told


def _until_read(node: NodeProcess, count: int) -> None:
    done = messages(node, "read", ORDERS, "--follow", "--limit", str(count))
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "content", "words"),
    [
        (("publish", ORDERS), b"[1]\n", "line 1: b'[1]' is no JSON object"),
        (("publish", ORDERS), b'{"a":"\xff"}\n', "is no JSON object"),
        (("publish", ORDERS), b'{"_meta":1}\n', "reserved for the UUID"),
        (("publish", ORDERS, OTHER), b"{}\n", "--key chooses among several"),
        (("publish", ORDERS, "--key", "a"), b"{}\n", "--key chooses among several"),
        (("publish", ORDERS, ORDERS, "--key", "a"), b"{}\n", "named twice"),
        (("publish", ORDERS, OTHER, "--key", "a.b"), b'{"a":1}\n', "there is no field a.b"),
        (("publish", ORDERS, OTHER, "--key", "a"), b'{"a":null}\n', "no text, number or boolean"),
        (("publish", "cli/none"), b"{}\n", "cli/none does not exist"),
        (("publish", ORDERS, "--patience", "2"), b"{}\n", "--patience: 2 has no unit"),
        (("read", "cli/none"), b"", "cli/none does not exist"),
        (("read", ORDERS, "--start", "first"), b"", "--start first: earliest, latest, or an offset"),
        (("read", ORDERS, "--start", '{"offset":'), b"", "--start"),
        (("read", ORDERS, "--start", '{"offset":0,"create_revision":99}'), b"", "deleted and made again"),
    ],
)
def test_a_bad_argument_or_line_is_named_and_nothing_is_published(
    node: NodeProcess, arguments: tuple[str, ...], content: bytes, words: str
) -> None:
    """House rule: a clear error, on standard error, with a status; never a traceback."""
    done = messages(node, *arguments, content=content)

    assert done.returncode != 0
    assert done.stdout == b""
    assert words in said(done)
    assert "Traceback" not in said(done)
    assert read(node, ORDERS) == []
