"""Bugs planted in the exactly-once sink, hunted in a model of the pipeline (`tests/spark/model.py`)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.mutants.registry import Mutant

SEEDS = 400


def _hunt() -> str | None:
    from tests.spark.model import search

    return search(range(SEEDS), by_rows=True)  # No error of the sink's own counts as a catch.


def _always_the_old_publisher(take: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def reuse(self: Any, plan: Any) -> Any:
        return self.publisher if self.publisher is not None else take(self, plan)

    return reuse


def _nothing(_: Any) -> Callable[..., None]:
    def skip(*_arguments: Any, **_options: Any) -> None:
        return None

    return skip


def _checks_nothing(_: Any) -> Callable[[Any], dict[str, str | None]]:
    def unchecked(_standing: Any) -> dict[str, str | None]:
        return {}

    return unchecked


def _without_offset(_: Any) -> Callable[..., bool]:
    def careless(self: Any, _now: Any, line: bytes, *, batch: int, query: str) -> bool:
        head = self.journals.append(self.name, b"").end
        self.pass_by("sink.commit.deciding")
        try:
            self.journals.append(
                self.name, line, union={"batch": str(batch), "query": query, "at": str(head)}
            )
        except Exception:  # noqa: BLE001 - the bug: a lost answer is taken for a no.
            return False
        return True

    return careless


def _acknowledges_first(commit: Callable[..., None]) -> Callable[..., None]:
    def hasty(self: Any, fence: Any, *, batch: int, query: str, digest: str, intents: Any) -> None:
        from broadsheet.spark.commits import Record

        record = Record(type="commit", fence=fence, batch=batch, intents=list(intents))
        self._acknowledge_first(record, "")
        commit(self, fence, batch=batch, query=query, digest=digest, intents=intents)

    return hasty


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


COMMITS = "broadsheet.spark.commits:CommitJournal"
MUTANTS = [
    Mutant(
        "pipeline_producer_across_fences",
        "A producer id is used again whatever PLAN says, also under another fence.",
        "broadsheet.spark.sink:Held.take",
        _always_the_old_publisher,
        hunt=_hunt,
    ),
    Mutant(
        "pipeline_no_retire",
        "Producers whose acknowledgement is sent again are not retired first.",
        f"{COMMITS}._retire",
        _nothing,
        hunt=_hunt,
    ),
    Mutant(
        "pipeline_batch_register_unchecked",
        "A batch is committed wherever the head is, whatever the registers say.",
        f"{COMMITS}._compare_and_append",
        _without_offset,
        hunt=_hunt,
    ),
    Mutant(
        "pipeline_ack_before_commit",
        "Acknowledgements are appended before the commit record.",
        f"{COMMITS}.commit",
        _acknowledges_first,
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
        "START does not publish what the last run had committed.",
        f"{COMMITS}.acknowledge",
        _nothing,
        hunt=_hunt,
    ),
]
