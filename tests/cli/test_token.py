"""`broadsheet token`: key files that only their owner may read, and tokens that a node takes, or refuses."""

import base64
import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.access.tokens import Tokens, key_id, parse_keys
from broadsheet.base.time import SECOND, Duration, WallTime
from tests.cli.processes import COMMAND, SECONDS_MAX, broadsheet, environment

Done = subprocess.CompletedProcess[str]
DAY = Duration(86_400 * SECOND)
PAGE = Path(__file__).parents[2] / "docs" / "operations" / "tokens.md"


def said(done: Done) -> str:
    return " ".join(done.stderr.replace("│", " ").split())


def keys_in(file: Path) -> list[bytes]:
    return parse_keys(file.read_text())


def key_ids(*arguments: str | Path) -> list[str]:
    """The ids that `token keys` prints."""
    done = broadsheet("token", "keys", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)["keys"]
    return found


def test_a_key_file_is_made_rotated_and_shortened_and_no_key_is_shown(tmp_path: Path) -> None:
    """A second call of the first changes nothing: whoever repeats a set-up keeps the tokens that are out."""
    file = tmp_path / "keys"
    made = broadsheet("token", "keys", file)
    (first,) = keys_in(file)

    assert (made.returncode, len(first), file.stat().st_mode & 0o777) == (0, 32, 0o600)
    assert made.stdout == f"{key_id(first)} signs and verifies\n"
    assert key_ids(file) == [key_id(first)]
    assert key_ids(file, "--rotate")[1:] == [key_id(first)]
    second, kept = keys_in(file)
    assert kept == first
    assert broadsheet("token", "keys", file).stdout.split()[4:] == [key_id(first), "verifies"]
    assert key_ids(file, "--keep", "1") == [key_id(second)]
    assert keys_in(file) == [second]
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    """A mistyped name must not cost a file; an empty one is said, since nodes refuse it."""
    for content, words in (
        ("not base64!", "is not base64"),
        ("", "is empty"),
        ("ü", "cannot read the key file"),
    ):
        (tmp_path / "keys").write_text(content)
        done = broadsheet("token", "keys", tmp_path / "keys", "--rotate")

        assert (done.returncode, words in said(done)) == (2, True), done.stderr
        assert (tmp_path / "keys").read_text() == content
    nowhere = broadsheet("token", "keys", tmp_path / "none" / "keys")
    assert (nowhere.returncode != 0, "Traceback" in nowhere.stderr) == (True, False)


def test_a_group_that_may_read_the_keys_still_may_after_a_rotation(tmp_path: Path) -> None:
    """A node of another user would not start any more."""
    key_ids(tmp_path / "keys")
    (tmp_path / "keys").chmod(0o640)
    key_ids(tmp_path / "keys", "--rotate")

    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o640


def test_the_seventeenth_key_is_refused(tmp_path: Path) -> None:
    """Nodes take no more, and would not start."""
    file = tmp_path / "keys"
    file.write_text("".join(base64.b64encode(bytes([n]) * 32).decode() + "\n" for n in range(16)))
    done = broadsheet("token", "keys", file, "--rotate")

    assert (done.returncode, "--keep 1" in said(done), len(keys_in(file))) == (2, True, 16)
    assert len(key_ids(file, "--rotate", "--keep", "2")) == 2


def test_a_token_carries_what_was_asked_for(tmp_path: Path) -> None:
    """Capabilities by name, prefixes, names, cluster, life and bearer."""
    key_ids(tmp_path / "keys")
    arguments = ["--capabilities", "list, read", "--prefix", "a/", "--prefix", "b/", "--name", "c/d"]
    arguments += ["--for", "30m", "--cluster", "c1", "--keys-file", str(tmp_path / "keys")]
    before = time.time()
    done = broadsheet("token", "mint", *arguments, "--subject", "me", "--json")
    after = time.time()
    told = json.loads(done.stdout)
    cluster = Tokens(keys_in(tmp_path / "keys"), audience="c1")
    found = cluster.verify(told["token"], now=WallTime(time.time_ns()))

    assert found.capabilities == Capability.LIST | Capability.READ
    assert (found.names, found.prefixes) == (("c/d",), ("a/", "b/"))
    assert (told["capabilities"], told["prefixes"], told["names"]) == (
        ["list", "read"],
        ["a/", "b/"],
        ["c/d"],
    )
    assert found.expires is not None
    assert before - 1 <= found.expires / SECOND - 5 - 1800 <= after
    others = [
        broadsheet("token", "mint", *arguments, *more).stdout.strip() for more in ([], ["--subject", "you"])
    ]
    assert len({cluster.verify(each, now=WallTime(time.time_ns())).account for each in others}) == 2


def test_a_token_for_all_is_an_operators(tmp_path: Path) -> None:
    """Key file and cluster are those of the node's own file, beside which a relative path is."""
    key_ids(tmp_path / "keys")
    (tmp_path / "node.toml").write_text(
        '[node]\ncluster = "c2"\n[native]\nkeys_file = "keys"\ntoken_life_max = "30d"\n'
    )
    done = broadsheet(
        "token", "mint", "--capabilities", "all", "--for", "30d", "--config", tmp_path / "node.toml"
    )
    cluster = Tokens(keys_in(tmp_path / "keys"), audience="c2", lifetime_max=Duration(30 * DAY))
    found = cluster.verify(done.stdout.strip(), now=WallTime(time.time_ns()))

    assert (found.capabilities, found.covers_everything) == (EVERYTHING, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--capabilities", "read"), "there is no key file: name it with --keys-file"),
        (("--capabilities", "reed", "--keys-file", "keys"), "capability 'reed' is none of list, apply, read"),
        (("--capabilities", "admin", "--prefix", "a/", "--keys-file", "keys"), "leave out --prefix"),
        (("--capabilities", "read", "--for", "2h", "--keys-file", "keys"), "native.token_life_max"),
        (("--capabilities", "read", "--for", "0", "--keys-file", "keys"), "not 0 s"),
        (("--capabilities", "read", "--for", "30", "--keys-file", "keys"), "--for: 30 has no unit"),
        (("--capabilities", "read", "--keys-file", "none"), "cannot read the key file none"),
        (("--capabilities", "read", "--subject", "x" * 257, "--keys-file", "keys"), "no node would take"),
    ],
)
def test_a_token_that_no_node_would_take_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    """It would be refused later, by a node that does not say why in so many words."""
    monkeypatch.chdir(tmp_path)
    key_ids("keys")
    done = broadsheet("token", "mint", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert words in said(done)


def test_the_page_on_tokens_sets_up_a_node_that_takes_its_token(tmp_path: Path) -> None:
    """Each command of the page, as it stands there: make keys, start, mint, create, rotate, start again."""
    blocks = re.findall(r"(?:^    .*\n)+", PAGE.read_text(), flags=re.MULTILINE)
    script = "".join(blocks)
    assert script.count("broadsheet token mint") == 1
    script = script.replace("broadsheet up", "broadsheet up --any-port").replace(
        "up --any-port --detach            #", "up --detach  #"
    )
    script = script.replace(
        "    broadsheet journals create",
        "    export BROADSHEET_ADDRESS=$(door)\n    broadsheet journals create",
    )
    program = f"""
set -eu
broadsheet() {{ {" ".join(COMMAND)} "$@"; }}
door() {{ grep -A1 native .broadsheet/n1.toml | sed -n 's/address = "\\(.*\\)"/\\1/p'; }}
trap 'broadsheet down' EXIT
{script}
broadsheet journals list events/
broadsheet token keys others
false_token=$(broadsheet token mint --capabilities list --keys-file others)
(BROADSHEET_TOKEN=$false_token; broadsheet journals list events/) && exit 9
(unset BROADSHEET_TOKEN; broadsheet journals list events/) && exit 8
exit 0
"""
    done = subprocess.run(
        ["bash", "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_MAX,
        cwd=tmp_path,
        env=environment(PATH=os.environ["PATH"]),
    )

    assert done.returncode == 0, done.stderr
