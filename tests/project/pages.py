"""Pages of the documentation that are made from the code: `make docs` writes them, a test compares them.

Each page is a function from nothing to text. What it says comes from docstrings, field docstrings and the
command line's own help, so that a setting or a command without a sentence shows as a hole here.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from typer.main import get_command

from broadsheet import config
from broadsheet.access import tokens
from broadsheet.base import labels, names
from broadsheet.base.time import SECOND, Duration
from broadsheet.cli import append, cluster
from broadsheet.cli.main import app
from broadsheet.client import Client
from broadsheet.config import Loaded
from broadsheet.consume.message import Message
from broadsheet.consume.reader import MessageReader
from broadsheet.control.core import value
from broadsheet.doors.http import door, exchange
from broadsheet.errors import BY_STATUS, Refused, Status
from broadsheet.journal import codecs, producer_indexing
from broadsheet.journal.client import Journals
from broadsheet.journal.core import attempts, registers, spec
from broadsheet.message import framing
from broadsheet.node import Settings
from broadsheet.publish.publisher import MessagePublisher
from broadsheet.publish.transaction import Transaction
from broadsheet.sink.core import records
from broadsheet.spark import batch_sink, kafka_options, sink, source_options
from broadsheet.spark.meta_columns import ASKED_FOR, META, META_IS
from broadsheet.wire import client
from tests.project.citations import citing, standing
from tests.project.error_texts import PART, error_texts
from tests.project.node_metrics import node_metrics
from tests.project.rules import ROOT

REFERENCE: Final = ROOT / "docs" / "reference"

ERRORS_INTRODUCTION: Final = """# Errors

Made from `src/broadsheet/errors.py` and from the texts in the code by `make docs`; do not edit.

Each status of the native wire is one class, and each class one status; the numbers are never reused.
*Refused* means that nothing was done, for certain, and says whether to retry. *Unknown* means that it may
have been done: look, or repeat it only where that is harmless. An error's message carries the values.
[Which module says a text](#texts) is listed below.

| status | number | class | kind | retry | meaning, state afterwards, remedy |
|---|---|---|---|---|---|
"""

TEXTS_INTRODUCTION: Final = """
## Texts

Search for words of the message; each `…` is a value. The module, below `src/broadsheet/`, is the one that
found the fault. *A part* is put into other texts, or shown in the status of a journal.

| text | class | module |
|---|---|---|
"""

CONFIGURATION_INTRODUCTION: Final = """# Configuration

Made from the structs of the settings by `make docs`; do not edit.

A node reads a TOML file (`broadsheet serve --config FILE`), then `BROADSHEET_SECTION__FIELD` in the
environment, then flags; the later
one wins. `broadsheet config show --origin` prints what a node would use, and where each value comes from.
An unknown name is refused.
Bytes and counts are whole numbers. A time is written with its unit: `"30s"`, `"1.5ms"`. A path in a file is
relative to that file.
"""

COMMANDS_INTRODUCTION: Final = """# Commands

Made from the command line's own help by `make docs`; do not edit.

The exit status is 0 for done, 1 for failed, 2 for a wrong command line, 3 for an unknown outcome, and 4
where a command only showed what
it would do with `--yes`.
"""

PYTHON_INTRODUCTION: Final = """# Python

Made from the docstrings of `broadsheet.client`, `broadsheet.journal.client`, `broadsheet.publish` and
`broadsheet.consume` by `make docs`; do not edit.
[Publishers and readers](../concepts/publishers-and-readers.md) says what the latter are for.

`broadsheet.connect(address, token)` opens a `Client` on the running asyncio loop.
`broadsheet.connect_sync(address, token)` opens one
with the same methods that block, for programs without a loop. Both are context managers. Errors:
[errors.md](errors.md).
"""

SPARK_INTRODUCTION: Final = """# Spark

Made from the tables of `broadsheet.spark` by `make docs`; do not edit.

Names of options do not differ by case. One that is in none of these tables is refused, and so is a value that
an option cannot have.
[Exactly once with Spark](../concepts/exactly-once.md) says what they are for.
"""

KAFKA_INTRODUCTION: Final = """
## Options of Kafka

These are refused, and the error says what to give in their place.
[Spark from Kafka](../concepts/spark-from-kafka.md) compares the two.

| of the | option | in its place |
|---|---|---|
"""

METRICS_INTRODUCTION: Final = """# Metrics

Made from the page of a node that was just started by `make docs`; do not edit.

`GET /metrics` at the HTTP door gives them in Prometheus's text format; it needs no token. The node reads them
when it is asked. The numbers of its roles are those of `broadsheet status --json`: up to 50 ms old,
or, where it takes long to make them, 32 times as long as that, and 5 s at most.
[Monitoring](../operations/monitoring.md) has a dashboard and alerts that use them.

| metric | type | meaning |
|---|---|---|
"""

LIMITS_INTRODUCTION: Final = """# Limits and names

Made from the constants of the code by `make docs`; do not edit.

These are fixed. Limits that a node's owner chooses are [settings](configuration.md). What is above a limit is
refused before anything is changed, and the error says the limit.

## Names

A journal's name is a relative path such as `events/clicks`: segments of `A-Z a-z 0-9 - _ + . = %`, none of
them empty, `.` or `..`, separated by `/`.
"""

TESTS_INTRODUCTION: Final = """# Rules and their tests

Made from what tests and contracts cite by `make docs`; do not edit.
Rules of parts that are planned are left out.

| rule | cited by |
|---|---|
"""


LIMITS: Final[Sequence[tuple[str, int | None, int | None]]] = (
    ("characters of a journal's name", names.JOURNAL_NAME_MIN, names.JOURNAL_NAME_MAX),
    ("characters of one of its segments", 1, names.SEGMENT_MAX),
    ("labels of a journal, terms of a selector", None, labels.LABELS_MAX),
    ("characters of a selector", None, labels.SELECTOR_TEXT_MAX),
    ("characters of a label's name", labels.NAME_MIN, labels.NAME_MAX),
    ("characters of a label's value", None, labels.VALUE_MAX),
    ("registers of a journal", None, registers.REGISTERS_MAX),
    ("bytes of the registers of a journal together", None, registers.REGISTERS_BYTES_MAX),
    ("characters of a register's name", 1, registers.NAME_CHARS_MAX),
    ("characters of a register's value", None, registers.VALUE_CHARS_MAX),
    ("last conditional appends of a journal whose outcome can be asked for", None, attempts.KEPT),
    ("bytes of a fragment", spec.FRAGMENT_BYTES_MIN, spec.FRAGMENT_BYTES_MAX),
    ("seconds of `flush_interval`", spec.FLUSH_INTERVAL_MIN // SECOND, spec.FLUSH_INTERVAL_MAX // SECOND),
    ("bytes of a message of JSON lines or fixed framing", None, framing.FRAME_BYTES_MAX),
    (
        "producers of a journal: with more its producer index ends",
        None,
        producer_indexing.PRODUCERS_MAX,
    ),
    ("bytes of the window of a fragment in zstandard", None, codecs.WINDOW_BYTES_MAX),
    ("bytes of a line that `journals append --lines` sends", None, append.LINE_BYTES_MAX),
    ("bytes of a COMMIT record of a Spark query", None, records.RECORD_BYTES_MAX),
    ("journals that one task of a Spark query writes to", None, sink.JOURNALS_MAX),
    ("requests that wait for a free stream of a connection", None, client.WAITING_MAX),
    ("bytes of a token", None, tokens.TOKEN_BYTES_MAX),
    ("keys of a node", 1, tokens.KEY_COUNT_MAX),
    ("bytes of a key", tokens.KEY_BYTES_MIN, None),
    (
        "seconds that a token is valid, unless `native.token_life_max` says more",
        None,
        tokens.LIFETIME_MAX // SECOND,
    ),
    ("grants of a token", None, tokens.GRANT_COUNT_MAX),
    ("connections of the HTTP door", None, door.CONNECTIONS_MAX),
    ("bytes of a request at the HTTP door", None, exchange.REQUEST_BYTES_MAX),
    ("bytes of a configuration file", None, config.FILE_BYTES_MAX),
    ("nodes of `broadsheet up`", 1, cluster.NODES_MAX),
    ("bytes of the metastore's document", None, value.DOCUMENT_BYTES_MAX),
    ("acceptors of the metastore", 1, value.ACCEPTORS_MAX),
)
"""What, the least, the most."""


def errors_page() -> str:
    """The table of errors, and that of their texts."""
    rows = []
    for status in Status:
        if status is Status.OK:
            continue
        kind = BY_STATUS[status]
        retry = kind.retry.value if issubclass(kind, Refused) else "-"
        parent = kind.__mro__[1].__name__
        meaning = _line(kind.__doc__)
        rows.append(
            f"| `{status.name}` | {status.value} | `{kind.__name__}` | {parent} | {retry} | {meaning} |\n"
        )
    texts = [
        f"| {_line(text)} | {kind if kind is PART else f'`{kind}`'} | `{module}` |\n"
        for module, kind, text in error_texts()
    ]
    return "".join((ERRORS_INTRODUCTION, *rows, TEXTS_INTRODUCTION, *texts))


def configuration_page() -> str:
    """A table of settings for each section."""
    defaults = {each.name: each.value for each in Loaded(Settings(), {}).settings()}
    parts = [CONFIGURATION_INTRODUCTION]
    for section, rows in _sections(Settings, "", defaults):
        parts.append(f"\n## `{section}`\n\n| setting | default | is |\n|---|---|---|\n")
        parts += [f"| `{name}` | {_shown(value)} | {text} |\n" for name, value, text in rows]
    return "".join(parts)


def commands_page() -> str:
    """Each command with its arguments and options."""
    return COMMANDS_INTRODUCTION + "".join(_commands(get_command(app), "broadsheet"))


def python_page() -> str:
    """The methods of the client, and what they return."""
    parts = [PYTHON_INTRODUCTION, "\n## `Client`\n\n", _paragraphs(Client.__doc__), "\n"]
    for title, subject, kind in (
        ("client.journals", "journals", Journals),
        ("client", "client", Client),
        ("client.publisher()", "publisher", MessagePublisher),
        ("publisher.transaction()", "transaction", Transaction),
        ("client.messages()", "reader", MessageReader),
    ):
        parts += [f"\n## `{title}`\n", *_methods(kind, subject)]
    for found in (*_returned(), Message):
        parts.append(f"\n## `{found.__name__}`\n\n{_paragraphs(found.__doc__)}\n")
        parts += _fields(found) if issubclass(found, msgspec.Struct) else _methods(found, "writer")
    return "".join(parts)


def _methods(kind: type, word: str) -> Iterator[str]:
    """A heading, a signature and a docstring for each public method; `word` names the object."""
    for name, method in vars(kind).items():
        if not name.startswith("_") and inspect.isfunction(method):
            await_ = "await " if inspect.iscoroutinefunction(method) else ""
            yield f"\n### `{await_}{word}.{name}`\n\n```python\n{_signature(name, method)}\n```\n\n"
            yield _paragraphs(method.__doc__) + "\n"


def _returned() -> Sequence[type]:
    """The classes of what the methods of `Journals` return, and of what is in these."""
    public = [each for name, each in vars(Journals).items() if not name.startswith("_")]
    waiting = [get_type_hints(each)["return"] for each in public if inspect.isfunction(each)]
    found: dict[type, None] = {}
    for hint in waiting:
        waiting += get_args(hint)
        if isinstance(hint, type) and hint not in found and hint.__module__.startswith("broadsheet.journal."):
            if issubclass(hint, msgspec.Struct):
                waiting += get_type_hints(hint).values()
            found[hint] = None
    return [each for each in found if not issubclass(each, Enum)]


def _fields(kind: type[msgspec.Struct]) -> Iterator[str]:
    """A table of the fields of a struct, and of its properties."""
    yield "\n| field | type | is |\n|---|---|---|\n"
    hints, docs = get_type_hints(kind), _field_docs(kind)
    rows = [(name, hints[name], docs.get(name, "")) for name in kind.__struct_fields__]
    for name, each in vars(kind).items():
        if isinstance(each, property):
            rows.append((name, get_type_hints(each.fget)["return"], _line(each.__doc__)))
    yield from (f"| `{name}` | {_line(_type_name(hint))} | {text} |\n" for name, hint, text in rows)


def _type_name(hint: Any) -> str:
    """A type as a user of Python knows it: the typed integers are `int`."""
    if hint is Duration:
        return "int, in nanoseconds"
    if supertype := getattr(hint, "__supertype__", None):
        return _type_name(supertype)
    inner = [_type_name(each) for each in get_args(hint)]
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(inner)
    name = "None" if hint is NoneType else str(hint.__name__)
    return f"{name}[{', '.join(inner)}]" if inner else name


def spark_page() -> str:
    """Options of the source and of the sink, and the meta columns."""
    parts = [SPARK_INTRODUCTION]
    batch = {name: text for name, text in batch_sink.KNOWN.items() if name not in sink.KNOWN}
    for title, rows in (
        ("Options of the source", source_options.KNOWN),
        ("Options of the sink", sink.KNOWN),
        ("More options of a batch write", batch),
    ):
        parts.append(f"\n## {title}\n\n| option | is |\n|---|---|\n")
        parts += [f"| `{name}` | {_line(text)} |\n" for name, text in rows.items()]
    parts.append(KAFKA_INTRODUCTION)
    for whose, rows in (("source", kafka_options.OF_SOURCE), ("sink", kafka_options.OF_SINK)):
        names = {name + "…" if name.endswith(".") else name: text for name, text in rows.items()}
        parts += [f"| {whose} | `{name}` | {_line(text)} |\n" for name, text in names.items()]
    parts.append("\n## Meta columns\n\n| column | type | is |\n|---|---|---|\n")
    types = META | ASKED_FOR
    parts += [f"| `{name}` | {types[name]} | {_line(text)} |\n" for name, text in META_IS.items()]
    return "".join(parts)


def metrics_page() -> str:
    """Every metric with its meaning."""
    rows = [f"| `{name}` | {kind} | {_line(meaning)} |\n" for name, kind, meaning in node_metrics()]
    return METRICS_INTRODUCTION + "".join(rows)


def limits_page() -> str:
    """Names, and the limits that nobody sets."""
    reserved = (*names.RESERVED_SEGMENTS, names.PARTIAL_SEGMENT, spec.SIDE_DIRECTORY)
    kept = ", ".join(f"`{each}`" for each in reserved)
    parts = [
        LIMITS_INTRODUCTION,
        f"Its first segment is none of {kept}, which doors and stores keep for themselves.\n",
        "\n## Limits\n\n| what | least | most |\n|---|---|---|\n",
    ]
    parts += [
        f"| {what} | {_amount(what, least)} | {_amount(what, most)} |\n" for what, least, most in LIMITS
    ]
    return "".join(parts)


def _amount(what: str, limit: int | None) -> str:
    if limit is None:
        return "-"
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if what.startswith(("bytes", "characters")) and limit >= 1 << shift and limit % (1 << shift) == 0:
            return f"{limit:,} ({limit >> shift:,} {unit})"
    return f"{limit:,}"


def tests_page() -> str:
    """Which tests and contracts hold each rule."""
    rows = [
        f"| {rule} | {', '.join(f'`{each}`' for each in citing().get(rule, []))} |\n" for rule in standing()
    ]
    return TESTS_INTRODUCTION + "".join(rows)


PAGES: Final[Mapping[Path, Callable[[], str]]] = {
    REFERENCE / "errors.md": errors_page,
    REFERENCE / "configuration.md": configuration_page,
    REFERENCE / "commands.md": commands_page,
    REFERENCE / "python.md": python_page,
    REFERENCE / "spark.md": spark_page,
    REFERENCE / "limits.md": limits_page,
    REFERENCE / "metrics.md": metrics_page,
    ROOT / "docs" / "design" / "tests.md": tests_page,
}


def _line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _paragraphs(text: str | None) -> str:
    """A docstring as Markdown: its sections become lists."""
    lines: list[str] = []
    for line in inspect.cleandoc(text or "").splitlines():
        if line in ("Args:", "Returns:", "Raises:", "Yields:"):
            lines += [f"*{line.rstrip(':')}*", ""]
        elif line.startswith("    ") and not line.startswith("     "):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"* `{name}`: {rest}" if colon and " " not in name else f"* {line.strip()}")
        else:
            lines.append(f"  {line.strip()}" if line.startswith("     ") else line)
    return "\n".join(lines)


def _signature(name: str, method: Callable[..., object]) -> str:
    text = str(inspect.signature(method)).replace("(self, ", "(").replace("(self)", "()")
    for module in ("collections.abc.", "broadsheet.base.types.", "broadsheet.journal.", "typing."):
        text = text.replace(module, "")
    return f"{name}{text}"


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'`"{value}"`' if value else "(none)"
    if isinstance(value, tuple | list | dict):
        return f"`{value!r}`" if value else "(none)"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


Row = tuple[str, object, str]


def _sections(
    tree: type[msgspec.Struct], prefix: str, defaults: Mapping[str, object]
) -> Iterator[tuple[str, list[Row]]]:
    """Sections in the order of the tree: a struct's own settings, then those of the structs in it."""
    own: list[Row] = []
    nested: list[tuple[str, type[msgspec.Struct]]] = []
    hints = get_type_hints(tree)
    for field in tree.__struct_fields__:
        hint = hints[field]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            nested.append((f"{prefix}{field}", hint))
        else:
            value = defaults[f"{prefix}{field}"]
            text = _field_docs(tree).get(field, "")
            own.append((f"{prefix}{field}", _told(value, hint), text))
    if own:
        yield prefix.rstrip("."), own
    for name, hint in nested:
        yield from _sections(hint, f"{name}.", defaults)


def _told(value: object, hint: object) -> object:
    return value if hint is not Duration or isinstance(value, str) else f"{value} ns"


@cache
def _field_docs(tree: type[msgspec.Struct]) -> dict[str, str]:
    """The sentence under each field, in the source of the class and of its parents."""
    found: dict[str, str] = {}
    for kind in reversed(tree.__mro__):
        if not issubclass(kind, msgspec.Struct) or kind is msgspec.Struct:
            continue
        module = ast.parse(Path(str(sys.modules[kind.__module__].__file__)).read_text())
        for node in ast.walk(module):
            if not isinstance(node, ast.ClassDef) or node.name != kind.__name__:
                continue
            for statement, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    match after:
                        case ast.Expr(value=ast.Constant(value=str(text))):
                            found[statement.target.id] = _line(text)
    return found


def _commands(command: Any, path: str) -> Iterator[str]:
    """Headings, help and tables of a command and of those below it."""
    if names := getattr(command, "list_commands", None):
        if path != "broadsheet":
            yield f"\n## `{path}`\n\n{_line(command.help)}\n"
        for name in names(None):
            yield from _commands(command.get_command(None, name), f"{path} {name}")
        return
    level = "###" if path.count(" ") > 1 else "##"
    yield f"\n{level} `{path}`\n\n{_line(command.help)}\n"
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    if shown:
        yield "\n| argument or option | is |\n|---|---|\n"
    for each in shown:
        names = ", ".join(each.opts) if each.param_type_name == "option" else str(each.name).upper()
        default = each.default if not callable(each.default) else None
        text = _line(getattr(each, "help", ""))
        tail = f" Default: `{default}`." if default not in (None, "", False, ()) else ""
        yield f"| `{names}` | {text}{tail} |\n"


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
