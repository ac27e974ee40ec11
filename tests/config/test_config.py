"""Configuration: later sources win, every value knows its origin, and nothing unknown is let pass."""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from broadsheet.config import load
from broadsheet.errors import ConfigError


class Spool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes_max: Annotated[int, msgspec.Meta(ge=1)] = 64
    directory: str = "spool"
    names: tuple[str, ...] = ()
    stores: dict[str, str] = {}
    is_on: bool = False
    root_token: str = ""

    def __post_init__(self) -> None:
        if self.directory == "/":
            raise ValueError("spool.directory must not be the root")


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    spool: Spool = Spool()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broadsheet.toml"


def test_flag_beats_environment_beats_file_beats_default(path: Path) -> None:
    """Whoever is closer to the start of the process decides."""
    path.write_text("[spool]\nbytes_max = 1\ndirectory = 'f'\nis_on = true\n")

    loaded = load(
        Tree,
        path=path,
        environment={"BROADSHEET_SPOOL__BYTES_MAX": "2", "BROADSHEET_SPOOL__DIRECTORY": "e"},
        flags={"spool.bytes_max": 3, "spool.names": None},
    )

    assert loaded.config.spool == Spool(bytes_max=3, directory="e", is_on=True)
    assert loaded.origin("spool.bytes_max") == "flag"
    assert loaded.origin("spool.directory") == "environment BROADSHEET_SPOOL__DIRECTORY"
    assert loaded.origin("spool.is_on") == f"file {path}"
    assert loaded.origin("spool.names") == "default"


def test_the_environment_speaks_toml_but_for_strings() -> None:
    """A list can be given; a string that looks like a number stays one."""
    environment = {"BROADSHEET_SPOOL__NAMES": '["a", "b"]', "BROADSHEET_SPOOL__DIRECTORY": "12"}

    spool = load(Tree, environment=environment, flags={}).config.spool

    assert (spool.names, spool.directory) == (("a", "b"), "12")


def test_a_table_of_the_file_may_be_a_value(path: Path) -> None:
    """Not every table is a section: some settings are maps."""
    path.write_text("[spool.stores]\na = 'file:///a/'\n")

    assert load(Tree, path=path, environment={}, flags={}).config.spool.stores == {"a": "file:///a/"}


def test_variables_without_a_section_are_not_ours_to_judge() -> None:
    """BROADSHEET_FAILPOINT and its like configure no node."""
    assert load(Tree, environment={"BROADSHEET_FAILPOINT": "a:1"}, flags={}).config == Tree()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"BROADSHEET_SPOOL__BYTE_MAX": "1"},
            "there is no setting spool.byte_max; did you mean spool.bytes_max?",
        ),
        ({"BROADSHEET_SPOLL__BYTES_MAX": "1"}, "did you mean spool?"),
        ({"BROADSHEET_SPOOL__BYTES_MAX__X": "1"}, "there is no setting spool.bytes_max.x"),
        (
            {"BROADSHEET_SPOOL__BYTES_MAX": "0"},
            "environment BROADSHEET_SPOOL__BYTES_MAX: spool.bytes_max: expected",
        ),
        ({"BROADSHEET_SPOOL__BYTES_MAX": "many"}, "got `str`"),
        ({"BROADSHEET_SPOOL__DIRECTORY": "/"}, "spool.directory must not be the root"),
    ],
)
def test_what_is_wrong_is_said_with_its_name_and_origin(environment: dict[str, str], said: str) -> None:
    """Whoever mistyped a variable must not search for it."""
    with pytest.raises(ConfigError) as caught:
        load(Tree, environment=environment, flags={})

    assert said in str(caught.value)


@pytest.mark.parametrize("content", [b"[spool", b"\xff\xfe", b"spool = 1\n", b"[other]\nx = 1\n"])
def test_a_bad_file_is_refused(path: Path, content: bytes) -> None:
    """A node must not start with half of its configuration."""
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"broadsheet\.toml"):
        load(Tree, path=path, environment={}, flags={})


def test_an_absent_file_is_refused(path: Path) -> None:
    """A mistyped path must not mean the defaults."""
    with pytest.raises(ConfigError, match="No such file"):
        load(Tree, path=path, environment={}, flags={})


def test_secrets_are_not_shown() -> None:
    """`config show` ends up in tickets."""
    loaded = load(Tree, environment={"BROADSHEET_SPOOL__ROOT_TOKEN": "hunter2"}, flags={})

    assert loaded.config.spool.root_token == "hunter2"
    assert "hunter2" not in str(loaded.settings())
