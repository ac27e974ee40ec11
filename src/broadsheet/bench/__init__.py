"""Bench: finds the benchmarks, which are scripts that each measure ratios within one run.

In a checkout the scripts are in `benchmarks/`, in an installed wheel in `runs/` beside this file;
`broadsheet bench` runs them. A script prints a table, or one JSON object with `--json`.
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
    """The first line of a benchmark's docstring, which says what it measures."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
