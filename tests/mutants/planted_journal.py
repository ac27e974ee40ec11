"""Bugs planted in one-node journals: pipeline (tier 1); spool, recovery and checkpoint (tier 2)."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from broadsheet.base.time import Instant
from broadsheet.errors import Status
from broadsheet.journal.core.append_admission import PendingAppend
from broadsheet.journal.core.pipeline import Pipeline
from broadsheet.journal.core.pipeline_events import Output, Persisted, PutRegisters, Rollback
from simulator.plan import Tier
from tests.mutants.registry import Mutant

Handler = Callable[[Pipeline, Any, Instant, list[Output]], None]


def _answers_then_puts(answer: Callable[[Pipeline, list[Output]], None]) -> Any:
    def hasty(self: Pipeline, effects: list[Output]) -> None:
        durable = [e for e in self._queue.entries if e.token <= self._persisted and e.registers is not None]
        if durable and durable[-1].registers is not None:
            self._put_done = max(self._put_done, durable[-1].registers.version)
            self._put_version = self._put_done
        answer(self, effects)
        if durable and durable[-1].registers is not None:
            effects.append(PutRegisters(registers=durable[-1].registers))

    return hasty


def _never_puts(answer: Callable[[Pipeline, list[Output]], None]) -> Any:
    def passing(self: Pipeline, effects: list[Output]) -> None:
        self._put_done = self._put_version = 1 << 60
        answer(self, effects)

    return passing


def _answers_at_once(submitted: Handler) -> Any:
    def hasty(self: Pipeline, event: Any, now: Instant, effects: list[Output]) -> None:
        submitted(self, event, now, effects)
        self._persisted = self._token
        self._answer(effects)

    return hasty


def _takes_any_sync_for_all(persisted: Handler) -> Any:
    def generous(self: Pipeline, _event: Persisted, now: Instant, effects: list[Output]) -> None:
        persisted(self, Persisted(token=self._token), now, effects)

    return generous


def _ignores(field: str) -> Callable[[Any], Any]:
    def plant(verdict: Callable[..., Status]) -> Any:
        def blind(entry: PendingAppend, *rest: Any, **named: Any) -> Status:
            wanted = entry.condition
            entry.condition = None if wanted is None else replace(wanted, **{field: None})
            try:
                return verdict(entry, *rest, **named)
            finally:
                entry.condition = wanted

        return blind

    return plant


def _takes_a_refusal_for_done(_refused: Handler) -> Any:
    def deaf(self: Pipeline, _event: Any, _now: Instant, effects: list[Output]) -> None:
        self._persisted = self._token
        effects.append(Rollback(end=self.adopted_end, fragment_begin=self.fragment_begin))
        self._answer(effects)

    return deaf


def _forgets_conditions_of_streams(ended: Handler) -> Any:
    def hasty(self: Pipeline, event: Any, now: Instant, effects: list[Output]) -> None:
        clock = self._staging.clocks.get(event.stream)
        if clock is not None:
            clock.entry.condition = None
        ended(self, event, now, effects)

    return hasty


def _keeps_the_bytes(_undo: Any) -> Any:
    def careless(self: Any) -> None:
        self._saved = None

    return careless


def _forgets_the_last(replay: Callable[[Any], Any]) -> Any:
    def short(records: Any) -> Any:
        return replay(list(records)[:-1])

    return short


def _checkpoints_unsynced(checkpoint: Callable[..., Any]) -> Any:
    def hasty(self: Any, _files: Any, **named: Any) -> Any:
        return checkpoint(self, [], **named)

    return hasty


def _hunt_crash_states() -> str | None:
    from tests.journal.crash_histories import hunt

    return hunt()


TRIMMED_UNSYNCED = Mutant(
    "journal_trimmed_before_the_spool_is_synced",
    "A checkpoint trims the log without a sync of the spool files that it speaks of (journals.14).",
    "broadsheet.journal.housekeeping:Housekeeping._checkpoint",
    _checkpoints_unsynced,
    hunt=_hunt_crash_states,
)

PIPELINE = "broadsheet.journal.core.pipeline:Pipeline"
MUTANTS = [
    TRIMMED_UNSYNCED,
    Mutant(
        "journal_registers_put_after_the_answer",
        "Registers are put once the append was answered (journals.11).",
        f"{PIPELINE}._answer",
        _answers_then_puts,
        workload="append",
    ),
    Mutant(
        "journal_committed_end_passes_a_pending_put",
        "The committed end does not wait for the registers to be put (journals.11).",
        f"{PIPELINE}._answer",
        _never_puts,
        workload="append",
    ),
    Mutant(
        "journal_ack_before_persisted",
        "An append is answered in the step that takes it (W1).",
        f"{PIPELINE}._on_submitted",
        _answers_at_once,
        workload="append",
    ),
    Mutant(
        "journal_any_sync_counts_for_all",
        "Persisted(token) is taken for everything that was asked for.",
        f"{PIPELINE}._on_persisted",
        _takes_any_sync_for_all,
        workload="append",
    ),
    Mutant(
        "journal_explicit_offset_unchecked",
        "An append at an explicit offset goes wherever the head is (J7).",
        "broadsheet.journal.core.pipeline:verdict",
        _ignores("offset"),
        workload="append",
    ),
    Mutant(
        "journal_register_check_unchecked",
        "An append's check is not made (J6).",
        "broadsheet.journal.core.pipeline:verdict",
        _ignores("check"),
        workload="append",
    ),
    Mutant(
        "journal_refused_write_taken_for_done",
        "ENOSPC is answered as if the bytes stood there (journals.20).",
        f"{PIPELINE}._on_persist_refused",
        _takes_a_refusal_for_done,
        workload="append",
    ),
    Mutant(
        "journal_stream_condition_not_looked_at_again",
        "A stream's condition is evaluated when it is opened, and not when it takes its place (J6, J7).",
        f"{PIPELINE}._on_stream_ended",
        _forgets_conditions_of_streams,
        workload="append",
    ),
    Mutant(
        "journal_undo_keeps_the_bytes",
        "A streaming append that broke off leaves its bytes in the spool (J3).",
        "broadsheet.journal.streamed_append:StreamedAppend.undo",
        _keeps_the_bytes,
        workload="append",
        tier=Tier.SERVICES,
    ),
    Mutant(
        "journal_recovery_forgets_the_last_record",
        "Recovery leaves out the newest record of the log (J2).",
        "broadsheet.journal.recovered_state:replay",
        _forgets_the_last,
        workload="append",
        tier=Tier.SERVICES,
    ),
]
