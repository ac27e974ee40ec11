"""Bugs planted in the exactly-once sink: its driver, its records, its producers."""

from collections.abc import Callable, Generator
from typing import Any

from tests.mutants.registry import Mutant, edited

DRIVER = "broadsheet.sink.core.driver:Driver"
HISTORY = "broadsheet.sink.core.history"
RECORDS = "broadsheet.sink.core.records"
HELD = "broadsheet.sink.core.producers:HeldStamper"


def _always_the_old_stamper(take: Callable[..., Any]) -> Callable[..., Any]:
    def reuse(self: Any, plan: Any, **options: Any) -> Any:
        return self.stamper if self.stamper is not None else take(self, plan, **options)

    return reuse


def _rolls_back(_: Any) -> Callable[..., Any]:
    def roll_back(self: Any, asked: Any) -> Generator[Any, Any, None]:
        from broadsheet.message.uuid import Clock
        from broadsheet.sink.core.driver_events import Append

        for intent in asked.intents:
            back = type(intent)(
                journal=intent.journal,
                framing=intent.framing,
                producer=intent.producer,
                clock=Clock(1),
            )
            yield from self._surely(Append(intent.journal, back.content()))

    return roll_back


def planted(name: str, guard: str, target: str, replacement: Callable[[Any], Any]) -> Mutant:
    return Mutant(f"pipeline_{name}", guard, target, replacement, workload="pipeline")


MUTANTS = [
    planted(
        "producer_across_fences",
        "A producer id is used again whatever PLAN says, also under another fence.",
        f"{HELD}.take",
        _always_the_old_stamper,
    ),
    planted(
        "no_retire",
        "Producers whose acknowledgement is sent again are not retired first.",
        f"{DRIVER}._retire",
        edited("if record.fence == self.fence and producers:", "if False:"),
    ),
    planted(
        "batch_register_unchecked",
        "A batch is committed wherever the head is, whatever the registers say.",
        f"{DRIVER}._decide",
        edited("offset=head, check=now.as_check(), union=union", "union=union"),
    ),
    planted(
        "ack_before_commit",
        "Acknowledgements are appended before the commit record.",
        f"{DRIVER}._commit",
        edited(
            "give_up = after(self._now, self.patience)",
            "give_up = after(self._now, self.patience); yield from self._acknowledge(record)",
        ),
    ),
    planted(
        "abort_rolls_back",
        "ABORT takes back what its batch has published.",
        f"{DRIVER}._abort",
        _rolls_back,
    ),
    planted(
        "start_forgets_intents",
        "Nobody publishes what was committed, and may not have been acknowledged.",
        f"{DRIVER}._redo",
        edited("for journal, revision, content in contents:", "for journal, revision, content in ():"),
    ),
    planted(
        "lost_decision_taken_for_done",
        "A commit whose answer is lost counts as committed.",
        f"{DRIVER}._decide",
        edited(
            'if isinstance(answer, CallLost):\n        hit("sink.commit.in_doubt")',
            "if isinstance(answer, CallLost):\n        return True",
        ),
    ),
    planted(
        "author_unchecked",
        "A commit checks every register but the author.",
        f"{DRIVER}._decide",
        edited(
            "check=now.as_check()",
            'check={name: value for name, value in now.as_check().items() if name != "author"}',
        ),
    ),
    planted(
        "other_digest_accepted",
        "A replay of the newest batch is not compared with what was committed.",
        f"{HISTORY}:refuse_other_digest",
        edited("if stored.digest != digest:", "if False:"),
    ),
    planted(
        "older_batch_accepted",
        "A batch below the newest is committed, as an older checkpoint asks.",
        f"{HISTORY}:refuse_other_batch",
        edited("if batch not in (now.batch, now.batch + 1):", "if batch > now.batch + 1:"),
    ),
    planted(
        "reuse_whatever_was_acknowledged",
        "A worker uses its producer again although PLAN lists it with another clock.",
        f"{RECORDS}:BatchPlan.may_use",
        edited("(producer, acknowledged) in self.reusable", "producer in dict(self.reusable)"),
    ),
    planted(
        "retired_are_listed",
        "PLAN lists retired producers, too.",
        "broadsheet.sink.core.driver:reusable_of",
        edited("if producer not in retired", "if True"),
    ),
    planted(
        "retired_before_are_listed",
        "PLAN overlooks what was retired before the newest commit.",
        f"{DRIVER}._plan",
        edited("[*older, *records]", '[*(each for each in older if each.type == "commit"), *records]'),
    ),
    planted(
        "lost_acknowledgement_taken_for_done",
        "An acknowledgement whose answer is lost counts as appended.",
        f"{DRIVER}._acknowledge",
        edited("yield from self._redo(record, contents[at:])\n            break", "continue"),
    ),
    planted(
        "failed_task_keeps_its_producer",
        "The producer of a task that failed is used by its repetition.",
        f"{HELD}.take",
        edited("old, self.stamper = self.stamper, None", "old = self.stamper"),
    ),
    planted(
        "deleted_journal_fails_everybody",
        "An acknowledgement of a deleted journal fails START and COMMIT.",
        f"{DRIVER}._refused",
        edited("if not isinstance(error, NotFound):", "if True:"),
    ),
    planted(
        "one_acknowledgement_for_each_journal",
        "Of the acknowledgements of one journal only the last is appended.",
        f"{RECORDS}:Record.by_journal",
        edited(
            "contents.setdefault((intent.journal, intent.create_revision), []).append(intent.content())",
            "contents[(intent.journal, intent.create_revision)] = [intent.content()]",
        ),
    ),
]
