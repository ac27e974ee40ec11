"""Proof: compares what a read-committed reader finds in the output journals with the file.

The rows are counted without Spark, with the sequencer of the Spark source. Distances are miles. Source:
pipelines.2, pipelines.11.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.client_sync import SyncJournals
from broadsheet.demo.flights import Totals
from broadsheet.demo.job import BY_CARRIER, UNPARSABLE
from broadsheet.message.framing import JSON_LINES
from broadsheet.spark.connection import Target
from broadsheet.spark.offsets import Span
from broadsheet.spark.read import Shape, read_span


class Line(msgspec.Struct, frozen=True):
    """One carrier's line in the table that proves the demo."""

    carrier: str
    expected: Totals
    found: Totals

    @property
    def is_right(self) -> bool:
        """Whether the journals hold as many rows and miles as the file."""
        return self.expected == self.found


class Moment(msgspec.Struct, frozen=True):
    """The demo's progress at a time, in seconds since its start."""

    seconds: float
    appended: int
    routed: float
    """Rows that committed batches have read, estimated from their bytes."""


def found_in(target: Target, journals: SyncJournals) -> dict[str, Totals]:
    """The totals of each carrier's output journal."""
    found = {}
    for info in journals.list(BY_CARRIER):
        span = Span(info.name, 0, journals.end(info.name))
        shape = Shape(pa.schema([pa.field("carrier", pa.string()), pa.field("distance", pa.int64())]))
        carrier = info.name.removeprefix(BY_CARRIER)
        rows, miles = 0, 0
        for batch in read_span(target, JSON_LINES, span, shape, create_revision=info.create_revision):
            assert pc.all(pc.equal(batch.column("carrier"), carrier)).as_py(), "a row is where it belongs"
            rows += batch.num_rows
            miles += pc.sum(batch.column("distance")).as_py() or 0
        found[carrier] = Totals(rows=rows, miles=miles)
    return found


def unparsable_count(target: Target, journals: SyncJournals) -> int:
    """How many messages the job could not parse."""
    span = Span(UNPARSABLE, 0, journals.end(UNPARSABLE))
    shape = Shape(pa.schema([pa.field("offset", pa.int64())]))
    revision = journals.get(UNPARSABLE).create_revision
    found = read_span(target, JSON_LINES, span, shape, create_revision=revision)
    return sum(batch.num_rows for batch in found)


def lines(expected: Mapping[str, Totals], found: Mapping[str, Totals]) -> list[Line]:
    """One line for each carrier of the file or of the journals, by name."""
    none = Totals(rows=0, miles=0)
    return [
        Line(carrier=carrier, expected=expected.get(carrier, none), found=found.get(carrier, none))
        for carrier in sorted({**expected, **found})
    ]


def plot(file: Path, table: Sequence[Line], moments: Sequence[Moment], kills: Mapping[str, float]) -> None:
    """Write a PNG with the rows of each carrier, and the progress over time with the kills."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    places = range(len(table))
    left.bar([at - 0.2 for at in places], [line.expected.rows for line in table], 0.4, label="in the file")
    left.bar([at + 0.2 for at in places], [line.found.rows for line in table], 0.4, label="in the journals")
    left.set_xticks(list(places), [line.carrier for line in table])
    left.set(title="flights per carrier", ylabel="rows", yscale="log")
    left.margins(y=0.25)
    left.legend(loc="upper right", ncols=2)
    seconds = [moment.seconds for moment in moments]
    right.plot(seconds, [moment.appended for moment in moments], label="appended by 4 producers")
    right.plot(seconds, [moment.routed for moment in moments], label="routed by committed batches")
    for what, at in kills.items():
        right.axvline(at, color="tab:red", linestyle="--", linewidth=1)
        right.text(at, 0, f" kill -9 {what}", color="tab:red", rotation=90, va="bottom", ha="right")
    right.set(title="progress", xlabel="seconds", ylabel="rows")
    right.set_ylim(top=1.2 * max([1, *(moment.appended for moment in moments)]))
    right.legend(loc="upper right", ncols=2)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110, format="png")
    plt.close(figure)
