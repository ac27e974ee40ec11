"""Tables: rows and sizes as people read and write them."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import typer

UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
SIZE_END: Final = 1 << 63
"""Offsets and lengths are below."""


def size_text(count: int) -> str:
    """A number of bytes in its largest unit: `64 MiB`, `1.5 KiB`."""
    if count < 1 << 10:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(UNITS))
    return f"{count / (1 << 10 * power):.1f}".removesuffix(".0") + f" {UNITS[power - 1]}"


def size_of(text: str | int) -> int:
    """The number of bytes that is written as `text`: a number, or a number with a unit, as in `64MiB`.

    Raises:
        BadParameter: it is something else, or no whole number of bytes.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", str(text).strip())
    powers = {"": 0, "B": 0} | {unit: power for power, unit in enumerate(UNITS, 1)}
    if found is None or found[2] not in powers:
        raise typer.BadParameter(f"{text} is no number of bytes: write one, as in 65536 or 64{UNITS[0]}")
    count = Decimal(found[1]) * (1 << 10 * powers[found[2]])
    if count != int(count) or count >= SIZE_END:
        raise typer.BadParameter(f"{text} is no whole number of bytes below {SIZE_END}")
    return int(count)


def place_of(text: str | int) -> int:
    """An offset as `size_of` reads it, or -1 for the committed end."""
    return -1 if str(text) == "-1" else size_of(text)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns below their heads; numbers stand to the right."""
    texts = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    is_number = [bool(rows) and all(isinstance(row[n], int) for row in rows) for n in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in texts
    )
