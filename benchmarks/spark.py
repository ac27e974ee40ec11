"""The Spark source (fixed frames, JSON) and decode, sequence, sink, beside Spark's own JSON source.

One node, one session (local[2]), the same rows in journals and in files. Rates are rows per second of wall
time and rows per
second of CPU time of the whole tree (JVM, Python workers, node), medians of rounds after one that warms
up. The built-in source
reads files without a broker, UUIDs, sequencing or checksums; ratios are of CPU, which neighbours on the
machine disturb least.

    python benchmarks/spark.py [--rows 400000] [--rounds 3] [--json]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from broadsheet.base.time import WallTime
from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.cli.cluster import Cluster
from broadsheet.client import connect_sync
from broadsheet.message.columns import frames_of
from broadsheet.message.framing import FIXED, JSON_LINES, Framing
from broadsheet.message.producer_state import begun
from broadsheet.message.publisher import Publisher
from broadsheet.message.spans import sequence
from broadsheet.message.uuid import ProducerId
from broadsheet.spark import session, start

SCHEMA = "key long, ts long, amount double"
PARTS = 2
APPEND_BYTES = 4 << 20
WALL = WallTime(1_700_000_000_000_000_000)


def bodies(rows: range, framing: Framing) -> list[bytes]:
    if framing == FIXED:
        layout = [("key", "<i8"), ("ts", "<i8"), ("amount", "<f8")]
        table = np.array([(n, 10**12 + n, n / 4) for n in rows], layout)
        return [row.tobytes() for row in table]
    return [b'{"key":%d,"ts":%d,"amount":%.2f}' % (n, 10**12 + n, n / 4) for n in rows]


def fill(journals: Any, name: str, framing: Framing, rows: range, file: Path | None) -> bytes:
    """Append pending rows and their acknowledgements, one for each few MiB; returns all bytes."""
    journal = JournalName(name)
    journals.create(name, labels={"broadsheet.dev/framing": framing.kind.value})
    publisher, waiting, size, everything = Publisher(ProducerId(rows.start + 1)), [], 0, []
    texts = bodies(rows, framing)
    if file is not None:
        file.write_bytes(b"\n".join(texts) + b"\n")
    for number, body in enumerate(texts):
        waiting.append(publisher.pending(journal, framing, body, WALL))
        size += len(waiting[-1])
        if size >= APPEND_BYTES or number == len(texts) - 1:
            waiting.append(publisher.intents()[0].content())
            everything.append(b"".join(waiting))
            journals.append(name, everything[-1])
            waiting, size = [], 0
    return b"".join(everything)


def cpu_seconds() -> float:
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def measure(
    rows: int, rounds: int, work: Callable[[int], object], extra_cpu: Callable[[], float]
) -> dict[str, float]:
    walls, cpus = [], []
    for number in range(rounds + 1):
        wall, cpu = time.perf_counter(), cpu_seconds() + extra_cpu()
        work(number)
        if number:
            walls.append(time.perf_counter() - wall)
            cpus.append(cpu_seconds() + extra_cpu() - cpu)
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    return {"rows_per_s": rows / wall, "rows_per_cpu_s": rows / max(cpu, 1e-6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = run(Path(directory), options.rows, options.rounds)
    if options.json:
        print(json.dumps(report))
        return
    print(f"{'case':<44}{'rows/s':>12}{'rows/cpu s':>12}{'of built-in':>12}")
    base = report["built-in JSON source"]["rows_per_cpu_s"]
    for name, each in report.items():
        ratio = each["rows_per_cpu_s"] / base
        print(f"{name:<44}{each['rows_per_s']:>12,.0f}{each['rows_per_cpu_s']:>12,.0f}{ratio:>12.2f}")


def run(root: Path, rows: int, rounds: int) -> dict[str, dict[str, float]]:
    cluster = Cluster.make(root / "node", count=1, port_offset=0, has_any_port=True)
    cluster.start(is_detached=True)
    node = next(iter(cluster.running().values()))
    assert node is not None, "the node runs"
    address, broker = node.addresses["native"], psutil.Process(node.pid)

    def broker_cpu() -> float:
        return float(broker.cpu_times().user + broker.cpu_times().system)

    try:
        return cases(root, address, rows, rounds, broker_cpu)
    finally:
        os.kill(node.pid, 15)


def cases(
    root: Path, address: str, rows: int, rounds: int, broker_cpu: Callable[[], float]
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
    report = {
        "built-in JSON source": measure(rows, rounds, lambda _: noop(builtin.json(str(files))), broker_cpu),
        "broadsheet source, JSON": measure(rows, rounds, lambda _: noop(source("json")), broker_cpu),
        "broadsheet source, fixed frames": measure(rows, rounds, lambda _: noop(source("fixed")), broker_cpu),
        "fixed frames, Spark, exactly-once sink": measure(
            rows, rounds, lambda number: pipeline("fixed", number), broker_cpu
        ),
        "JSON, Spark, exactly-once sink": measure(
            rows, rounds, lambda number: pipeline("json", number), broker_cpu
        ),
        "decode and sequence alone, JSON": measure(
            half, rounds, lambda _: sequenced(JSON_LINES, contents["json"]), lambda: 0.0
        ),
        "decode and sequence alone, fixed frames": measure(
            half, rounds, lambda _: sequenced(FIXED, contents["fixed"]), lambda: 0.0
        ),
    }
    spark.stop()
    return report


if __name__ == "__main__":
    main()
