"""`broadsheet` as a process: before its command is known, and which defaults its commands share."""

import signal
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from broadsheet.cli.main import COMMANDS
from broadsheet.node import Settings
from tests.cli.processes import COMMAND, SECONDS_MAX, environment, from_a_terminal

INTERRUPTING = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos.read(0, 1)\n"
"""A module that stands for any that is being imported at a Ctrl-C."""


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    with from_a_terminal():
        yield


def test_ctrl_c_while_the_command_line_is_imported_ends_it_in_silence(tmp_path: Path) -> None:
    """In the first 0.2 s of a command on a busy machine it printed the traceback of some import."""
    (tmp_path / "typer.py").write_text(INTERRUPTING)

    done = subprocess.run(
        [*COMMAND, "journals", "append", "a"],
        check=False,
        capture_output=True,
        stdin=subprocess.PIPE,
        timeout=SECONDS_MAX,
        env=environment(PYTHONPATH=str(tmp_path)),
    )

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_commands_look_for_a_node_where_serve_leaves_it() -> None:
    """`serve` made its data in `.broadsheet/n1`, and `doctor` and `status` looked into `.broadsheet`."""
    found: dict[str, str] = {}
    for name, module in COMMANDS.items():
        command: Any = get_command(import_module(module).app)
        for each in getattr(command, "commands", {"": command}).values():
            for parameter in each.params:
                if parameter.name == "data_dir" and parameter.default is not None:
                    found[f"{name} {each.name}"] = str(parameter.default)

    assert len(found) >= 6
    assert set(found.values()) == {Settings().node.data_dir}
