"""Bugs that a tired engineer could write, planted in cores by somebody who wrote neither code nor tests.

Each is one edit of one line. They measure the simulator: who is not caught tells which fault or checker is
missing (README).
"""

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

ACCEPTOR = "broadsheet.control.core.acceptor:AcceptorMachine"
PROPOSER = "broadsheet.control.core.proposer:ProposerMachine"
PIPELINE = "broadsheet.journal.core.pipeline:Pipeline"
QUEUE = "broadsheet.journal.core.queue:Queue"
STORE = "broadsheet.keyspace.core.store:Store"

METASTORE = [
    (
        "refused_record_remembered",
        "An acceptor keeps in memory what the disk refused.",
        f"{ACCEPTOR}._handlers[PersistRefused]",
        (
            "self._next_offset, self.memory = pending.offset, pending.before",
            "self._next_offset = pending.offset",
        ),
    ),
    (
        "accept_below_the_promise",
        "An accept below the promised ballot is taken.",
        f"{ACCEPTOR}._refusal",
        (
            "if event.ballot < self.memory.promised else",
            "if event.ballot < self.memory.promised and not is_accept else",
        ),
    ),
    (
        "promise_forgets_the_value",
        "A promise writes over the accepted value.",
        f"{ACCEPTOR}._handlers[Prepare]",
        ("Memory(self.acceptor, event.ballot, accepted)", "Memory(self.acceptor, event.ballot, None)"),
    ),
    (
        "later_ballot_ignored",
        "A proposer that learns a ballot above its own goes on.",
        f"{PROPOSER}._has_moved",
        (" or self.known.ballot > self.ballot", ""),
    ),
    (
        "latest_by_version",
        "The latest value is the one with the greatest version, not the greatest ballot.",
        f"{PROPOSER}._learn",
        ("accepted.ballot <= self.known.ballot", "accepted.value.version <= self.known.value.version"),
    ),
    (
        "new_sets_not_asked",
        "A change of members needs a majority of the old set only.",
        f"{PROPOSER}._is_elected",
        ("self._proposal is None or self._proposal.sets.is_quorum(votes)", "True"),
    ),
    (
        "read_of_any_ballot",
        "A read counts answers that hold other ballots.",
        f"{PROPOSER}._handlers[Held]",
        ("if held.ballot == self.known.ballot}", "}"),
    ),
    (
        "vote_of_another_ballot",
        "An acceptance counts, whichever ballot it is of.",
        f"{PROPOSER}._handlers[AcceptedBallot]",
        ("event.ballot != self.ballot or ", ""),
    ),
    (
        "uncovered_read_answered",
        "A round answers operations that were asked for after it had begun.",
        f"{PROPOSER}._decide",
        ("self._queue and self._queue.head.is_covered", "self._queue"),
    ),
    (
        "value_of_one_promise_chosen",
        "The latest value among a majority's promises is taken for chosen.",
        f"{PROPOSER}._handlers[Promised]",
        (
            "if ballot == latest}):",
            "}):",
        ),
    ),
]
JOURNAL = [
    (
        "refused_record_stays",
        "Of what the disk refused, the first stays in the queue.",
        f"{QUEUE}.take_from",
        ("entries[kept].token < token", "entries[kept].token <= token"),
    ),
    (
        "registers_put_before_durable",
        "Registers are put that no durable record has.",
        f"{QUEUE}.durable_registers",
        ("if entry.token > persisted:", "if not entry.length:"),
    ),
    (
        "rollback_to_committed_registers",
        "After a refusal the registers of what is still pending are forgotten.",
        f"{PIPELINE}._on_persist_refused",
        ("self._queue.last_registers() or self.committed_registers", "self.committed_registers"),
    ),
    (
        "unknown_put_taken_for_done",
        "A put of registers whose answer was lost counts as done.",
        f"{PIPELINE}._on_registers_put",
        ("if not event.is_known:", "if event.version < 0:"),
    ),
    (
        "token_not_taken_back",
        "After a refusal tokens go on where they were.",
        f"{PIPELINE}._on_persist_refused",
        ("self._token = Token(event.token - 1)", "pass"),
    ),
    (
        "head_not_taken_back",
        "After a refusal the head stays where the refused append would have ended.",
        f"{PIPELINE}._on_persist_refused",
        ("self.adopted_end = taken[0].begin", "self.adopted_end = taken[0].end"),
    ),
]
KEYSPACE = [
    (
        "head_not_rewound",
        "What the log refused is still compared with.",
        f"{STORE}._handlers[PersistRefused]",
        ("    self._rewind_head()", "    pass"),
    ),
    (
        "failed_compare_answered_at_once",
        "A failed compare is answered before what it saw is durable.",
        f"{STORE}._answer_when_durable",
        ("if not self._pending:", "if True:"),
    ),
    (
        "pending_trimmed",
        "A snapshot lets go of records that it does not hold.",
        f"{STORE}._handlers[FlushAsked]",
        ("self._pending[0].offset if self._pending else self._next_offset", "self._next_offset"),
    ),
    (
        "trimmed_at_the_first_chunk",
        "The log is trimmed when the first chunk of a snapshot is durable.",
        f"{STORE}._handlers[Persisted]",
        ("pending.token == self._last_chunk", "not pending.changes"),
    ),
    (
        "create_revision_of_each_put",
        "A put over a key that is there gives it a new create revision.",
        f"{STORE}._changes",
        ("revision if old is None else old.create_revision", "revision"),
    ),
    (
        "head_forgets_newer",
        "Showing an older change of a key drops the newer one that is pending.",
        f"{STORE}._show",
        (
            "if self._head[key][1] == pending.revision:\n            del self._head[key]",
            "if key in self._head:\n            del self._head[key]",
        ),
    ),
]

PLANTED = [
    Mutant(f"{prefix}_{name}", guard, target, edited(*edit), workload=workload, tier=tier)
    for prefix, workload, tier, planted in (
        ("metastore", "metastore", Tier.MACHINES, METASTORE),
        ("journal", "append", Tier.MACHINES, JOURNAL),
        ("keyspace", "keyspace", Tier.SERVICES, KEYSPACE),
    )
    for name, guard, target, edit in planted
]

MISSED = {
    "metastore_refused_record_remembered": "A refusal, the same accept again, and a crash must meet.",
    "journal_registers_put_before_durable": "Two changes of registers in one sync, and a crash behind it.",
    "metastore_later_ballot_ignored": "Acceptors refuse the lower ballot: only time is lost.",
    "metastore_new_sets_not_asked": "Two changes of members must cross: see `metastore_one_step_change`.",
    "journal_token_not_taken_back": "Equivalent: tokens need only rise.",
    "keyspace_trimmed_at_the_first_chunk": "All chunks of a small map are one batch of the log.",
}
"""Planted, and not found within the seeds that were tried, with the reason."""

MUTANTS = [mutant for mutant in PLANTED if mutant.name not in MISSED]
