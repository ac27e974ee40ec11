"""Bugs planted in log and journals for what a second reader had found missing in the simulator.

A start that is killed before it opens any journal; work in threads, and the loop between its calls; a roll in
a checkpoint's flush; a refused append across the border of a block; a client that leaves while its append
takes its place.
"""

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

REPLICA = "broadsheet.journal.replica:Replica"
SPOOL = "broadsheet.journal.spool_file:SpoolFile"
STREAMED = "broadsheet.journal.streamed_append:StreamedAppend"

LOG = [
    (
        "read_of_old_places",
        "A read believes where runs lay before a truncation, a reset or a copy.",
        "broadsheet.wal.log:Log.read",
        (
            "if self.states.get(stream) is not state or known != places or from_offset < state.first:",
            "if False:",
        ),
    ),
    (
        "lost_where_nothing_is_held",
        "A damaged run that was read quarantines its stream, though that holds it no more.",
        "broadsheet.wal.log:Log._lose",
        ("if is_held:", "if self.states.get(state.stream) is not None:"),
    ),
]
JOURNAL = [
    (
        "reboot_forgotten_by_the_next_start",
        "A start knows of its own reboot only, and not of one that a start before it knew of.",
        "broadsheet.wal.log:Log._adopt",
        ("not self.is_same_boot or (result is not None and result.is_cache_lost)", "not self.is_same_boot"),
    ),
    (
        "suspects_told_once",
        "What would prove the last appends is told to the start that finds the damage, and to no later one.",
        "broadsheet.wal.opening:_open_locked",
        ("        _recall(segments, result)\n", "        pass\n"),
    ),
    (
        "closed_while_it_was_flushed",
        "A checkpoint does not sync a file that has rolled since the checkpoint was made.",
        "broadsheet.journal.housekeeping:Housekeeping._sync",
        (
            "if spool.is_released:\n            released.append(spool.name)",
            "if spool is not replica.spool:\n            pass",
        ),
    ),
    (
        "sums_of_refused_blocks_stay",
        "The sums of blocks that a refused append has filled stay.",
        f"{SPOOL}.restore",
        ("del self._block_crcs[saved.block_count :]", "pass"),
    ),
    (
        "sum_of_a_refused_tail_stays",
        "The sum of the last block has the bytes of an append that was refused.",
        f"{SPOOL}.restore",
        (
            "self.end, self._sha, self._tail_crc = saved.end, saved.sha, saved.tail_crc",
            "self.end, self._sha = saved.end, saved.sha",
        ),
    ),
    (
        "content_after_its_client_has_gone",
        "An append whose client has gone goes on to copy its content to the tail.",
        f"{STREAMED}._place",
        ("if self.phase is not Phase.PLACING:\n                    return", "pass"),
    ),
    (
        "tail_of_a_client_that_has_gone",
        "What a client that has gone has placed stays at the tail.",
        f"{STREAMED}.fail",
        ("self.undo()", "pass"),
    ),
]
DRIVER = "broadsheet.sink.core.driver:Driver"
PIPELINE = [
    (
        "commit_without_its_batch",
        "A commit checks the author and the place, and not the batch.",
        f"{DRIVER}._decide",
        ("check=now.as_check()", 'check={"author": str(self.fence)}'),
    ),
    (
        "commit_without_its_place",
        "A commit is appended wherever the head is.",
        f"{DRIVER}._decide",
        ("offset=head, ", ""),
    ),
    (
        "fence_without_its_check",
        "A fence is appended whatever the registers say now.",
        f"{DRIVER}._fence_over",
        ("check=old.as_check(), ", ""),
    ),
    (
        "start_looks_once",
        "A START does not look whether it is the author still before it acknowledges.",
        f"{DRIVER}._start",
        ("now = yield from self._ours()", "now = yield from self._standing()"),
    ),
    (
        "late_answer_taken_for_the_next",
        "The answer to an earlier call is taken for that to the present one.",
        f"{DRIVER}.step",
        ("event.call != self._call", "False"),
    ),
]

PLANTED = [
    Mutant(f"{prefix}_{name}", guard, target, edited(*edit), workload=prefix, tier=tier)
    for prefix, tier, planted in (
        ("log", Tier.CRASHES, LOG),
        ("journal", Tier.CRASHES, JOURNAL),
        ("pipeline", Tier.MACHINES, PIPELINE),
    )
    for name, guard, target, edit in planted
]

CAUGHT = (
    "log_read_of_old_places",
    "journal_closed_while_it_was_flushed",
    "journal_sums_of_refused_blocks_stay",
    "journal_content_after_its_client_has_gone",
    "pipeline_late_answer_taken_for_the_next",
    "pipeline_commit_without_its_place",
    "pipeline_start_looks_once",
)
"""Those that CI tries again; the README says what became of the others."""

MUTANTS = [mutant for mutant in PLANTED if mutant.name in CAUGHT]
