"""Every command that an error text or a document names exists, with the options that are named."""

import gc
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from broadsheet.cli.main import COMMANDS, app

ROOT = Path(__file__).parents[2]
WORD = re.compile(r"[a-z][a-z0-9-]*")
SPLIT = re.compile(r"[\s,;|]+")
QUOTED = re.compile(rf"`broadsheet ([a-z][^`]*)`|`((?:{'|'.join(COMMANDS)}) [a-z][^`]*)`")
LINE = re.compile(r"^\s*(?:\$ |nohup |exec |\| )?broadsheet ([a-z].*)$", re.MULTILINE)
JOINED = re.compile(r'"\s*\n\s*f?"')
"""Where a text goes on in the next line of a source."""


def sources() -> list[Path]:
    """What a user may read: sources, and documents but for the rules of later parts."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    return sorted(path for path in found if path.name != "CHANGELOG.md" and "design" not in path.parts)


def named_in(path: Path) -> list[str]:
    """What follows `broadsheet` wherever a command is named."""
    text = path.read_text()
    found = [one or other for one, other in QUOTED.findall(JOINED.sub("", text))]
    if path.suffix == ".md":
        for block in re.findall(r"```[a-z]*\n(.*?)```", text, flags=re.DOTALL):
            found += LINE.findall(block)
    return found


def problem_of(phrase: str) -> str:
    """What is wrong with a command as it is named; empty where nothing is."""
    tokens = [token for token in SPLIT.split(phrase) if token]
    if tokens[0] not in COMMANDS:
        return f"{phrase!r}: there is no command {tokens[0]}"
    command: Any = get_command(import_module(COMMANDS[tokens[0]]).app)
    rest = tokens[1:]
    if hasattr(command, "commands") and rest and WORD.fullmatch(rest[0]):
        if rest[0] not in command.commands:
            return f"{phrase!r}: {tokens[0]} has no command {rest[0]}"
        command = command.commands[rest[0]]
    options = [option for each in command.params for option in (*each.opts, *each.secondary_opts)]
    for token in rest:
        name = token.partition("=")[0].rstrip(".:)]}`'\"")
        if name.startswith("--") and name not in ("--help", *options):
            return f"{phrase!r}: {tokens[0]} has no option {name}"
    return ""


def test_every_command_that_is_named_anywhere_exists() -> None:
    """A remedy that does not exist is worse than none: an operator reads it at the worst hour."""
    wrong = []
    count = 0
    for path in sources():
        for phrase in named_in(path):
            count += 1
            if problem := problem_of(phrase):
                wrong.append(f"{path.relative_to(ROOT)}: {problem}")
    assert wrong == []
    assert count > 40, "the search finds hardly anything"


@pytest.mark.parametrize(
    ("phrase", "said"),
    [
        ("journals reset-tail NAME", "no command reset-tail"),
        ("repair", "no command repair"),
        ("journals accept-loss NAME --force", "no option --force"),
    ],
)
def test_a_command_that_does_not_exist_is_found(phrase: str, said: str) -> None:
    """The search is not blind."""
    assert said in problem_of(phrase)


def test_the_collector_works_once_a_command_is_loaded() -> None:
    """It rests while a command is imported; a client that went on so would keep every cycle of garbage."""
    commands: Any = get_command(app)
    assert commands.get_command(None, "status").name == "status"

    assert gc.isenabled()
