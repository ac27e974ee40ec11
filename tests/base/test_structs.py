"""Structs: nobody changes one that was handed over, and what is written by position keeps its positions."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import StructConfig

import broadsheet

GOLDEN = Path(__file__).parent / "golden" / "shapes.txt"
NOT_OURS = tuple(f"broadsheet.{name}" for name in ("__main__", "bench", "cli", "demo", "spark"))
"""What has no format of its own, or imports what a node does without."""
MUTABLE = ("journal.core.recovery.RecoveryPlan", "journal.core.recovery.SpoolPlan")
"""Collected step by step by the one function that makes them."""


def structs() -> list[type[msgspec.Struct]]:
    """Every struct of the package, in the order of their names."""
    for module in pkgutil.walk_packages(broadsheet.__path__, "broadsheet."):
        if not module.name.startswith(NOT_OURS):
            importlib.import_module(module.name)

    def below(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
        for each in base.__subclasses__():
            yield each
            yield from below(each)

    found = [each for each in below(msgspec.Struct) if each.__module__.startswith("broadsheet.")]
    ours = [each for each in dict.fromkeys(found) if not each.__module__.startswith(NOT_OURS)]
    return sorted(ours, key=name)


def name(struct: type[msgspec.Struct]) -> str:
    return f"{struct.__module__.removeprefix('broadsheet.')}.{struct.__qualname__}"


def config(struct: type[msgspec.Struct]) -> StructConfig:
    found: StructConfig = struct.__struct_config__
    return found


def shapes() -> str:
    """A line for each struct that is written by position, or told from others by its tag."""
    lines = [
        f"{name(each)} {'by position' if config(each).array_like else 'by name'}, "
        f"tag {config(each).tag}: {' '.join(each.__struct_encode_fields__)}".rstrip()
        for each in structs()
        if config(each).array_like or config(each).tag is not None
    ]
    return "\n".join(lines) + "\n"


def test_no_struct_changes_once_it_is_made() -> None:
    """Events, effects and values are shared between machines, hosts and stories: none copies them."""
    assert [name(each) for each in structs() if not config(each).frozen] == sorted(MUTABLE)


def test_what_is_written_by_position_keeps_its_positions() -> None:
    """A field that moves is read as another one, without a word: by another node, or from a disk.

    After a change that is meant, with its version: `python -m tests.base.test_structs`.
    """
    assert shapes() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(shapes(), encoding="utf-8")
