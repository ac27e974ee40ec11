"""The exactly-once pipeline: what stands in its journals, against a naive reading of its commit journal.

A row is shown once, if its batch is committed, and is of the fence that committed it; every row of a
committed batch is shown. Batches follow each other without a gap, each by the author of its time. Units:
rows and batches from 0; a digest is `begin:end` of the batch's rows. Source: P1; pipelines.9.
"""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from broadsheet.base.types import ByteOffset
from broadsheet.message.framing import JSON_LINES, Frame, scan
from broadsheet.message.producer_state import begun
from simulator.checkers.sequencer import Sequencer
from simulator.workload import Violation


class Row(NamedTuple):
    """A row, as it is shown in an output journal."""

    row: int
    batch: int
    fence: str


class Batch(NamedTuple):
    """A committed batch."""

    fence: str
    begin: int
    end: int


class Reader:
    """The committed rows of one output journal, as a reader sees them one after the other."""

    def __init__(self) -> None:
        self.end = 0
        self.seen: dict[int, Row] = {}
        self._sequencer = Sequencer(begun(JSON_LINES))
        self._content = b""

    def read(self, content: bytes) -> list[Row]:
        """The rows that `content`, which follows what was read before, commits.

        Raises:
            Violation: a row is shown twice.
        """
        self.end += len(content)
        base = self.end - len(content)
        self._content += content
        rows = []
        for frame in scan(JSON_LINES, content, ByteOffset(base)):
            rows += [self._row(each) for each in self._sequencer.step(frame)[1] if each.has_data]
        for row in rows:
            if row.row in self.seen:
                raise Violation(f"row {row.row} is shown twice: as {self.seen[row.row]} and as {row}")
            self.seen[row.row] = row
        return rows

    def _row(self, frame: Frame) -> Row:
        line = json.loads(self._content[frame.begin : frame.end])
        return Row(line["row"], line["batch"], line["fence"])


class Ledger:
    """The batches of a commit journal, as its lines come."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.author = ""
        self.end = 0

    def read(self, content: bytes | bytearray) -> None:
        """The lines of the journal's whole `content` that were not read yet.

        Raises:
            Violation: a batch does not follow the one before, or is of another than the author.
        """
        lines, self.end = content[self.end :].splitlines(), len(content)
        for line in lines:
            record = json.loads(line)
            if record["type"] == "fence":
                self.author = record["fence"]
            elif record["type"] == "commit":
                self._commit(record)

    def _commit(self, record: Mapping[str, str]) -> None:
        begin, end = map(int, record["digest"].split(":"))
        number, expected = int(record.get("batch", -1)), len(self.batches)
        if number != expected:
            raise Violation(f"batch {number} is committed where batch {expected} follows")
        if record["fence"] != self.author:
            raise Violation(
                f"batch {number} is committed by {record['fence']} while {self.author} is the author"
            )
        before = self.batches[-1].end if self.batches else 0
        if begin != before:
            raise Violation(f"batch {number} begins at row {begin}, and the one before ends at {before}")
        self.batches.append(Batch(record["fence"], begin, end))

    def refuse_uncommitted(self, row: Row) -> None:
        """Raise where a row that is shown is not of a committed batch, or of another run of it.

        Raises:
            Violation: it is not.
        """
        if row.batch >= len(self.batches):
            raise Violation(f"{row} is shown, and batches up to {len(self.batches) - 1} are committed")
        batch = self.batches[row.batch]
        if batch.fence != row.fence or not batch.begin <= row.row < batch.end:
            raise Violation(f"{row} is shown, and its batch is committed as {batch}")


def check_pipeline(
    ledger: Ledger, outputs: Mapping[str, bytes], *, excused: Mapping[str, int], place: Callable[[int], str]
) -> None:
    """Check the whole pipeline.

    Args:
        outputs: the content of each output journal.
        excused: of a journal that was deleted, the last batch that may have written to it before.
        place: where a row goes.

    Raises:
        Violation: a row is lost, shown twice, or shown though it is not committed.
    """
    readers = {name: Reader() for name in outputs}
    for name, content in outputs.items():
        for shown in readers[name].read(content):
            ledger.refuse_uncommitted(shown)
    for number, batch in enumerate(ledger.batches):
        for row in range(batch.begin, batch.end):
            name = place(row)
            is_excused = number <= excused.get(name, -1)
            if not is_excused and (name not in readers or row not in readers[name].seen):
                raise Violation(f"row {row} of batch {number}, which is committed, is not shown in {name}")
