"""Crash windows: a query, a place to be killed in, a second run, what is true then."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.client_sync import connect_sync
from broadsheet.message.framing import JSON_LINES, scan
from broadsheet.message.producer_state import begun
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import ProducerId
from simulator.checkers.sequencer import Sequencer

ROWS = 60
BATCHES = 3
DRIVER = Path(__file__).with_name("driver.py")


class Window(NamedTuple):
    label: str
    passage: int
    action: str = "kill"
    master: str = "local[2]"


WINDOWS = {
    "A": Window("sink.task.framed", 3),
    "B": Window("sink.task.appended", 3),
    "C": Window("sink.commit.begin", 2),
    "D": Window("sink.commit.decided", 2),
    "E": Window("sink.commit.acknowledged", 3),
    "F": Window("sink.commit.end", 2),
    "G": Window("source.latest", 3),
    "H": Window("source.partitions", 3),
    "I": Window("source.partitions", 1),
    "J": Window("sink.task.appended", 3, "raise", "local[2,3]"),
    "K": Window("sink.commit.decided", 2, "raise"),
}
IN_A_COMMIT = {
    "L": Window("source.rows", 3, "kill worker", "local[2,3]"),
    "M": Window("source.rows", 3),
}
"""Of a query that reads one large commit, whose rows do not fit into the memory that it is given."""
ZOMBIES = {
    "Z1": Window("sink.commit.deciding", 2, "stall"),
    "Z2": Window("sink.task.framed", 3, "stall"),
    "Z3": Window("sink.commit.decided", 2, "stall"),
}


class Case:
    """One query with its journals and its checkpoint."""

    def __init__(
        self, address: str, directory: Path, name: str, *, has_one_commit: bool = False, **plan: Any
    ) -> None:
        """Fill the journals of a query.

        Args:
            has_one_commit: each journal holds the rows of two tasks, in turns, and then what commits them.
        """
        self.address, self.name, self.directory = address, name, directory
        of_part = commit if has_one_commit else numbers
        self.outputs = [f"{name}/out-0", f"{name}/out-1"]
        with connect_sync(address) as client:
            for output in self.outputs:
                client.journals.create(output)
            content = [of_part(range(part, ROWS, 2), producer=part + 1) for part in (0, 1)]
            for part in (0, 1):
                client.journals.create(f"{name}/in-{part}")
                client.journals.append(f"{name}/in-{part}", content[part])
        self.plan = {
            "address": address,
            "name": name,
            "checkpoint": str(directory / "checkpoint"),
            "bytes_max": str(sum(map(len, content)) // BATCHES + 2),
            **plan,
        }

    def driver(self, window: Window | None) -> "subprocess.Popen[str]":
        """A driver process, armed where a window is given."""
        plan = dict(self.plan)
        if window is not None:
            self.directory.mkdir(exist_ok=True, parents=True)
            order = {"label": window.label, "count": window.passage, "action": window.action}
            (self.directory / "plan.json").write_text(json.dumps(order))
            plan |= {"crashdir": str(self.directory), "master": window.master}
        return subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(plan)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def has_acted(self) -> bool:
        return (self.directory / "acted").exists()

    def wait_until_acted(self, seconds: float = 240) -> None:
        give_up = time.monotonic() + seconds
        while not self.has_acted():
            assert time.monotonic() < give_up, "the place was never reached"
            time.sleep(0.02)

    def release(self) -> None:
        (self.directory / "go").touch()

    def committed(self) -> list[int]:
        """The numbers that a read-committed reader of the outputs sees, by the scalar sequencer."""
        found: list[int] = []
        with connect_sync(self.address) as client:
            for output in self.outputs:
                content = b"".join(chunk.data for chunk in client.journals.read(output))
                sequencer = Sequencer(begun(JSON_LINES))
                for frame in scan(JSON_LINES, content, ByteOffset(0)):
                    found += [
                        json.loads(content[each.begin : each.end])["x"]
                        for each in sequencer.step(frame)[1]
                        if each.has_data
                    ]
        return sorted(found)

    def records(self) -> list[dict[str, Any]]:
        """The commit journal."""
        with connect_sync(self.address) as client:
            content = b"".join(chunk.data for chunk in client.journals.read(f"{self.name}/commits"))
        return [json.loads(line) for line in content.splitlines()]


def numbers(values: range, *, producer: int) -> bytes:
    stamper = Stamper(ProducerId(producer))
    from broadsheet.base.time import WallTime

    return b"".join(
        stamper.committed(JSON_LINES, b'{"x":%d}' % value, WallTime(1_700_000_000_000_000_000))
        for value in values
    )


def commit(values: range, *, producer: int) -> bytes:
    """Rows of two tasks, in several blocks of a reader, and then the acknowledgements of both."""
    from broadsheet.base.time import WallTime

    wall, name = WallTime(1_700_000_000_000_000_000), JournalName("in")
    tasks = [Stamper(ProducerId(producer)), Stamper(ProducerId(producer + 2))]
    rows = b"".join(
        tasks[at % 2].pending(name, JSON_LINES, b'{"x":%d,"pad":"%s"}' % (value, b"." * 400_000), wall)
        for at, value in enumerate(values)
    )
    return rows + b"".join(intent.content() for task in tasks for intent in task.intents())


def output_of(process: "subprocess.Popen[str]") -> str:
    out, _ = process.communicate(timeout=180)
    return out
