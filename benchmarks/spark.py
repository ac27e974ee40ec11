"""The Spark source (fixed frames, JSON) and decode, sequence, sink, beside Spark's own JSON source.

One node, one session (local[2]), the same rows in journals and in files. The cases take turns, by rounds; a
first round warms up and does not count. Rates are medians of rounds: rows per second of wall time, and rows
per second of CPU time of everything (JVM, Python processes, those that have ended too, and the node). The
built-in source reads files without a broker, UUIDs, sequencing or checksums, and writes nothing; ratios are
of CPU, which neighbours on the machine disturb least. The last columns say whose microseconds a row costs.

    python benchmarks/spark.py [--rows 1000000] [--rounds 3] [--json]
"""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from _spark import Case, measure, node, table  # type: ignore[import-not-found]

from broadsheet.base.time import WallTime
from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.client_sync import connect_sync
from broadsheet.message.columns import frames_of
from broadsheet.message.framing import FIXED, JSON_LINES, Framing
from broadsheet.message.producer_state import begun
from broadsheet.message.spans import sequence
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import Flag, ProducerId
from broadsheet.spark import session, start
from broadsheet.spark.encode import bytes_of, frames

SCHEMA = "key long, ts long, amount double"
PARTS = 2
ROWS_PER_APPEND = 40_000
WALL = WallTime(1_700_000_000_000_000_000)


def bodies(rows: range, framing: Framing) -> pa.Array:
    if framing == FIXED:
        layout = [("key", "<i8"), ("ts", "<i8"), ("amount", "<f8")]
        table = np.array([(n, 10**12 + n, n / 4) for n in rows], layout)
        return pa.array([row.tobytes() for row in table], pa.large_binary())
    texts = [b'{"key":%d,"ts":%d,"amount":%.2f}' % (n, 10**12 + n, n / 4) for n in rows]
    return pa.array(texts, pa.large_binary())


def fill(journals: Any, name: str, framing: Framing, rows: range, file: Path | None) -> bytes:
    """Append pending rows and their acknowledgements, one for each few MiB; returns all bytes."""
    journal = JournalName(name)
    journals.create(name, labels={"broadsheet.dev/framing": framing.kind.value})
    stamper, everything = Stamper(ProducerId(rows.start + 1)), []
    column = bodies(rows, framing)
    if file is not None:
        file.write_bytes(b"\n".join(column.to_pylist()) + b"\n")
    for at in range(0, len(column), ROWS_PER_APPEND):
        part = column.slice(at, ROWS_PER_APPEND)
        first = stamper.reserve(journal, framing, len(part), WALL)
        framed = bytes_of(frames(framing, part, stamper.producer, first, Flag.CONTINUE))
        everything.append(framed + stamper.intents()[0].content())
        journals.append(name, everything[-1])
    return b"".join(everything)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, node(Path(directory) / "node") as (address, process):
        report = cases(Path(directory), address, options.rows, options.rounds, process)
    if options.json:
        print(json.dumps(report))
    else:
        table(report, dict.fromkeys(report, "built-in JSON source"), "of built-in")


def cases(
    root: Path, address: str, rows: int, rounds: int, process: psutil.Process
) -> dict[str, dict[str, float]]:
    files = root / "files"
    files.mkdir()
    contents: dict[str, bytes] = {}
    with connect_sync(address) as client:
        for part in range(PARTS):
            piece = range(part * rows // PARTS, (part + 1) * rows // PARTS)
            contents["json"] = fill(
                client.journals, f"bench/json-{part}", JSON_LINES, piece, files / f"{part}.json"
            )
            contents["fixed"] = fill(client.journals, f"bench/fixed-{part}", FIXED, piece, None)
        for out in ("bench/out-0", "bench/out-1"):
            client.journals.create(out)
    spark = session("bench", master="local[2]")

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def journals(kind: str) -> str:
        return ",".join(f"bench/{kind}-{part}" for part in range(PARTS))

    def source(kind: str) -> Any:
        options = {"address": address, "journals": journals(kind), "tasks": "2"}
        return spark.read.format("broadsheet").options(**options).schema(SCHEMA).load()

    def pipeline(kind: str, number: int) -> None:
        options = {"address": address, "journals": journals(kind), "tasks": "2"}
        read = (
            spark.readStream.format("broadsheet").options(**options).schema("value binary, " + SCHEMA).load()
        )
        value = "to_json(struct(key, ts, amount))"
        out = read.selectExpr("concat('bench/out-', cast(key % 2 as string)) as journal", f"{value} as value")
        checkpoint = str(root / f"checkpoint-{kind}-{number}")
        writer = out.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        start(writer, address=address, commit_journal=f"bench/commits-{kind}-{number}").awaitTermination()

    def sequenced(framing: Framing, content: bytes) -> None:
        index = begun(framing, ByteOffset(0))
        assert len(sequence(index, frames_of(framing, content, 0)).rows) == rows // PARTS

    half = rows // PARTS
    builtin = spark.read.schema(SCHEMA)
    report: dict[str, dict[str, float]] = measure(
        {
            "built-in JSON source": Case(rows, lambda _: noop(builtin.json(str(files)))),
            "broadsheet source, JSON": Case(rows, lambda _: noop(source("json"))),
            "broadsheet source, fixed frames": Case(rows, lambda _: noop(source("fixed"))),
            "fixed frames, Spark, exactly-once sink": Case(rows, partial(pipeline, "fixed")),
            "JSON, Spark, exactly-once sink": Case(rows, partial(pipeline, "json")),
            "decode and sequence alone, JSON": Case(half, lambda _: sequenced(JSON_LINES, contents["json"])),
            "decode and sequence alone, fixed frames": Case(
                half, lambda _: sequenced(FIXED, contents["fixed"])
            ),
        },
        rounds,
        process,
    )
    spark.stop()
    return report


if __name__ == "__main__":
    main()
