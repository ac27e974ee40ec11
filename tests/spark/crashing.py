"""The data source with places at which a test kills, stalls or fails it, in whichever process passes there.

Option `crashdir` names a directory that holds `plan.json`: {label, count, action}. Each passage of the label,
in any process, adds a byte to a file of its name; the count-th one acts, once. Actions: `kill` (-9 to the
JVM, the driver and this process), `kill worker` (this process alone), `stall` until the file `go` appears,
`raise`.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from broadsheet.sink.core.records import BatchPlan
from broadsheet.spark import application, batch_sink, commits, sink, source

_armed = {"directory": ""}
STALL_S_MAX = 120


class InjectedError(RuntimeError):
    pass


def arm(options: Mapping[str, str]) -> None:
    _armed["directory"] = options.get("crashdir", "")


def unarmed(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name.lower() != "crashdir"}


def reached(label: str) -> None:
    if not _armed["directory"]:
        return
    directory = Path(_armed["directory"])
    plan = json.loads((directory / "plan.json").read_text())
    if plan["label"] != label:
        return
    handle = os.open(directory / label, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(handle, b".")
    passages = os.lseek(handle, 0, os.SEEK_CUR)
    os.close(handle)
    if passages == plan["count"]:
        (directory / "acted").touch()
        act(plan["action"], directory)


def act(action: str, directory: Path) -> None:
    if action == "raise":
        raise InjectedError("injected")
    if action.startswith("kill"):
        for pid in (*(jvm_and_driver() if action == "kill" else ()), os.getpid()):
            os.kill(pid, signal.SIGKILL)
    give_up = time.monotonic() + STALL_S_MAX
    while not (directory / "go").exists() and time.monotonic() < give_up:
        time.sleep(0.02)


def jvm_and_driver() -> tuple[int, int]:
    pid = os.getpid()
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return pid, parent
        pid = parent
    raise RuntimeError("no JVM above this process")


commits.passed = reached  # type: ignore[attr-defined]  # The name that the module calls by.
sink.passed = reached  # type: ignore[attr-defined]  # As above.
batch_sink.passed = reached  # type: ignore[attr-defined]  # As above.
_given_to = application.given_to


def unarmed_given_to(writer: Any) -> application.Given:
    given = _given_to(writer)
    sources = [each._replace(options=unarmed(each.options)) for each in given.sources]
    return given._replace(sink=unarmed(given.sink), sources=sources)


application.given_to = unarmed_given_to


class CrashingReader(source.StreamReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(unarmed(options), schema)
        self.options = dict(options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        arm(self.options)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        arm(self.options)
        reached("source.latest")
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        arm(self.options)
        reached("source.partitions")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for rows in super().read(partition):
            yield rows
            reached("source.rows")


class Armed:
    """A writer that is armed in each process that unpickles it."""

    crash: Mapping[str, str]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        arm(self.crash)


class CrashingWriter(Armed, sink.SinkWriter):
    pass


class CrashingBatchWriter(Armed, batch_sink.BatchWriter):
    pass


W = TypeVar("W", bound=Armed)


def armed(kind: Callable[[Mapping[str, str], StructType], W], options: Any, schema: StructType) -> W:
    arm(options)  # An unpickled source has not been through `__init__`.
    writer = kind(unarmed(options), schema)
    writer.crash = dict(options)
    return writer


class NaiveWriter(CrashingWriter):
    """The control: pending in the tasks, acknowledged in commit, and nothing remembers which batch was."""

    def __getstate__(self) -> dict[str, Any]:
        self.plan = BatchPlan(fence=self.fence, committed=-1, query="")
        return self.__dict__

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        journals = self.target.journals()
        for message in messages:
            for intent in message.intents:
                journals.append(intent.journal, intent.content())
        reached("sink.commit.end")


class CrashingDataSource(source.BroadsheetDataSource):
    """Takes the place of `broadsheet`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        arm(self.options)

    def streamReader(self, schema: StructType) -> CrashingReader:  # noqa: N802
        return CrashingReader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> CrashingWriter:  # noqa: N802
        return armed(CrashingWriter, self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> CrashingBatchWriter:
        if overwrite:
            super().writer(schema, overwrite)
        return armed(CrashingBatchWriter, self.options, schema)


class NaiveDataSource(CrashingDataSource):
    @classmethod
    def name(cls) -> str:
        return "naive"

    def streamWriter(self, schema: StructType, overwrite: bool) -> NaiveWriter:  # noqa: N802
        return armed(NaiveWriter, self.options, schema)
