"""Bugs that simulation had found: each takes the fix out, and the plan in `tests/regressions` must see it.

A stored plan passes whatever the code does once its faults come at other places than they did: then it proves
nothing any more, and `find` stores another one.
"""

from pathlib import Path

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

REGRESSIONS = Path(__file__).parents[1] / "regressions"

UNPROVED = {
    "append_reads_refused_though_the_store_answers": "none of 200 seeds has it since a listing is parsed in"
    " turns. A test of `tests/journal` does find it",
    "journal_lost_sector_of_the_newest_batch": "the checker was wrong, and not the code",
    "append_refused_stream_evaluated_again": "no plan can: a write is refused in the step that adopts its"
    " append, except where that waits for a descriptor, and no simulated process runs out of these. So no"
    " stream is refused between the two. A test of `tests/journal/core` does find it",
    "journal_cut_batch_kept_by_a_full_disk": "none of 150 seeds has it since spools go to the disk as they"
    " grow: the batch whose head is damaged must be the first of its segment, the disk full, and the start"
    " killed. A test of `tests/wal` does find it",
    "journal_attempts_of_a_damaged_checkpoint": "none of 22 seeds has it since block sums are written beside"
    " spools. A test of `tests/journal/core` does find it",
    "journal_registers_of_a_missing_record": "none of 200 seeds has it since a damaged checkpoint proves"
    " closed files. A test of `tests/journal` does find it",
    "journal_stored_while_a_checkpoint_synced": "none of 80 seeds has it since 2026-11-23. A test of"
    " `tests/journal` does find it",
}
"""With the fix out their plans find nothing: it is known only that they pass."""
SEEN = ("Violation", "Corrupt", "LogFull")
SEEN_ELSE = {
    "journal_listing_ended_by_the_end_of_the_outage": ("TimeoutError",),
    "metastore_stop_during_a_start": ("AssertionError: scope",),
}
FIXES = [
    (
        "append_refused_after_a_lost_answer",
        "A refusal for good is told although an earlier attempt may have been done (C2).",
        "broadsheet.journal.client_appends:Appending.append_pieces",
        (
            "if lost is None:\n                    raise\n                raise Unknown(",
            "raise\n                raise Unknown(",
        ),
        Tier.SERVICES,
    ),
    (
        "append_unknown_though_not_sent",
        "A run stream that has ended is not used again, nor is its end told for what was never sent (C2).",
        "broadsheet.journal.client_batches:Batches._open",
        (  # Both halves of the fix, of which each alone leaves no trace.
            "if self._stream is None or self._stream.has_ended:",
            (
                "if self._stream is not None and isinstance(self._stream._error, Unknown):\n"
                "            raise self._stream._error\n"
                "        if self._stream is None:"
            ),
        ),
        Tier.SERVICES,
    ),
    (
        "append_start_on_a_disk_whose_reads_fail_for_a_while",
        "A read of a start that fails is asked again before it counts as damage (ADR 0198).",
        "broadsheet.runtime.rereading:Rereading.again",
        ("until = self._wait_end()", "raise error"),
        Tier.SERVICES,
    ),
    (
        "journal_listing_ended_by_the_end_of_the_outage",
        "A journal that pauses before it asks the store again looks for the outage after the pause.",
        "broadsheet.journal.fragments:FragmentStore.list_when_it_answers",
        ("(answered, asked)", "(self._answered, asked)"),
        Tier.CRASHES,
    ),
    (
        "journal_loss_looked_for_while_a_file_goes",
        "A loss is looked for again if a spool file that the store has was removed meanwhile.",
        "broadsheet.journal.broker:report",
        ("isinstance(error, FileNotFoundError) and looks_left", "False"),
        Tier.CRASHES,
    ),
    (
        "log_damage_before_a_whole_batch",
        "A last batch whose frames are all whole was not cut.",
        "broadsheet.wal.recovery:Recovery._verdicts",
        ("not self._is_whole and ", ""),
        Tier.CRASHES,
    ),
    (
        "log_truncation_in_a_torn_batch",
        "A start that cut a torn batch takes back the run inside which the batch had truncated.",
        "broadsheet.wal.stream_replay:StreamReplay._cut",
        (".batch >= each.batch", ".batch > each.batch"),
        Tier.CRASHES,
    ),
    (
        "log_lost_truncation_inside_a_run",
        "A run over the end that a row tells is not held: a truncation inside it was lost.",
        "broadsheet.wal.stream_replay:StreamReplay.row",
        ("elif lost_truncation:", "elif False:"),
        Tier.CRASHES,
    ),
    (
        "metastore_replace_shrank_the_set",
        "A member takes the place of another member.",
        "broadsheet.control.core.operation:_replace",
        ("if added is not None and added in sets.old:", "if False:"),
        Tier.MACHINES,
    ),
    (
        "metastore_start_ended_by_a_log_that_was_being_filled",
        "A start uses the room that is kept for relief, and waits for more.",
        "broadsheet.control.role:_memory",
        ("done=done, relief=True)\n\n    await made_durable(place)", "done=done)\n\n    place(lambda: None)"),
        Tier.SERVICES,
    ),
    (
        "metastore_stop_during_a_start",
        "A simulated stop cancels a start that is under way before it closes what the start uses.",
        "simulator.services:ServiceEpisode._stop",
        ("start.cancel()\n    await asyncio.wait([start])", "pass"),
        Tier.SERVICES,
    ),
    (
        "lifecycle_append_that_a_checkpoint_behind_it_does_not_cover",
        "A repair takes the last checkpoint for the end of appends whose records stand before it.",
        "broadsheet.journal.spool_repair:_is_told_whole",
        ("claims.end_before is None or claims.end_before > plan.end", "claims.end_before is None"),
        Tier.CRASHES,
    ),
    (
        "wire_window_of_messages_not_queued_yet",
        "A window is restored without the messages that were received and are not queued yet (wire.6).",
        "broadsheet.wire.stream:StreamEnd.grant",
        ("state.untaken_bytes", "self._queued_bytes"),
        Tier.SERVICES,
    ),
    (
        "wal_told_a_length_that_only_the_page_cache_had",
        "A length that only the page cache may have is synced, and told as durable.",
        "broadsheet.wal.segments:Segments._write_end",
        ("file.write_at(at, [content])", "pass"),
        Tier.SERVICES,
    ),
]

MUTANTS = [
    Mutant(
        name,
        guard,
        target,
        edited(*edit),
        workload=name.partition("_")[0] if not name.startswith("wal") else "keyspace",
        tier=tier,
        plans=REGRESSIONS,
        seen=SEEN_ELSE.get(name, SEEN),
    )
    for name, guard, target, edit, tier in FIXES
]
