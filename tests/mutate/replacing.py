"""Replacing: give the functions of a loaded module the code of a changed one.

A process that has loaded broadsheet and collected the tests is forked for each change. Every reference to a
function, in a table or in a test, stays valid: the function keeps its identity, and only its code is new. A
change outside functions (a default, a field, a decorator) took effect when the module was loaded, so that the
module must be loaded anew.
"""

import inspect
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any


class MustBeLoadedError(Exception):
    """The change is not inside a function."""


def replace(old: str, new: str, functions: Iterable[FunctionType]) -> None:
    """Put the code of `new` in place of that of `old`, in those of `functions` whose code differs.

    Raises:
        MustBeLoadedError: nothing changed.
    """
    changed = {
        (was.co_qualname, was.co_firstlineno): will
        for was, will in _differing(compile(old, "old", "exec"), compile(new, "new", "exec"))
    }
    found = [each for each in functions if _place(each) in changed]
    if {_place(each) for each in found} != changed.keys():
        raise MustBeLoadedError
    for function in found:
        if function.__code__.co_freevars != changed[_place(function)].co_freevars:
            raise MustBeLoadedError
    for function in found:
        function.__code__ = changed[_place(function)]


def _place(function: FunctionType) -> tuple[str, int]:
    return function.__code__.co_qualname, function.__code__.co_firstlineno


def _differing(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The outermost functions that differ."""
    if old.co_flags & inspect.CO_OPTIMIZED:
        if _meaning(old) != _meaning(new):
            yield old, new
        return
    if _meaning(old, is_deep=False) != _meaning(new, is_deep=False):
        raise MustBeLoadedError
    for was, will in zip(_inner(old), _inner(new), strict=True):
        yield from _differing(was, will)


def _inner(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _meaning(code: CodeType, *, is_deep: bool = True) -> tuple[Any, ...]:
    """All that the code does, without the lines where it stands."""
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
    return (
        code.co_qualname,
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        code.co_exceptiontable,
        [repr(sorted(each, key=repr) if isinstance(each, frozenset) else each) for each in constants],
        [_meaning(each) for each in _inner(code)] if is_deep else len(_inner(code)),
    )
