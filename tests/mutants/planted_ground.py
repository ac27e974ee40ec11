"""Bugs planted in log, key space, journals and sink for what 44 bugs planted blind had shown to be missing.

A trim and a reset in one batch that is then torn; watchers that are late; starts that are killed, or cut by
the power, on a damaged disk. Each escaped before the workload was changed.
"""

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

LOG = "broadsheet.wal.log:Log"
KEYSPACE = "broadsheet.keyspace.local.keyspace:LocalKeyspace"

PLANTED = [
    (
        "log_trim_hidden_by_a_reset",
        "A batch frees a segment although a reset or drop in it hides the trim from its rows.",
        f"{LOG}._seal",
        ("not batch.hides_trims and ", ""),
        Tier.CRASHES,
    ),
    (
        "keyspace_watch_goes_on_at_the_present",
        "A watcher goes on behind what is shown when it asks again, and not behind its reload.",
        f"{KEYSPACE}.watch",
        ("cursor = Revision(update.revision + 1)", "cursor = Revision(self.revision + 1)"),
        Tier.SERVICES,
    ),
    (
        "keyspace_kill_taken_for_a_power_cut",
        "A torn last batch is taken for unanswered although the kernel has not rebooted.",
        "simulator.workloads.keyspace_crashes:open_keyspace",
        ("if found.is_cut_doubtful:", "if False:"),
        Tier.CRASHES,
    ),
    (
        "journal_read_beyond_the_committed_end",
        "A read ends where the spool does, which holds appends on their way (journals.7).",
        "simulator.workloads.journal:read",
        ("until = min(stop, replica.end)", "until = min(stop, replica.spool.end)"),
        Tier.CRASHES,
    ),
]

MUTANTS = [
    Mutant(name, guard, target, edited(*edit), workload=name.partition("_")[0], tier=tier)
    for name, guard, target, edit, tier in PLANTED
]
