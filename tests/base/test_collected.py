"""What the garbage collector is told to overlook refers to plain values only (code.4)."""

import enum
import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

import broadsheet

PLAIN: Final = (int, float, str, bytes, bytearray, memoryview, bool, type(None), enum.Enum, np.ndarray)


def _modules() -> Iterator[types.ModuleType]:
    for found in pkgutil.walk_packages(broadsheet.__path__, "broadsheet."):
        if not found.name.startswith(("broadsheet.bench.runs", "broadsheet.cli.")):
            yield importlib.import_module(found.name)


def _overlooked() -> dict[str, type[msgspec.Struct]]:
    found: dict[str, type[msgspec.Struct]] = {}
    for module in _modules():
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, msgspec.Struct)
                and value.__module__.startswith("broadsheet.")
                and not value.__struct_config__.gc
            ):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def _is_plain(hint: Any) -> bool:
    if isinstance(hint, typing.NewType):
        return _is_plain(hint.__supertype__)
    if isinstance(hint, typing.TypeVar):
        return hint.__bound__ is not None and _is_plain(hint.__bound__)
    if (origin := typing.get_origin(hint)) is not None:
        if origin in (typing.Literal, np.ndarray):
            return True
        return all(_is_plain(part) for part in typing.get_args(hint) if part is not Ellipsis)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        is_seen = hint is msgspec.Struct or not hint.__struct_config__.gc  # The latter is looked at itself.
        return is_seen or all(_is_plain(field) for field in typing.get_type_hints(hint).values())
    return isinstance(hint, type) and issubclass(hint, PLAIN)


def test_a_struct_outside_of_the_collector_refers_to_plain_values_only() -> None:
    """One that refers to an object that refers back would keep both, and all that they hold, for ever."""
    overlooked = _overlooked()
    assert len(overlooked) > 90, "the structs are found"

    wrong = [
        f"{name}.{field}: {hint}"
        for name, kind in overlooked.items()
        for field, hint in typing.get_type_hints(kind).items()
        if field in kind.__struct_fields__ and not _is_plain(hint)
    ]

    assert wrong == []
