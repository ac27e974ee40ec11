"""Bugs that simulation had found: each takes the fix out, and the plan in `tests/regressions` must see it.

A stored plan passes whatever the code does once its faults come at other places than they did: then it proves
nothing any more, and `find` stores another one.
"""

from pathlib import Path

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

REGRESSIONS = Path(__file__).parents[1] / "regressions"

UNPROVED = {
    "append_refused_after_a_lost_answer": "its plan finds nothing with the fix out",
    "append_refused_stream_evaluated_again": "nor do 480 seeds; a test of `tests/journal/core` does",
    "append_unknown_though_not_sent": "nor do 40 seeds; the fix has two halves, of which one was taken out",
    "wal_told_a_length_that_only_the_page_cache_had": "its plan finds nothing with the fix out",
}
"""Of these it is known only that their plans pass."""
SEEN = ("Violation", "Corrupt")
FIXES = [
    (
        "append_reads_refused_though_the_store_answers",
        "A reader waits until a store that was down is asked again by its own clock.",
        "broadsheet.journal.committed_reads:_listed",
        ("if not replica.is_listed:", "if False:"),
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
        "metastore_replace_shrank_the_set",
        "A member takes the place of another member.",
        "broadsheet.control.core.operation:_replace",
        ("if added is not None and added in sets.old:", "if False:"),
        Tier.MACHINES,
    ),
]

MUTANTS = [
    Mutant(
        name,
        guard,
        target,
        edited(*edit),
        workload=name.partition("_")[0],
        tier=tier,
        plans=REGRESSIONS,
        seen=("TimeoutError",) if tier is Tier.CRASHES else SEEN,
    )
    for name, guard, target, edit, tier in FIXES
]
