"""The rules that no linter has, as functions from a file to what is wrong with it (code.15)."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LINE_MAX: Final = 110
MODULE_LINES_MAX: Final = 500
LONG_MODULES: Final = {
    "src/broadsheet/journal/client.py": 530,
    "src/broadsheet/journal/replica.py": 520,
    "src/broadsheet/wal/log.py": 1230,
    "src/broadsheet/wire/client.py": 800,
    "src/broadsheet/wire/server_connection.py": 1400,
}
"""Modules with one noun in them whose parts would write each other's fields, and how long each may get."""
FUNCTION_LINES_MAX: Final = 60
BANNED_MODULES: Final = ("utils", "util", "helpers", "common", "misc")
BANNED_WORDS: Final = ("Manager", "Handler", "Util", "Helper")
"""Words that say nothing, as the end of a class's name (code.12)."""
PLACEHOLDER: Final = re.compile(r"\bTODO\b|\bFIXME\b|\bXXX\b|NotImplementedError|\bstub\b|[Pp]laceholder")
EXPLAINED: Final = re.compile(r"TODO\(#\d+\):|NotImplementedError(\(.*\))?  # \w")
"""A plan that names its issue, or an abstract method that says whose it is."""
SKIP: Final = re.compile(
    r"pytest\.(skip|xfail|importorskip)|mark\.(skip|skipif|xfail)|unittest\.mock|\bMagicMock\b"
)
CONVERSIONS: Final = ("list", "tuple", "iter", "next", "enumerate", "zip", "map")
"""Functions that make an order of whatever their last argument has."""
PLACE: Final = re.compile(r"(?<![\w.])/(?:work|root|home)/")
"""A directory of somebody's machine."""


def tracked(*patterns: str) -> list[Path]:
    """The files of the repository that match, new ones included, ignored ones not."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in sorted(set(listed.splitlines())) if (path := ROOT / name).is_file()]


def long_lines(text: str) -> Iterator[str]:
    """Lines that do not fit."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE_MAX:
            yield f"{number}: {len(line)} characters, {LINE_MAX} are the most"


def placeholders(text: str) -> Iterator[str]:
    """Lines that stand for something unfinished, but for those that say what they wait for."""
    for number, line in enumerate(text.splitlines(), 1):
        found = PLACEHOLDER.search(line)
        if found and not EXPLAINED.search(line):
            yield f"{number}: {found.group()}"


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def long_functions(tree: ast.Module) -> Iterator[str]:
    """Functions above the limit, their docstring not counted."""
    for function in functions(tree):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        if not body:
            continue
        assert body[-1].end_lineno is not None
        lines = body[-1].end_lineno - body[0].lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{function.lineno}: {function.name} has {lines} lines, {FUNCTION_LINES_MAX} are the most"


def empty_names(tree: ast.Module) -> Iterator[str]:
    """Classes whose name ends with a word that says nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith(BANNED_WORDS):
            yield f"{node.lineno}: class {node.name}"


def iterated_sets(tree: ast.Module) -> Iterator[str]:
    """Loops and conversions to sequences over what is visibly a set (code.7)."""
    for scope in [tree, *functions(tree)]:
        names = _set_names(scope)
        for node in _own_nodes(scope):
            for iterated in _iterated(node):
                if _is_set(iterated, names):
                    yield f"{iterated.lineno}: {ast.unparse(iterated)} has no order; use dict.fromkeys"


def undocumented_tests(tree: ast.Module) -> Iterator[str]:
    """Tests that do not say why they matter (code.20)."""
    for function in functions(tree):
        if function.name.startswith("test_") and not ast.get_docstring(function):
            yield f"{function.lineno}: {function.name} has no docstring"


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of functions inside it."""
    left = list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left += ast.iter_child_nodes(node)


def _set_names(scope: ast.AST) -> dict[str, None]:
    found: dict[str, None] = {}
    for node in _own_nodes(scope):
        if isinstance(node, ast.Assign) and _is_set(node.value, {}):
            found |= dict.fromkeys(target.id for target in node.targets if isinstance(target, ast.Name))
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and _says_set(node.annotation)
        ):
            found[node.target.id] = None
    return found


def _says_set(annotation: ast.expr) -> bool:
    return ast.unparse(annotation).startswith(("set[", "frozenset[", "Set["))


def _iterated(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.iter
    if isinstance(node, ast.Call) and ast.unparse(node.func) in CONVERSIONS and node.args:
        yield node.args[-1]
    if isinstance(node, ast.Starred):
        yield node.value


def _is_set(node: ast.expr, names: dict[str, None]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    return isinstance(node, ast.Name) and node.id in names
