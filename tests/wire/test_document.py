"""The page that others build clients from says what the code does."""

import ast
import re
from pathlib import Path

import pytest

from broadsheet.base.time import MILLISECOND, SECOND
from broadsheet.wire import frame as f
from broadsheet.wire import limits as module
from broadsheet.wire.limits import WireLimits

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocols" / "native.md"
LIMITS = WireLimits()
COUNTS = {3: "three"}


def shown(name: str) -> str:
    """A limit as the page writes it."""
    value = getattr(LIMITS, name)
    if name.endswith("_time_max"):
        return f"{value // MILLISECOND} ms"
    if name.endswith(("_timeout", "_interval")):
        assert value % SECOND == 0, f"{name} is not in whole seconds: say how to write it"
        return f"{value // SECOND} s"
    if "bytes" in name:
        return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"
    return str(value)


def meanings() -> dict[str, str]:
    """What `limits.py` says under each field."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    found, last = {}, ""
    for node in next(each for each in tree.body if isinstance(each, ast.ClassDef)).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
        elif last and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[last], last = " ".join(str(node.value.value).split()), ""
    return found


def table() -> str:
    """The table of limits, as it must stand in the page."""
    said = meanings()
    rows = [f"| `{name}` | {shown(name)} | {said[name]} |\n" for name in LIMITS.__struct_fields__]
    return "| limit | default | what it bounds |\n|---|---|---|\n" + "".join(rows)


SENTENCES = [
    f"waits {shown('first_byte_timeout')} for the first byte",
    f"first byte and {shown('greeting_timeout')} for the greeting",
    f"whose frame has at most {shown('greeting_bytes_max')}",
    f"its bytes plus {f.MESSAGE_COST} of the window",
    f"begins with {f.INITIAL_WINDOW_BYTES >> 10} KiB",
    f"PING after {shown('keepalive_interval')} of silence",
    f"gives up after {COUNTS[LIMITS.keepalive_misses_max]} unanswered ones",
    f"reads nothing for {shown('write_timeout')}",
    f"leaves more than {shown('send_buffer_bytes_max')} unread",
    f"more than {shown('in_flight_bytes_max')} of requests of one connection",
    f"or {shown('node_in_flight_bytes_max')} of all of them",
    f"closes after {shown('drain_timeout')} at the latest",
    f"at least twice `frame_bytes_max`, and {2 * f.MESSAGE_COST} bytes",
]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_prose_has_the_limits_of_the_code(sentence: str) -> None:
    """Whoever writes another client takes these numbers from the page, not from our source."""
    assert sentence in " ".join(DOCUMENT.read_text(encoding="utf-8").split())


def test_the_table_of_limits_is_the_code_s() -> None:
    """A limit that is new, gone or changed is not missing, left over or old there (access.8, code.22)."""
    assert table() in DOCUMENT.read_text(encoding="utf-8")


def test_every_number_with_a_unit_in_the_prose_is_one_that_is_held() -> None:
    """A limit that is written down and held by no test will be wrong some day."""
    text = " ".join(DOCUMENT.read_text(encoding="utf-8").partition("## Limits")[0].split())
    numbers = re.findall(r"\b\d+ (?:s|ms|KiB|MiB)\b", text)
    held = [number for each in SENTENCES for number in re.findall(r"\b\d+ (?:s|ms|KiB|MiB)\b", each)]

    assert sorted(numbers) == sorted(held)
