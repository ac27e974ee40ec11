"""Benchmarks: scripts that each measure one ratio within one run, and say what it is of.

They stand in `benchmarks/` of a checkout and in `runs/` here of an installed wheel; `broadsheet bench` runs
them. A script takes `--json` and then prints one object; without it, a table.
"""

import ast
from pathlib import Path

HERE = Path(__file__).parent
PLACES = (HERE / "runs", HERE.parents[2] / "benchmarks")


def scripts() -> dict[str, Path]:
    """Every benchmark by name."""
    for place in PLACES:
        if found := {path.stem: path for path in sorted(place.glob("*.py")) if not path.stem.startswith("_")}:
            return found
    return {}


def summary(path: Path) -> str:
    """What a benchmark measures: the first line of its docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
