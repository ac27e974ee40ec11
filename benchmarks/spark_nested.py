"""Nested rows: the Spark source and sink beside Spark's own JSON source and file sink, and a micro-batch.

The rows have text, times, decimals, bytes, structs and lists, some 300 bytes of JSON each. A case reads all
rows from JSON files or from a journal, or writes all rows of Parquet files as JSON to files or, exactly once,
to a journal. The source reads what eight commits of the sink wrote, and what one commit wrote, whose rows lie
before their acknowledgements and are read again. One node, one session (local[2]). The cases take turns, by
rounds; a first round warms up and does not count. Before each case a few rows go the same way, so that no
process starts while it is measured. Ratios are of rows per second of CPU of everything (JVM, Python
processes, those that have ended too, and the node), which neighbours on the machine disturb least. The last
columns say whose microseconds a row costs. Then a running query gets 1,000 rows at a time: medians of what
Spark reports of warm micro-batches, and the CPU of each, from a journal to a journal and from files to files.

    python benchmarks/spark_nested.py [--rows 1000000] [--rounds 3] [--batches 30] [--json]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from _spark import Case, cpu_seconds, measure, node, table  # type: ignore[import-not-found]

from broadsheet.base.time import WallTime
from broadsheet.base.types import JournalName
from broadsheet.client_sync import connect_sync
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import ProducerId
from broadsheet.spark import session, start
from broadsheet.spark.encode import bytes_of, frames

SCHEMA = (
    "id long, ts timestamp, user struct<name: string, tags: array<string>, geo: struct<lat: double, "
    "lon: double>>, amount decimal(10,2), day date, maybe long, flag boolean, "
    "items array<struct<sku: string, qty: int>>, bin binary"
)
USER = (
    "named_struct('name', concat('user ', id % 997), "
    "'tags', transform(sequence(1, 1 + cast(id % 3 AS int)), n -> concat('t', n)), "
    "'geo', named_struct('lat', id % 180000 / 1000D - 90, 'lon', id % 360000 / 1000D - 180))"
)
ITEMS = (
    "transform(sequence(1, 1 + cast(id % 2 AS int)), "
    "n -> named_struct('sku', concat('sku-', id % 13, '-', n), 'qty', n))"
)
COLUMNS = (
    "id",
    "timestamp_micros(1700000000000000 + id * 1234567) AS ts",
    f"{USER} AS user",
    "cast(id % 10000000 / 100 AS decimal(10,2)) AS amount",
    "date_add(DATE'2020-01-01', cast(id % 3000 AS int)) AS day",
    "if(id % 3 = 0, NULL, id * 7) AS maybe",
    "id % 2 = 0 AS flag",
    f"{ITEMS} AS items",
    "cast(concat('bytes', id % 1000) AS binary) AS bin",
)
FILES = 8
NO_ROUND = 1_000
"""In place of a round's number: what is written before the rounds."""
BATCH_ROWS = 1000
WARM = 50
"""So many micro-batches do not count."""
BASES = {
    "built-in JSON source": "built-in JSON source",
    "broadsheet source": "built-in JSON source",
    "broadsheet source, one commit of all rows": "built-in JSON source",
    "built-in JSON file sink": "built-in JSON file sink",
    "broadsheet sink, exactly once": "built-in JSON file sink",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, node(Path(directory) / "node") as (address, process):
        bench = Bench(Path(directory), address, process)
        report = bench.cases(options.rows, options.rounds) if options.rounds else {}
        batches = bench.batches(options.batches) if options.batches else {}
        bench.spark.stop()
    if options.json:
        print(json.dumps({"cases": report, "micro_batches": batches}))
        return
    if report:
        table(report, BASES, "of built-in")
    for name, each in batches.items():
        print(f"\nmicro-batches of {BATCH_ROWS} rows, {name}: milliseconds")
        print("  " + ", ".join(f"{part} {took:.0f}" for part, took in each.items()))


class Bench:
    """A session, and what it reads and writes."""

    def __init__(self, root: Path, address: str, process: psutil.Process) -> None:
        self.root, self.address, self.process = root, address, process
        self.spark = session("bench", master="local[2]")
        self.journals = connect_sync(address).journals

    def cases(self, rows: int, rounds: int) -> dict[str, dict[str, float]]:
        for name, count in (("all", rows), ("few", FILES)):
            rows_in = self.spark.range(count).selectExpr(*COLUMNS).repartition(FILES)
            rows_in.write.parquet(str(self.root / f"parquet-{name}"))
            self.spark.read.parquet(str(self.root / f"parquet-{name}")).write.json(
                str(self.root / f"json-{name}")
            )
        works: dict[str, Callable[[str, int], None]] = {
            "built-in JSON file sink": self._write_files,
            "broadsheet sink, exactly once": self._write_journal,
            "built-in JSON source": self._read_files,
            "broadsheet source": self._read_journal,
            "broadsheet source, one commit of all rows": self._read_one_commit,
        }
        for which in ("all", "few"):
            self._write_journal(which, NO_ROUND, files_per_batch=1)
        report: dict[str, dict[str, float]] = measure(
            {name: Case(rows, partial(work, "all"), partial(work, "few")) for name, work in works.items()},
            rounds,
            self.process,
        )
        return report

    def _write_files(self, which: str, number: int) -> None:
        out = self._rows(which).format("json").option("path", str(self.root / f"out-{which}-{number}"))
        self._awaited(out, f"files-{which}-{number}").start().awaitTermination()

    def _write_journal(self, which: str, number: int, files_per_batch: int = FILES) -> None:
        journal = f"bench/out-{which}-{number}"
        self.journals.create(journal, labels={"broadsheet.dev/framing": "json-lines"})
        rows = self._rows(which, files_per_batch)
        out = self._awaited(rows, f"sink-{which}-{number}").option("journal", journal)
        commits = f"bench/commits-{which}-{number}"
        start(out, address=self.address, commit_journal=commits).awaitTermination()

    def _read_files(self, which: str, _: int) -> None:
        self._noop(self.spark.read.schema(SCHEMA).json(str(self.root / f"json-{which}")))

    def _read_journal(self, which: str, _: int) -> None:
        self._noop(self._reads(self.spark.read, f"bench/out-{which}-{NO_ROUND}").load())

    def _read_one_commit(self, which: str, _: int) -> None:
        self._noop(self._reads(self.spark.read, f"bench/out-{which}-0").load())

    def _noop(self, frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _rows(self, which: str, files_per_batch: int = FILES) -> Any:
        reads = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_batch)
        return reads.parquet(str(self.root / f"parquet-{which}")).writeStream

    def batches(self, count: int) -> dict[str, dict[str, float]]:
        """Medians of the parts of a warm micro-batch, as Spark reports them, and its CPU."""
        selected = self.spark.range(BATCH_ROWS).selectExpr(*COLUMNS)
        rows = [row.value for row in selected.selectExpr("to_json(struct(*)) AS value").collect()]
        column, stamper = pa.array(rows, pa.large_binary()), Stamper(ProducerId(1))
        arriving = self.root / "arriving"
        arriving.mkdir()
        for name in ("bench/small", "bench/small-out"):
            self.journals.create(name, labels={"broadsheet.dev/framing": "json-lines"})

        def journal(_: int) -> None:
            wall = WallTime(time.time_ns())
            first = stamper.reserve(JournalName("bench/small"), JSON_LINES, BATCH_ROWS, wall)
            self.journals.append(
                "bench/small", bytes_of(frames(JSON_LINES, column, stamper.producer, first, 0))
            )

        def file(number: int) -> None:
            draft = self.root / "draft"
            draft.write_text("\n".join(rows))
            draft.rename(arriving / f"{number:04}.json")

        ours = self._reads(self.spark.readStream, "bench/small").load().writeStream
        ours = ours.option("checkpointLocation", str(self.root / "small")).option(
            "journal", "bench/small-out"
        )
        theirs = self.spark.readStream.schema(SCHEMA).json(str(arriving)).writeStream.format("json")
        theirs = theirs.option("path", str(self.root / "small-files"))
        theirs = theirs.option("checkpointLocation", str(self.root / "small-theirs"))
        return {
            "built-in: files to files": self._fed(theirs.start(), file, count),
            "broadsheet: journal to journal": self._fed(
                start(ours, address=self.address, commit_journal="bench/small-commits"), journal, count
            ),
        }

    def _reads(self, reader: Any, journal: str) -> Any:
        return reader.format("broadsheet").options(address=self.address, journals=journal).schema(SCHEMA)

    def _awaited(self, writer: Any, name: str) -> Any:
        return writer.trigger(availableNow=True).option("checkpointLocation", str(self.root / "of" / name))

    def _fed(self, query: Any, feed: Callable[[int], None], count: int) -> dict[str, float]:
        """Give a query its rows, one batch after the other."""
        spent = [cpu_seconds(self.process)]
        for number in range(WARM + count):
            feed(number)
            query.processAllAvailable()
            spent.append(cpu_seconds(self.process))
        done = [each for each in query.recentProgress if each["numInputRows"]][WARM:]
        assert all(each["numInputRows"] == BATCH_ROWS for each in done), "one batch for what came at once"
        query.stop()
        parts = done[0]["durationMs"]
        found = {part: statistics.median(each["durationMs"][part] for each in done) for part in parts}
        for kind in spent[0]:
            used = [after[kind] - before[kind] for before, after in pairwise(spent[WARM:])]
            found[f"CPU of {kind}"] = statistics.median(used) * 1e3
        return found


if __name__ == "__main__":
    main()
