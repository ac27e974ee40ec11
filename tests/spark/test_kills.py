"""A job over orders is killed a dozen times, in three ways of writing, and its rows are counted by `recount`.

What is killed, at a random moment after a commit: a Python worker, the driver, the JVM, the node; and a job
is stopped, another one goes on in its place, and the former wakes up.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from broadsheet.client_sync import connect_sync
from broadsheet.errors import BroadsheetError
from tests.spark.conftest import CLI, Node, down, up
from tests.spark.orders import Orders, orders, rows_of
from tests.spark.recount import ACK, OUTSIDE, committed, counted, journal_of, message_of, uuid_of

JOB = Path(__file__).with_name("orders_job.py")
KILLS = {
    "stream": ("worker", "driver", "node", "jvm", "zombie"),
    "function": ("driver", "worker", "zombie"),
    "batch": ("jvm", "worker", "node", "zombie"),
}
ORDERS = 1500
BATCHES = 16
SEED = 9
WAIT_S = 900


class Run:
    """One way of writing: its node, its jobs, and what is done to them."""

    def __init__(self, node: Node, directory: Path, way: str, content: dict[str, bytes]) -> None:
        self.node, self.directory, self.way = node, directory, way
        self.random = Random(f"{SEED}/{way}")
        self.outputs = [f"{way}/out-{part}" for part in range(3)]
        self.starts = 0
        self.plan = {
            "way": way,
            "address": node.address,
            "checkpoint": str(directory / way),
            "bytes_max": str(sum(map(len, content.values())) // BATCHES),
        }
        labels = {"broadsheet.dev/framing": "json-lines"}
        with connect_sync(node.address) as client:
            for name in self.outputs:
                client.journals.create(name, labels=labels)

    def job(self) -> "subprocess.Popen[bytes]":
        self.starts += 1
        with (self.directory / f"{self.way}-{self.starts}.log").open("wb") as log:
            command = [sys.executable, str(JOB), json.dumps(self.plan)]
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def commits(self) -> int:
        """How many batches are recorded; -1 while nobody can say."""
        try:
            with connect_sync(self.node.address) as client:
                content = b"".join(chunk.data for chunk in client.journals.read(f"{self.way}/commits"))
        except (BroadsheetError, OSError):
            return -1
        return sum(json.loads(line)["type"] == "commit" for line in content.splitlines())

    def wait_for_commits(self, job: "subprocess.Popen[bytes]", count: int) -> None:
        """Until so many are recorded, or the job has ended."""
        give_up = time.monotonic() + WAIT_S
        while self.commits() < count and job.poll() is None:
            assert time.monotonic() < give_up, f"{self.way}: no commit {count}"
            time.sleep(0.05)

    def with_kills(self) -> list[str]:
        """Run the job to its end, however often it dies; tell what was killed, and when."""
        left, told, job = list(KILLS[self.way]), [], self.job()
        while left:
            self.wait_for_commits(job, max(0, self.commits()) + 1)
            time.sleep(self.random.uniform(0, 1))
            if job.poll() is not None:
                assert job.returncode != 0, f"{self.way} ended before {left}: {self.said()}"
                job = self.job()
                continue
            before = self.commits()
            if left[0] == "zombie":
                job = self.zombie(job)
            elif not self.kill(job, left[0]):
                continue  # No such process yet.
            told.append(f"{left.pop(0)} after commit {before}")
        while job.wait(WAIT_S) != 0:
            job = self.job()
        return told

    def kill(self, job: "subprocess.Popen[bytes]", what: str) -> bool:
        if what == "node":
            os.kill(self.node.pid, signal.SIGKILL)
            again = up(self.node.data_dir)
            assert again.address == self.node.address
            self.node = again
            return True
        victims = self.victims(job, what)
        for victim in victims:
            victim.kill()
        return bool(victims)

    def victims(self, job: "subprocess.Popen[bytes]", what: str) -> list[psutil.Process]:
        own = psutil.Process(job.pid)
        below = own.children(recursive=True)
        if what == "driver":
            return [own]
        if what == "jvm":
            return [each for each in below if each.name() == "java"][:1]
        workers = [each for each in below if each.parent() and "python" in each.parent().name()]
        return [self.random.choice(workers)] if workers else []

    def zombie(self, job: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
        """Stop a job, let another one go on in its place, and wake it up: it adds nothing."""
        own = psutil.Process(job.pid)
        asleep = [own, *own.children(recursive=True)]
        for each in asleep:
            each.suspend()
        after = self.job()
        self.wait_for_commits(after, self.commits() + 2)
        for each in asleep:
            if each.is_running():
                each.resume()
        assert job.wait(WAIT_S) != 0, "a job that another one has followed"
        return after

    def said(self) -> str:
        return (self.directory / f"{self.way}-{self.starts}.log").read_text(errors="replace")[-3000:]

    def content(self, name: str) -> bytes:
        """What `broadsheet journals read` writes."""
        command = [*CLI, "journals", "read", name, "--address", self.node.address]
        return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def data() -> Orders:
    return orders("orders/in", ORDERS, SEED)


@pytest.fixture
def own(tmp_path: Path, data: Orders) -> Iterator[Node]:
    """A node that is killed, with the orders."""
    node = up(tmp_path / "data", "--any-port")
    with connect_sync(node.address) as client:
        for name, content in data.content.items():
            client.journals.create(name, labels={"broadsheet.dev/framing": "json-lines"})
            client.journals.append(name, content)
    yield node
    down(tmp_path / "data")


def test_the_count_is_that_of_the_writers(data: Orders) -> None:
    """The control: who counts and who wrote agree, and what a count must leave out is there."""
    lines = [each for content in data.content.values() for each in committed(content)]
    whole = [each for each in lines if isinstance(each["id"], int)]

    assert counted(row for each in whole for row in rows_of(each)) == counted(data.rows)
    assert len(lines) > len(whole)
    raw = sum(content.count(b'"id"') for content in data.content.values())
    assert raw > len(lines)


def test_a_count_tells_what_is_missing_and_what_is_extra(data: Orders) -> None:
    """A count that takes whatever there is for right would show nothing: planted, it tells each."""
    content = data.content["orders/in-0"]
    lines = content.splitlines(keepends=True)
    whole = counted(committed(content))
    last = max(at for at, line in enumerate(lines) if message_of(line).flags == ACK)
    unacknowledged = counted(committed(b"".join(lines[:last] + lines[last + 1 :])))
    assert (whole - unacknowledged).total() > 0

    first = message_of(lines[0])
    again = uuid_of(first.producer + 99, first.clock, OUTSIDE)
    doubled = json.dumps({"_meta": {"uuid": again}, **first.body}).encode() + b"\n"
    assert (counted(committed(content + doubled)) - whole).total() == 1
    assert counted(committed(content + lines[0])) == whole


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("way", KILLS)
def test_a_job_that_is_killed_has_each_row_once(way: str, own: Node, data: Orders, tmp_path: Path) -> None:
    """None missing and none extra, each in the journal of its key."""
    run = Run(own, tmp_path, way, data.content)
    told = run.with_kills()

    expected, found, raw = counted(data.rows), counted([]), 0
    for name in run.outputs:
        content = run.content(name)
        rows = committed(content)
        found += counted(rows)
        raw += content.count(b'"sku"')
        assert {journal_of(row["country"], run.outputs) for row in rows} <= {name}
    missing, extra = expected - found, found - expected
    told_all: dict[str, Any] = {
        "way": way,
        "kills": told,
        "starts": run.starts,
        "commits": run.commits(),
        "rows": found.total(),
        "rows in the journals, also those that were rolled back": raw,
        "missing": missing.total(),
        "extra": extra.total(),
    }
    print(json.dumps(told_all, indent=1))
    assert (missing.total(), extra.total()) == (0, 0)
    assert len(told) == len(KILLS[way])
