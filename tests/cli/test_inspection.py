"""`broadsheet journals describe`, `fragments` and `verify`: what is told is what is there."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import broadsheet as library
from broadsheet.cli.inspection import Verified, verified
from broadsheet.cli.tables import place_of, size_of, size_text, table
from broadsheet.journal.core.spec import FRAGMENT_BYTES_MIN, FRAMING_LABEL
from tests.cli.processes import SECONDS_MAX, broadsheet
from tests.journal.node_process import NodeProcess

NAME = "cli/inspected"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path)
    assert asyncio.run(node.start())
    yield node
    node.kill()


def told(node: NodeProcess, *arguments: str) -> Any:
    done = broadsheet("journals", *arguments, "--json", BROADSHEET_ADDRESS=node.address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def with_fragments(node: NodeProcess, count: int) -> list[Any]:
    """A journal of `count` stored fragments, and an open one of three bytes."""
    with library.connect_sync(node.address) as client:
        client.journals.create(NAME, fragment_length=FRAGMENT_BYTES_MIN, labels={"app": "x"})
        for n in range(count):
            client.journals.append(NAME, bytes([n]) * (FRAGMENT_BYTES_MIN + 1))
        client.journals.append(NAME, b"end", check={"owner": None}, union={"owner": "me"})
        until = time.monotonic() + SECONDS_MAX
        while not (found := client.journals.fragments(NAME)) or not all(each.is_stored for each in found):
            assert time.monotonic() < until, found
            time.sleep(0.02)
    listed: list[Any] = told(node, "fragments", NAME)["fragments"]
    assert len(listed) == count
    return listed


def test_a_journal_is_described_with_all_that_is_known_of_it(node: NodeProcess) -> None:
    """One look in place of five calls from Python."""
    length = FRAGMENT_BYTES_MIN + 1
    listed = with_fragments(node, 3)
    found = told(node, "describe", NAME)
    text = broadsheet("journals", "describe", NAME, BROADSHEET_ADDRESS=node.address).stdout
    lines = [line.split(maxsplit=1) for line in text.splitlines()]

    assert [each["end"] for each in listed] == [length, 2 * length, 3 * length]
    assert found["info"]["spec"]["labels"] == {"app": "x"}
    assert (found["status"]["begin"], found["status"]["end"]) == (0, 3 * length + 3)
    assert found["fragments"] == {
        "count": 3, "bytes": 3 * length, "unstored_count": 0, "unstored_bytes": 0
    }  # fmt: skip
    assert (found["registers"]["values"], found["producers"]) == ({"owner": "me"}, None)
    assert ["journal", NAME] in lines
    assert ["state", "open"] in lines
    assert ["label", "app=x"] in lines
    assert ["register", "owner=me"] in lines
    assert f"[0, {3 * length + 3}), {size_text(3 * length + 3)}" in text
    assert f"3 closed, {size_text(3 * length)}; 3 B in the open one" in text


def test_a_transaction_that_nobody_ended_is_told_with_its_begin(node: NodeProcess) -> None:
    """It is why a reader of committed messages stands still, or reads far back."""
    with library.connect_sync(node.address) as client:
        client.journals.create(NAME, labels={FRAMING_LABEL: "json-lines"})
        with client.publisher() as publisher:
            publisher.publish(NAME, {"n": 1})
            end = client.journals.end(NAME)
        with client.publisher("cli/commits") as publisher:
            transaction = publisher.transaction()
            transaction.publish(NAME, {"n": 2})
            while (at := client.journals.end(NAME)) == end:
                time.sleep(0.02)
            pending = told(node, "describe", NAME)["producers"]
            text = broadsheet("journals", "describe", NAME, BROADSHEET_ADDRESS=node.address).stdout

    assert pending == {"offset": at, "count": 2, "open_count": 1, "open_begin": end}
    assert f"2 up to offset {at}; 1 with pending messages, from {end} on" in text


def test_a_rotten_fragment_and_a_lost_one_are_found_and_the_others_are_read(node: NodeProcess) -> None:
    """A backup that nobody reads is none; one damaged fragment hides no other."""
    listed = with_fragments(node, 4)
    sound = told(node, "verify", NAME)
    store = node.root / "data" / "fragments" / NAME
    rotten, lost = store / listed[1]["name"], store / listed[2]["name"]
    content = bytearray(rotten.read_bytes())
    content[7] ^= 1
    node.kill()
    rotten.write_bytes(content)
    lost.unlink()
    assert asyncio.run(node.start())
    done = broadsheet("journals", "verify", NAME, "--json", BROADSHEET_ADDRESS=node.address)
    found = json.loads(done.stdout)
    text = broadsheet("journals", "verify", NAME, BROADSHEET_ADDRESS=node.address)

    assert (sound["count"], sound["damaged"], sound["holes"]) == (4, [], [])
    assert sound["bytes"] == 4 * (FRAGMENT_BYTES_MIN + 1)
    assert (done.returncode, text.returncode) == (1, 1), done.stderr
    assert [each["name"] for each in found["damaged"]] == [listed[1]["name"]]
    assert found["holes"] == [[listed[2]["begin"], listed[2]["end"]]]
    assert "2 of 3 closed fragments are sound" in text.stdout
    assert f"damaged: {listed[1]['name']}: " in text.stdout


def test_what_a_token_does_not_show_is_said_beside_all_that_it_shows(tmp_path: Path) -> None:
    """A token that may list and not read sees state and spec."""
    keys = tmp_path / "keys"
    assert broadsheet("token", "keys", keys).returncode == 0
    node = NodeProcess(tmp_path)
    configuration = tmp_path / "node.toml"
    configuration.write_text(
        configuration.read_text().replace("[native]\n", '[native]\nkeys_file = "keys"\n')
    )

    def token(capabilities: str) -> str:
        mint = ("token", "mint", "--capabilities", capabilities, "--keys-file", keys)
        return broadsheet(*mint).stdout.strip()

    try:
        assert asyncio.run(node.start())
        environment = {"BROADSHEET_ADDRESS": node.address, "BROADSHEET_TOKEN": token("all")}
        assert broadsheet("journals", "create", NAME, **environment).returncode == 0
        done = broadsheet("journals", "describe", NAME, **environment | {"BROADSHEET_TOKEN": token("list")})
    finally:
        node.kill()

    assert done.returncode == 0, done.stderr
    assert "state            open" in done.stdout
    assert "registers        not known: the token lacks READ" in done.stdout


def test_what_a_trim_removes_meanwhile_is_not_damaged(node: NodeProcess) -> None:
    """To verify a long journal takes hours; whoever is told of damage looks for a copy of the store."""
    listed = with_fragments(node, 4)

    async def verified_while_trimmed() -> Verified:
        with library.connect_sync(node.address) as other:
            below = listed[2]["end"]
            async with library.connect(node.address) as client:
                return await verified(client, NAME, lambda _count: print(other.journals.trim(NAME, below)))

    found = asyncio.run(verified_while_trimmed())
    assert (found.damaged, found.holes) == ([], [])
    assert (found.count, found.bytes) == (2, 2 * (FRAGMENT_BYTES_MIN + 1)), "the first and the last"


@pytest.mark.parametrize("command", ["describe", "fragments", "verify"])
def test_a_journal_that_is_none_is_named(node: NodeProcess, command: str) -> None:
    """As every other command of the group does."""
    done = broadsheet("journals", command, NAME, BROADSHEET_ADDRESS=node.address)

    assert (done.returncode, done.stdout) == (1, "")
    assert f"{NAME} does not exist" in done.stderr


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 << 20, "64 MiB"),
        ((1 << 63) - 1, "8 EiB"),
    ],
)
def test_a_size_is_told_in_its_largest_unit(count: int, text: str) -> None:
    """Nobody counts the digits of 68719476736."""
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("65536", 65_536),
        ("12B", 12),
        ("64MiB", 64 << 20),
        ("1.5 KiB", 1536),
        ("7EiB", 7 << 60),
        (4096, 4096),
    ],
)
def test_a_size_is_written_with_its_unit_or_as_bytes(text: str, count: int) -> None:
    """As durations are; a default comes as a number."""
    assert size_of(text) == count


@pytest.mark.parametrize("text", ["", "-2", "64MB", "1.5", "0.3KiB", "8EiB", "MiB", "0x10", "\u0661"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """`MB` is a million bytes to some, so it is not guessed."""
    with pytest.raises(typer.BadParameter, match="number of bytes"):
        size_of(text)
    with pytest.raises(typer.BadParameter, match="number of bytes"):
        place_of(text)
    assert place_of("-1") == -1


def test_options_take_sizes_with_units(node: NodeProcess) -> None:
    """In every option that takes bytes."""
    made = told(node, "create", NAME, "--fragment-length", "128KiB")
    assert made["spec"]["fragment"]["length"] == 128 << 10
    (node.root / "input").write_bytes(bytes(3 << 10))
    append = ("append", NAME, str(node.root / "input"))
    assert told(node, *append, "--skip-bytes", "1KiB", "--offset", "0KiB")["end"] == 2 << 10
    out = ("--output", str(node.root / "out"))
    span = told(node, "read", NAME, "--offset", "1KiB", "--end", "1.5KiB", *out)
    assert (span["begin"], span["end"]) == (1024, 1536)
    bad = broadsheet("journals", "read", NAME, "--offset", "1MB", BROADSHEET_ADDRESS=node.address)
    assert (bad.returncode, "1MB is no number of bytes" in bad.stderr) == (2, True)


def test_a_table_without_rows_has_its_head() -> None:
    """A new journal has no fragments."""
    assert table(("A", "B"), []) == "A  B"
    assert table(("BEGIN", "NAME"), [(0, "x"), (1024, "long")]) == "BEGIN  NAME\n    0  x\n 1024  long"
