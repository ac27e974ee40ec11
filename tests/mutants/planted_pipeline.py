"""Bugs planted in the exactly-once sink, hunted in a model of the pipeline (`tests/spark/model.py`)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.mutants.registry import Mutant, edited

SEEDS = 400


def _hunt() -> str | None:
    from tests.spark.model import search

    return search(range(SEEDS), by_rows=True)  # No error of the sink's own counts as a catch.


def _always_the_old_publisher(take: Callable[..., Any]) -> Callable[..., Any]:
    def reuse(self: Any, plan: Any, **options: Any) -> Any:
        return self.publisher if self.publisher is not None else take(self, plan, **options)

    return reuse


def _rolls_back(_: Any) -> Callable[..., None]:
    def roll_back(self: Any, messages: Any, _batch: int) -> None:
        from broadsheet.message.uuid import Clock
        from broadsheet.spark.connection import patiently

        for message in messages:
            for intent in message.intents:
                back = type(intent)(
                    journal=intent.journal,
                    framing=intent.framing,
                    producer=intent.producer,
                    clock=Clock(1),
                )
                patiently(partial(self.target.journals.append, intent.journal, back.content()))

    return roll_back


DRIVER = "broadsheet.sink.core.driver:Driver"
MUTANTS = [
    Mutant(
        "pipeline_producer_across_fences",
        "A producer id is used again whatever PLAN says, also under another fence.",
        "broadsheet.sink.core.producers:Held.take",
        _always_the_old_publisher,
        hunt=_hunt,
    ),
    Mutant(
        "pipeline_no_retire",
        "Producers whose acknowledgement is sent again are not retired first.",
        f"{DRIVER}._retire",
        edited("if record.fence == self.fence and producers:", "if False:"),
        hunt=_hunt,
    ),
    Mutant(
        "pipeline_batch_register_unchecked",
        "A batch is committed wherever the head is, whatever the registers say.",
        f"{DRIVER}._decide",
        edited("offset=head, check=now.as_check(), union=union", "union=union"),
        hunt=_hunt,
    ),
    Mutant(
        "pipeline_ack_before_commit",
        "Acknowledgements are appended before the commit record.",
        f"{DRIVER}._commit",
        edited(
            "give_up = after(self._now, self.patience)",
            "give_up = after(self._now, self.patience); yield from self._acknowledge(record)",
        ),
        hunt=_hunt,
    ),
    Mutant(
        "pipeline_abort_rolls_back",
        "ABORT takes back what its batch has published.",
        "broadsheet.spark.sink:SinkWriter.abort",
        _rolls_back,
        hunt=_hunt,
    ),
    Mutant(
        "pipeline_start_forgets_intents",
        "Nobody publishes what was committed, and may not have been acknowledged.",
        f"{DRIVER}._redo",
        edited("for journal, content in contents:", "for journal, content in ():"),
        hunt=_hunt,
    ),
]
