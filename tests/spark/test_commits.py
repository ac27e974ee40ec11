"""The commit journal decides each batch once, whatever answers are lost and whoever else is at work."""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broadsheet.base.time import WallTime
from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.client_sync import SyncJournals, connect_sync
from broadsheet.errors import ConfigError, Corrupt, Fenced, LocalProtocolError, NotFound, Unknown
from broadsheet.message.framing import JSON_LINES, framed, scan
from broadsheet.message.producer_state import begun
from broadsheet.message.stamper import Intent, Stamper
from broadsheet.message.uuid import Flag, pack, producer_from
from broadsheet.sink.core.producers import HeldStamper
from broadsheet.sink.core.records import (
    BatchPlan,
    Fence,
    Record,
    SinkRegisters,
    records_from,
    standing_of,
)
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import Target
from broadsheet.spark.sink import new_producer
from simulator.checkers.sequencer import Outcome, Sequencer

WALL = WallTime(1_700_000_000_000_000_000)
names = itertools.count()


class Lossy:
    """Journals whose appends lose answers: `lose` says whether the append happens first; None: no loss."""

    def __init__(self, journals: SyncJournals, lose: Callable[[str, bytes], bool | None]) -> None:
        self._journals, self._lose = journals, lose

    def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
        fate = self._lose(name, content)
        if fate is None:
            return self._journals.append(name, content, **options)
        if fate:
            self._journals.append(name, content, **options)
        raise Unknown("the answer was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journals, name)


class Bench:
    """A commit journal, an output journal, and tasks without Spark."""

    def __init__(self, journals: SyncJournals) -> None:
        self.journals = journals
        self.name, self.output = f"commits/{next(names)}", JournalName(f"output/{next(names)}")
        journals.create(self.output)

    def commit_journal(
        self, lose: Callable[[str, bytes], bool | None] = lambda _n, _c: None
    ) -> CommitJournal:
        lossy: Any = Lossy(self.journals, lose)
        return CommitJournal(Target("unused", patience_s=5), self.name, lossy)

    def task(self, number: int, stamper: Stamper | None = None) -> list[Intent]:
        """Append a pending message."""
        stamper = stamper or Stamper(producer_from(os.urandom(6)))
        self.journals.append(
            self.output, stamper.pending(self.output, JSON_LINES, b'{"n":%d}' % number, WALL)
        )
        return stamper.intents()

    def standing(self) -> SinkRegisters:
        """The commit journal's registers."""
        return standing_of(self.journals.registers(self.name).values, journal=self.name)

    def newest_record(self) -> Record:
        """The commit record that the registers name."""
        now = self.standing()
        content = b"".join(chunk.data for chunk in self.journals.read(self.name, now.at))
        return records_from(content, now, journal=self.name)[0]

    def committed(self) -> list[bytes]:
        content = b"".join(chunk.data for chunk in self.journals.read(self.output))
        sequencer, found = Sequencer(begun(JSON_LINES)), []
        for frame in scan(JSON_LINES, content, ByteOffset(0)):
            found += [
                content[each.begin : each.end - 2].rpartition(b":")[2] for each in sequencer.step(frame)[1]
            ]
        return found

    def outcomes(self) -> list[Outcome]:
        content = b"".join(chunk.data for chunk in self.journals.read(self.output))
        sequencer = Sequencer(begun(JSON_LINES))
        return [sequencer.step(frame)[0] for frame in scan(JSON_LINES, content, ByteOffset(0))]


@pytest.fixture
def bench(node: Any) -> Iterator[Bench]:
    with connect_sync(node.address) as client:
        yield Bench(client.journals)


def take(held: HeldStamper, plan: BatchPlan) -> Stamper:
    return held.take(plan, process=os.getpid(), new_producer=new_producer)


def keep(held: HeldStamper, plan: BatchPlan, stamper: Stamper, intents: list[Intent]) -> None:
    held.keep(plan, stamper, intents, process=os.getpid())


def commit(journal: CommitJournal, fence: str, batch: int, intents: list[Intent], digest: str = "d") -> None:
    journal.commit(Fence(fence), batch=batch, query="q", digest=f"{digest}{batch}", intents=intents)


def committed_once(bench: Bench) -> tuple[CommitJournal, HeldStamper, Stamper]:
    """A worker's first batch is committed: the journal, what the worker holds, and its producer."""
    journal, held = bench.commit_journal(), HeldStamper()
    journal.begin(Fence("f1"))
    first = take(held, journal.plan(Fence("f1")))
    keep(held, journal.plan(Fence("f1")), first, intents := bench.task(0, first))
    commit(journal, "f1", 0, intents)
    return journal, held, first


def test_batches_commit_one_after_the_other(bench: Bench) -> None:
    """The plain course: each record stands where register `at` says."""
    journal = bench.commit_journal()
    assert journal.begin(Fence("f1")).batch == -1
    for batch in range(3):
        commit(journal, "f1", batch, bench.task(batch))
        assert bench.newest_record().batch == batch

    assert bench.committed() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_whose_answer_is_lost_is_decided_by_reading(bench: Bench, happened: bool) -> None:
    """A timeout is never a no, and never a second commit."""
    losses = iter([happened])

    def lose(_name: str, content: bytes) -> bool | None:
        return next(losses, None) if b'"type":"commit"' in content else None

    journal = bench.commit_journal(lose)
    journal.begin(Fence("f1"))
    commit(journal, "f1", 0, bench.task(0))

    assert bench.committed() == [b"0"]
    assert bench.standing().batch == 0


@pytest.mark.parametrize("happened", [True, False])
def test_producers_are_retired_before_an_acknowledgement_is_sent_again(bench: Bench, happened: bool) -> None:
    """Else the first one, when it comes late, rolls back the producer's next batch (pipelines.8)."""
    losses = iter([happened])

    def lose(name: str, _content: bytes) -> bool | None:
        return next(losses, None) if name == bench.output and is_armed else None

    is_armed = False
    journal = bench.commit_journal(lose)
    journal.begin(Fence("f1"))
    intents = bench.task(0)
    is_armed = True
    commit(journal, "f1", 0, intents)

    assert bench.committed() == [b"0"]
    assert journal.plan(Fence("f1")).reusable == ()


def test_a_producer_is_used_again_only_under_its_own_fence(bench: Bench) -> None:
    """An older driver may still be about to acknowledge, or to repeat it (pipelines.7)."""
    journal = bench.commit_journal()
    journal.begin(Fence("f1"))
    intents = bench.task(0)
    commit(journal, "f1", 0, intents)
    assert journal.plan(Fence("f1")).reusable == ((intents[0].producer, intents[0].clock),)
    journal.begin(Fence("f2"))

    assert journal.plan(Fence("f2")).reusable == ()


def test_a_worker_takes_its_last_producer_only_where_the_plan_lists_it(bench: Bench) -> None:
    """New ids for each batch fill every reader's memory; a wrong reuse loses messages (pipelines.8)."""
    journal, held, first = committed_once(bench)
    again = take(held, journal.plan(Fence("f1")))
    assert again is first
    keep(
        held, journal.plan(Fence("f1")), again, bench.task(1, again)
    )  # Of an attempt that is never committed.

    assert take(held, journal.plan(Fence("f1"))) is not first


def test_a_worker_takes_its_producer_again_after_batches_of_other_workers(bench: Bench) -> None:
    """Spark gives tasks to idle workers in turn: each would take a new id each time (ADR 0136)."""
    journal, held, first = committed_once(bench)
    for batch in (1, 2, 3):
        commit(journal, "f1", batch, bench.task(batch))

    assert take(held, journal.plan(Fence("f1"))) is first


def test_a_worker_keeps_its_producer_over_a_task_without_rows(bench: Bench) -> None:
    """Where rows are few most tasks have none, and the next one with rows took a new id (ADR 0136)."""
    journal, held, first = committed_once(bench)
    assert take(held, journal.plan(Fence("f1"))) is first
    keep(held, journal.plan(Fence("f1")), first, [])
    commit(journal, "f1", 1, [])

    assert take(held, journal.plan(Fence("f1"))) is first


def test_an_older_driver_is_fenced_at_every_step(bench: Bench) -> None:
    """It may wake up at any time, and must write nothing that counts."""
    old, new = bench.commit_journal(), bench.commit_journal()
    old.begin(Fence("f1"))
    commit(old, "f1", 0, bench.task(0))
    new.begin(Fence("f2"))

    with pytest.raises(Fenced):
        old.plan(Fence("f1"))
    with pytest.raises(Fenced):
        commit(old, "f1", 1, bench.task(99))
    commit(new, "f2", 1, bench.task(1))
    assert bench.committed() == [b"0", b"1"]


def test_a_driver_fenced_between_reading_and_deciding_does_not_commit(bench: Bench) -> None:
    """Window Z1: the check is in the append, not before it."""
    old, new = bench.commit_journal(), bench.commit_journal()
    old.begin(Fence("f1"))

    def overtake(label: str) -> None:
        if label == "sink.commit.deciding":
            new.begin(Fence("f2"))

    old.pass_by = overtake
    with pytest.raises(Fenced):
        commit(old, "f1", 0, bench.task(99))
    assert bench.standing().batch == -1


def test_a_driver_fenced_before_it_looks_for_the_end_does_not_commit(bench: Bench) -> None:
    """P6: the end that it is then told lies behind the newer fence, so only the registers can refuse it."""
    newer = bench.commit_journal()

    def fence_first(name: str, content: bytes) -> None:
        if name == bench.name and not content and bench.standing().author == "f1":
            newer.begin(Fence("f2"))

    older = bench.commit_journal(fence_first)
    newer.begin(Fence("f1"))
    intents = bench.task(0)

    with pytest.raises(Fenced):
        commit(older, "f1", 0, intents)
    assert bench.standing().batch == -1
    assert bench.committed() == []


def test_a_task_that_failed_leaves_its_producer_to_nobody(bench: Bench) -> None:
    """What it had appended would be acknowledged with the rows of its repetition: each of them twice."""
    journal, held, first = committed_once(bench)
    plan = journal.plan(Fence("f1"))
    bench.task(1, take(held, plan))

    again = take(held, plan)
    assert again is not first
    commit(journal, "f1", 1, bench.task(1, again))
    assert bench.committed() == [b"0", b"1"]


def test_a_forked_worker_does_not_take_the_producer_of_the_one_that_it_was_forked_from(bench: Bench) -> None:
    """Both would append under one producer, with the same clocks."""
    journal, held, first = committed_once(bench)
    held.process = os.getppid()  # As its copy in a child has it.

    assert take(held, journal.plan(Fence("f1"))) is not first


def test_a_start_that_slept_publishes_nothing_of_a_newer_driver(bench: Bench) -> None:
    """That one goes on with its producers: an old acknowledgement would roll back what they append now.

    Found in the 14,498th story of the model: a batch was committed, and its rows were never seen.
    """
    old, new = bench.commit_journal(), bench.commit_journal()
    batch_1: list[Intent] = []

    def sleep(label: str) -> None:
        if label != "sink.start.fenced":
            return
        new.begin(Fence("f2"))
        stamper = Stamper(producer_from(os.urandom(6)))
        commit(new, "f2", 0, bench.task(0, stamper))
        batch_1.extend(bench.task(1, stamper))

    old.pass_by = sleep
    with pytest.raises(Fenced):
        old.begin(Fence("f1"))
    commit(new, "f2", 1, batch_1)

    assert bench.committed() == [b"0", b"1"]


def test_start_publishes_what_the_last_run_had_committed(bench: Bench) -> None:
    """Window D: committed, but nobody was told. The acknowledgements are the redo log (pipelines.6)."""

    class DeadError(Exception):
        pass

    def die(label: str) -> None:
        if label == "sink.commit.decided":
            raise DeadError

    journal = bench.commit_journal()
    journal.begin(Fence("f1"))
    journal.pass_by = die
    with pytest.raises(DeadError):
        commit(journal, "f1", 0, bench.task(0))
    assert bench.committed() == []
    bench.commit_journal().begin(Fence("f2"))

    assert bench.committed() == [b"0"]


def test_a_deleted_output_journal_keeps_no_other_from_its_acknowledgement(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    """One deleted journal failed each COMMIT and each START, for good, and hid the rows of all others."""
    gone, stamper = JournalName(f"gone/{next(names)}"), Stamper(new_producer())
    bench.journals.create(gone)
    bench.journals.append(gone, stamper.pending(gone, JSON_LINES, b'{"n":9}', WALL))
    intents = bench.task(0, stamper)
    assert [intent.journal for intent in intents] == [gone, bench.output]
    journal = bench.commit_journal()
    journal.begin(Fence("f1"))
    bench.journals.delete(gone)

    commit(journal, "f1", 0, intents)
    bench.commit_journal().begin(Fence("f2"))

    assert bench.committed() == [b"0"]
    assert f"{gone} was deleted" in capfd.readouterr().err


def test_messages_that_were_in_a_journal_that_was_made_again_are_told_to_be_lost(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    """Their acknowledgement was taken by the other journal of that name, and nobody heard of the loss."""
    again = JournalName(f"again/{next(names)}")
    made = bench.journals.create(again)
    stamper = Stamper(new_producer())
    first = stamper.reserve(again, JSON_LINES, 1, WALL, create_revision=made.create_revision)
    message = framed(JSON_LINES, pack(stamper.producer, first, Flag.CONTINUE), b'{"n":9}')
    bench.journals.append(again, message, create_revision=made.create_revision)
    intents = bench.task(0, stamper)
    bench.journals.delete(again)
    bench.journals.create(again)
    with pytest.raises(NotFound, match="was deleted and made again"):
        bench.journals.append(again, message, create_revision=made.create_revision)
    journal = bench.commit_journal()
    journal.begin(Fence("f1"))

    commit(journal, "f1", 0, intents)
    bench.commit_journal().begin(Fence("f2"))

    assert bench.committed() == [b"0"]
    assert bench.journals.end(again) == 0
    assert f"{again} was deleted with messages of a committed batch in it" in capfd.readouterr().err


def test_a_late_fence_of_a_dead_driver_changes_nothing(bench: Bench) -> None:
    """Its append may have been on its way for long; the registers it was checked against are gone."""
    late: list[tuple[bytes, dict[str, Any]]] = []
    inner = bench.journals

    class Delayed(Lossy):
        def append(self, name: str, content: bytes = b"", **options: Any) -> Any:
            if b'"fence":"f1"' in content and not late:
                late.append((content, options))
                raise Unknown("on its way")
            return inner.append(name, content, **options)

    delayed: Any = Delayed(inner, lambda _n, _c: None)
    first = CommitJournal(Target("unused", patience_s=5), bench.name, delayed)
    first.begin(Fence("f1"))
    second = bench.commit_journal()
    second.begin(Fence("f2"))
    content, options = late[0]

    with pytest.raises(Exception, match="registers"):
        inner.append(bench.name, content, **options)
    assert bench.standing().author == "f2"


def test_another_history_is_refused_by_name(bench: Bench) -> None:
    """A deleted or a foreign checkpoint must not skip batches in silence (pipelines.9, pipelines.11)."""
    journal = bench.commit_journal()
    journal.begin(Fence("f1"))
    for batch in range(2):
        commit(journal, "f1", batch, bench.task(batch))

    commit(journal, "f1", 1, [])  # A replay of the newest: nothing happens.
    wrongs: tuple[Callable[[], None], ...] = (
        lambda: commit(journal, "f1", 1, [], digest="other"),
        lambda: commit(journal, "f1", 0, []),
        lambda: commit(journal, "f1", 3, []),
        lambda: journal.commit(Fence("f1"), batch=2, query="another", digest="d2", intents=[]),
    )
    for wrong in wrongs:
        with pytest.raises(LocalProtocolError, match="another history"):
            wrong()
    assert bench.committed() == [b"0", b"1"]


def test_a_foreign_journal_is_not_taken_for_a_commit_journal(bench: Bench) -> None:
    """Somebody's registers are not ours to overwrite."""
    bench.journals.append(bench.output, b"{}\n", union={"author": "someone", "batch": "x"})
    journal = CommitJournal(Target("unused", patience_s=5), bench.output, bench.journals)

    with pytest.raises(Corrupt, match="not those of a commit journal"):
        journal.begin(Fence("f1"))


def test_a_journal_that_holds_data_is_not_taken_for_a_commit_journal(bench: Bench) -> None:
    """The names of output and commit journal are easily exchanged, and a fence among rows stays for good."""
    bench.journals.append(bench.output, b'{"somebody":"reads this"}\n')
    journal = CommitJournal(Target("unused", patience_s=5), bench.output, bench.journals)

    with pytest.raises(ConfigError, match=rf"{bench.output} holds \d+ bytes and no query's registers"):
        journal.begin(Fence("f1"))
    assert bench.journals.end(bench.output) == 26


@pytest.mark.parametrize("foreign", [b"torn", b"{}\n", b"\xff\n", b'{"type":1}\n'])
def test_foreign_bytes_in_a_commit_journal_are_named(bench: Bench, foreign: bytes) -> None:
    """An assertion's words help nobody to find out who wrote there."""
    journal = bench.commit_journal()
    journal.begin(Fence("f1"))
    commit(journal, "f1", 0, [])
    bench.journals.append(bench.name, foreign)

    with pytest.raises(Corrupt, match=f"commit journal {bench.name} holds"):
        journal.plan(Fence("f1"))


def test_registers_that_point_to_no_record_are_named(bench: Bench) -> None:
    """As above: it ended by a StopIteration."""
    journal = bench.commit_journal()
    journal.begin(Fence("f1"))
    head = bench.journals.end(bench.name)
    bench.journals.append(bench.name, b"\n", union={"at": str(head + 1)})

    for look in (journal.plan, journal.begin):
        with pytest.raises(Corrupt, match=f"offset {head + 1} of {bench.name} holds no commit"):
            look(Fence("f1"))
