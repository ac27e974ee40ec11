"""Tables: rows and sizes as people read them."""

from collections.abc import Sequence
from typing import Final

UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size_text(count: int) -> str:
    """A number of bytes in its largest unit: `64 MiB`, `1.5 KiB`."""
    if count < 1 << 10:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(UNITS))
    return f"{count / (1 << 10 * power):.1f}".removesuffix(".0") + f" {UNITS[power - 1]}"


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
