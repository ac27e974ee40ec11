"""Contexts: nodes have names, each command asks the one that is meant, and a token goes to its node only."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.cli import contexts
from broadsheet.cli.main import COMMANDS
from broadsheet.errors import ConfigError
from tests.cli.processes import SECONDS_MAX, broadsheet, environment, node_of
from tests.journal.node_process import NodeProcess

Done = subprocess.CompletedProcess[str]
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with three journals."""
    with node_of(tmp_path_factory.mktemp("node")) as node:
        for name in ("ctx/clicks", "ctx/clocks", "other/one"):
            assert broadsheet("journals", "create", name, BROADSHEET_ADDRESS=node.address).returncode == 0
        yield node


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's configuration directory, which is empty, of this process and of those that it starts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in (contexts.ADDRESS_VARIABLE, contexts.CONTEXT_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def listed(*before: str, **more: str) -> Done:
    return broadsheet(*before, "journals", "list", "--names", **more)


def test_the_context_in_use_names_the_node(home: Path, node: NodeProcess) -> None:
    """The first one is in use at once; what is written is for its owner alone."""
    assert broadsheet("context", "add", "here", "--address", node.address).returncode == 0
    file = home / "broadsheet" / "contexts.json"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert listed().stdout.split() == ["ctx/clicks", "ctx/clocks", "other/one"]
    assert broadsheet("status").stdout.split(",")[0].endswith(": ready")
    assert broadsheet("context", "add", "away", "--address", NOBODY).returncode == 0
    assert listed().returncode == 0
    assert broadsheet("context", "use", "away").stdout == "away: in use\n"
    assert NOBODY in listed().stderr
    table = broadsheet("context", "list").stdout.splitlines()
    assert [line.split() for line in table[1:]] == [["*", "away", NOBODY], ["here", node.address]]
    assert broadsheet("context", "remove", "away").returncode == 0
    assert json.loads(broadsheet("context", "list", "--json").stdout) == {
        "current": "",
        "contexts": {"here": {"address": node.address}},
    }


def test_what_is_said_last_counts(home: Path, node: NodeProcess) -> None:
    """`--address`, `--context`, the variable of an address, that of a context, the one in use."""
    for name, address in (("away", NOBODY), ("here", node.address)):
        assert broadsheet("context", "add", name, "--address", address).returncode == 0
    assert NOBODY in listed().stderr
    assert listed(BROADSHEET_CONTEXT="here").returncode == 0
    assert listed("--context", "here", BROADSHEET_ADDRESS=NOBODY).returncode == 0
    assert listed("--context", "here", BROADSHEET_CONTEXT="away").returncode == 0
    assert listed(BROADSHEET_CONTEXT="away", BROADSHEET_ADDRESS=node.address).returncode == 0
    named = broadsheet("--context", "away", "journals", "list", "--names", "--address", node.address)
    assert named.returncode == 0
    unknown = listed("--context", "nowhere")
    assert (unknown.returncode, "has: away, here" in unknown.stderr) == (2, True)
    assert home.is_dir()


def test_a_contexts_token_goes_to_its_node_and_to_no_other(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names another address would hand it to a stranger."""
    token = home / "token"
    token.write_text("a.b.c\n")
    added = broadsheet("context", "add", "one", "--address", "one:6640", "--token-file", token)
    assert added.returncode == 0, added.stderr
    assert "a.b.c" not in (home / "broadsheet" / "contexts.json").read_text()
    contexts.use(None)
    assert (contexts.token_for("one:6640"), contexts.token_for("two:6640")) == ("a.b.c", "")
    monkeypatch.delenv(contexts.ADDRESS_VARIABLE)
    token.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        contexts.token_for("one:6640")
    token.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        contexts.token_for("one:6640")


def test_a_damaged_file_is_named_and_stops_no_command_that_asks_no_node(home: Path) -> None:
    """A node starts, whatever a user's file holds."""
    file = home / "broadsheet" / "contexts.json"
    file.parent.mkdir()
    file.write_text("{")
    done = listed()
    assert (done.returncode, f"{file} holds no contexts" in done.stderr) == (2, True)
    assert broadsheet("config", "show").returncode == 0


def test_a_user_without_a_directory_of_its_own_needs_no_contexts(node: NodeProcess, tmp_path: Path) -> None:
    """A container runs under another's HOME: each command would end there."""
    file = tmp_path / "file"
    file.touch()
    assert listed(XDG_CONFIG_HOME=str(file), BROADSHEET_ADDRESS=node.address).returncode == 0
    done = broadsheet("context", "add", "one", "--address", NOBODY, XDG_CONFIG_HOME=str(file))
    assert (done.returncode, "cannot be written: Not a directory" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "a b", "--address", NOBODY), "up to 64 letters"),
        (("add", "a", "--address", "nohost"), "is not host:port"),
        (("add", "a", "--address", NOBODY, "--token-file", "/no/such"), "there is no file /no/such"),
        (("use", "a"), "there is no context 'a'"),
        (("remove", "a"), "there is no context 'a'"),
    ],
)
def test_what_makes_no_context_is_refused(home: Path, arguments: tuple[str, ...], words: str) -> None:
    """Nothing is written."""
    done = broadsheet("context", *arguments)
    assert (done.returncode, words in " ".join(done.stderr.replace("│", " ").split())) == (2, True)
    assert not (home / "broadsheet").exists()
    assert "context" in COMMANDS


def completed(words: str, **more: str) -> list[str]:
    """What the shell offers for the last of `words`."""
    word = str(len(words.split()) - 1)
    done = subprocess.run(
        [Path(sys.executable).with_name("broadsheet")],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(
            _BROADSHEET_COMPLETE="complete_bash",
            COMP_WORDS=words,
            COMP_CWORD=word,
            **more,
        ),
    )
    return done.stdout.split()


def test_the_shell_completes_the_names_of_journals(home: Path, node: NodeProcess) -> None:
    """It asks the node that the command would ask; if none answers, it offers nothing, and says nothing."""
    assert completed("broadsheet journals status ctx/", BROADSHEET_ADDRESS=node.address) == [
        "ctx/clicks",
        "ctx/clocks",
    ]
    assert broadsheet("context", "add", "here", "--address", node.address).returncode == 0
    assert completed("broadsheet messages read other/") == ["other/one"]
    assert completed("broadsheet journals status ctx/", BROADSHEET_ADDRESS=NOBODY) == []
    assert home.is_dir()
