"""Error texts: each text of an error in the product, with its class and the module that says it.

A text is found where it is given to a class of an error, or stands beside the status under which it is sent.
Sentences that functions return are found, too: other texts are put together of them.
Values are shown as `…`, and constants of the module with their content.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from broadsheet.errors import BY_STATUS, Status
from tests.project.rules import ROOT, tracked

SOURCE: Final = ROOT / "src" / "broadsheet"
CLASSES: Final = frozenset(kind.__name__ for kind in BY_STATUS.values()) | {
    "AssertionError",
    "AttributeError",
    "BadParameter",
    "EOFError",
    "OSError",
    "ValueError",
}
"""The classes of errors that the product raises; `typer.BadParameter` is a wrong command line."""
VALUE: Final = "…"
FIELD: Final = re.compile(r"\{\w+\}")
"""A value of a text that is formatted elsewhere."""
PART: Final = "a part"
"""Instead of a class, for a sentence that is put into a text."""
WORDS_MIN: Final = 2
"""Fewer words are a value with a sign beside it: whatever it is, nobody looks for it."""
PART_WORDS_MIN: Final = 5
"""A function that returns fewer words returns a name or a value."""
COMMANDS: Final = "cli/"
"""Here functions return what a command prints."""


class ErrorText(NamedTuple):
    """One text, where it comes from, and the class that a caller meets."""

    module: str
    kind: str
    text: str


def error_texts() -> list[ErrorText]:
    """Every text of the product, by module, in the order of its lines."""
    found: dict[ErrorText, None] = {}
    for path in tracked("src/broadsheet/*.py"):
        found |= dict.fromkeys(texts_of(path.relative_to(SOURCE).as_posix(), path.read_text()))
    return list(found)


def texts_of(module: str, source: str) -> Iterator[ErrorText]:
    """The texts of one module."""
    tree = ast.parse(source)
    constants, variables = _constants(tree), _variables(tree)
    for node in _in_order(tree):
        for kind, said in _said(node):
            if kind is PART and module.startswith(COMMANDS):
                continue
            name = said.id if isinstance(said, ast.Name) else ""
            for each in _last_before(node, variables.get(node, {}).get(name, ())) or [said]:
                text = " ".join(_text(each, constants).split())
                if len(text.replace(VALUE, "").split()) >= (PART_WORDS_MIN if kind is PART else WORDS_MIN):
                    yield ErrorText(module, kind, text)


def _last_before(node: ast.AST, assigned: Sequence[ast.expr]) -> list[ast.expr]:
    """What the last assignment above `node` gives: several texts if it has a condition."""
    above = [each for each in assigned if each.lineno <= getattr(node, "lineno", 0)]
    return list(_texts_in(max(above, key=lambda each: each.lineno))) if above else []


def _variables(tree: ast.Module) -> Mapping[ast.AST, Mapping[str, list[ast.expr]]]:
    """For each node in a function, what the function gives to its variables."""
    found: dict[ast.AST, Mapping[str, list[ast.expr]]] = {}
    for function in ast.walk(tree):  # Outer functions come first.
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            values: dict[str, list[ast.expr]] = {}
            for node in ast.walk(function):
                found[node] = values
                for name, value in _assigned(node):
                    values.setdefault(name, []).append(value)
    return found


def _in_order(tree: ast.Module) -> list[ast.AST]:
    return sorted(
        ast.walk(tree), key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    )


def _said(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The class and the text, if `node` is an error, or a status with its text."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[*given]) if name in CLASSES:
            yield from ((name, text) for each in given[:2] for text in _texts_in(each))
        case ast.Call(args=[*given], keywords=[*named]):
            yield from _beside([*given, *(each.value for each in named if each.arg == "message")])
        case ast.Tuple(elts=[*given]):
            yield from _beside(given)
        case ast.Dict(keys=keys, values=values):
            for key, text in zip(keys, values, strict=True):
                if kind := _kind(key):
                    yield from ((kind, each) for each in _texts_in(text))
        case ast.FunctionDef(returns=ast.expr() as annotation) if "str" in ast.unparse(annotation):
            for each in ast.walk(node):
                if isinstance(each, ast.Return) and each.value is not None:
                    yield from ((PART, text) for text in _texts_in(each.value))
        case _:
            pass


def _beside(given: Sequence[ast.expr]) -> Iterator[tuple[str, ast.expr]]:
    for status, text in pairwise(given):
        if kind := _kind(status):
            yield from ((kind, each) for each in _texts_in(text))


def _texts_in(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*_texts_in(body), *_texts_in(orelse))
        case ast.Tuple(elts=elements):
            yield from (text for each in elements for text in _texts_in(each))
        case ast.JoinedStr() | ast.Constant(value=str()) | ast.Name():
            yield node
        case _:
            pass


def _kind(node: ast.expr | None) -> str | None:
    match node:
        case ast.Attribute(value=ast.Name(id="Status"), attr=name) if name in Status.__members__:
            kind = BY_STATUS.get(Status[name])
            return kind.__name__ if kind else None
        case _:
            return None


def _constants(tree: ast.Module) -> Mapping[str, ast.expr]:
    """The module's own constants that are text."""
    return {
        name: value
        for node in tree.body
        for name, value in _assigned(node)
        if isinstance(value, ast.JoinedStr)
        or (isinstance(value, ast.Constant) and isinstance(value.value, str))
    }


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            yield name, value
        case _:
            pass


def _text(node: ast.expr, constants: Mapping[str, ast.expr]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return FIELD.sub(VALUE, text)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, constants) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Name(id=name) if name in constants:
            return _text(constants[name], constants)
        case _:
            return VALUE
