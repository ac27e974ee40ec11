"""Configuration: later sources win, every value knows its origin, and nothing unknown is let pass."""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.config import Place, load
from broadsheet.errors import ConfigError
from broadsheet.node import Settings


class Spool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes_max: Annotated[int, msgspec.Meta(ge=1)] = 64
    directory: str = "spool"
    names: tuple[str, ...] = ()
    stores: dict[str, str] = {}
    is_on: bool = False
    root_token: str = ""
    keys_file: Place = ""
    delay: Duration = Duration(100 * MILLISECOND)

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
        (
            {"BROADSHEET_SPOOL__DIRECTORY": "/", "BROADSHEET_SPOOL__IS_ON": "true"},
            "environment BROADSHEET_SPOOL__DIRECTORY: spool.directory must not be the root",
        ),
        ({"BROADSHEET_SPOOL__BYTES_MAX": "-1"}, "BYTES_MAX: spool.bytes_max must be in 0..2**63 - 1, not -1"),
        ({"BROADSHEET_SPOOL__BYTES_MAX": f"{1 << 63}"}, "must be in 0..2**63 - 1"),
        ({"BROADSHEET_SPOOL__DELAY": "-1s"}, "BROADSHEET_SPOOL__DELAY: spool.delay: '-1s' is no duration"),
        (
            {"BROADSHEET_SPOOL__DELAY": "3"},
            "spool.delay: 3 has no unit: write a number and one of ns, us, ms",
        ),
        ({"BROADSHEET_SPOOL__DELAY": "1.5"}, "spool.delay: 1.5 has no unit"),
        ({"BROADSHEET_SPOOL__DELAY": "true"}, "spool.delay: True is no duration"),
        ({"BROADSHEET_SPOOL__DELAY": "5 parsecs"}, "a number and one of ns, us, ms, s, m, h, d, as in '30s'"),
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


@pytest.mark.parametrize(
    ("text", "nanoseconds", "shown"),
    [
        ("30s", 30 * SECOND, "30s"),
        ("1.5 ms", 1_500_000, "1500us"),
        ("2m", 120 * SECOND, "120s"),
        ("250000000ns", SECOND // 4, "250ms"),
        ("0s", 0, "0s"),
        ("0", 0, "0s"),
    ],
)
def test_a_duration_has_its_unit_beside_it(path: Path, text: str, nanoseconds: int, shown: str) -> None:
    """`30000000000` is misread by a factor of a thousand sooner or later; what is shown can be written."""
    path.write_text(f"[spool]\ndelay = '{text}'\n")

    loaded = load(Tree, path=path, environment={}, flags={})
    again = load(Tree, environment={"BROADSHEET_SPOOL__DELAY": shown}, flags={})

    assert loaded.config.spool.delay == again.config.spool.delay == nanoseconds
    assert {each.name: each.value for each in loaded.settings()}["spool.delay"] == shown


def test_a_place_in_a_file_is_beside_the_file(path: Path) -> None:
    """A directory with its configuration may be moved, and the node be started from anywhere."""
    path.write_text("[spool]\nkeys_file = 'keys'\n")

    assert load(Tree, path=path, environment={}, flags={}).config.spool.keys_file == str(path.parent / "keys")
    path.write_text("[spool]\nkeys_file = '/etc/keys'\n")
    assert load(Tree, path=path, environment={}, flags={}).config.spool.keys_file == "/etc/keys"
    path.write_text("[spool]\nkeys_file = ''\n")
    assert load(Tree, path=path, environment={}, flags={}).config.spool.keys_file == ""
    environment = {"BROADSHEET_SPOOL__KEYS_FILE": "12"}
    assert load(Tree, environment=environment, flags={}).config.spool.keys_file == "12"


NUMBERS = [
    each.name
    for each in load(Settings, environment={}, flags={}).settings()
    if type(each.value) is int or (isinstance(each.value, str) and each.value.endswith(("s", "m")))
]


@pytest.mark.parametrize("value", ["0", "1", "-1", f"{(1 << 63) - 1}", f"{1 << 80}"])
def test_no_number_of_any_setting_is_a_traceback(value: str) -> None:
    """A relation that does not hold is said with the variable that broke it, not with an assertion."""
    for name in NUMBERS:
        variable = f"BROADSHEET_{name.upper().replace('.', '__')}"
        said = _refusal(variable, value)
        assert said == "" or said.startswith(f"environment {variable}: ")
        assert said or not value.startswith("-")


def _refusal(variable: str, value: str) -> str:
    """What was said, where the value was refused."""
    try:
        load(Settings, environment={variable: value}, flags={})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("NATIVE__ADDRESS", "127.0.0.1:70000", "native.address: address '127.0.0.1:70000' is not host:port"),
        ("HTTP__ADDRESS", "foo", "http.address: address 'foo' is not host:port"),
        ("NODE__PEERS", '{n1 = "x"}', "node.peers.n1: address 'x' is not host:port"),
        (
            "NODE__PEERS",
            "{" + ", ".join(f'n{number} = "127.0.0.1:{number}"' for number in range(1, 11)) + "}",
            "node.peers names 10 nodes, and a metastore has at most 9 acceptors",
        ),
        ("NODE__LOG_LEVEL", "loud", "node.log_level 'loud' is none of debug, info, warning, error, critical"),
        ("NODE__DATA_DIR", "", "node.data_dir is empty"),
        ("NATIVE__LIMITS__STREAMS_MAX", "0", "native.limits: streams_max must be at least 1, not 0"),
        (
            "NATIVE__LIMITS__FRAME_BYTES_MAX",
            "1114119",
            "frame_bytes_max is 1114119: set it to 1114120 or more",
        ),
        ("JOURNALS__INLINE_BYTES_MAX", "65535", "inline_bytes_max is 65535: set it to 65536 or more"),
        ("NATIVE__LIMITS__RUN_COUNT_MAX", "16383", "run_count_max is 16383: set it to 16384 or more"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(variable: str, value: str, said: str) -> None:
    """`config show` and `doctor` find it too, and a bad value leaves no data directory behind."""
    with pytest.raises(ConfigError) as caught:
        load(Settings, environment={f"BROADSHEET_{variable}": value}, flags={})

    assert str(caught.value).startswith(f"environment BROADSHEET_{variable}: ")
    assert said in str(caught.value)


def test_a_metastore_in_a_file_is_refused_beside_peers() -> None:
    """Each node would decide by itself, and the nodes would be clusters of one."""
    environment = {
        "BROADSHEET_NODE__ID": "n1",
        "BROADSHEET_NODE__PEERS": '{n1 = "127.0.0.1:1", n2 = "127.0.0.1:2"}',
        "BROADSHEET_METASTORE__PROVIDER": "file",
    }
    with pytest.raises(ConfigError, match=r"is file, but .*: use majority"):
        load(Settings, environment=environment, flags={})
