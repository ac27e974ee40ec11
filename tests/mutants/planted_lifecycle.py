"""Bugs of journals that are altered, trimmed, deleted and made again, where damage and restarts come between.

Most take out what was repaired when readers had found it by hand: the guards that hold where a loss was
accepted, a store was away, or a start was killed. The others are of the same kinds.
"""

from collections.abc import Callable
from typing import Any

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

TRIMMING = "broadsheet.journal.trimming:Trimming"
REPLICA = "broadsheet.journal.replica:Replica"
ACCEPTANCE = "broadsheet.journal.loss_acceptance"


def instead(new: Callable[..., Any]) -> Callable[[Any], Any]:
    """A replacement: another function."""
    return lambda _old: new


PLANTED: list[tuple[str, str, str, Callable[[Any], Any]]] = [
    (
        "retention_acts_behind_a_loss",
        "A retention acts although the key space may have lost a later one (ADR 0124).",
        "broadsheet.journal.trimming:is_retention_doubtful",
        instead(lambda _keyspace, _info: False),
    ),
    (
        "label_ends_the_rest",
        "Any alteration of a journal whose retention rests lets it act.",
        "broadsheet.journal.broker:put_altered",
        edited("if is_doubtful and not _says", "if False and not _says"),
    ),
    (
        "deletion_finished_behind_a_loss",
        "Behind an accepted loss of the key space a start finishes deletions that may have ended.",
        "broadsheet.cli.keyspace:without_deletions",
        instead(tuple),
    ),
    (
        "altered_spec_without_its_revision",
        "An alteration does not put the journal's create revision, so a salvage takes it for a creation.",
        "broadsheet.journal.broker:put_altered",
        edited("encode_spec(spec, created=info.create_revision)", "encode_spec(spec)"),
    ),
    (
        "sealed_stream_not_begun_anew",
        "A stream above its seal's generation is not begun anew though its record is damaged.",
        "broadsheet.journal.opening:begin_log",
        edited("seal.generation or log.is_quarantined(stream):", "seal.generation:"),
    ),
    (
        "missing_not_in_checkpoints",
        "A checkpoint names what the store lacks no more, though nobody has accepted its loss.",
        f"{REPLICA}.checkpoint",
        edited("self.missing if self.is_listed else self.awaited", "() if self.is_listed else self.awaited"),
    ),
    (
        "awaited_not_in_checkpoints",
        "A checkpoint names what only the store can have no more before the store has answered.",
        f"{REPLICA}.checkpoint",
        edited("self.missing if self.is_listed else self.awaited", "self.missing"),
    ),
    (
        "awaited_not_in_accepted_loss",
        "The checkpoint of an accepted loss does not name what only the store can have.",
        f"{ACCEPTANCE}:_checkpoint",
        edited("() if replica.is_listed else replica.awaited", "()"),
    ),
    (
        "missing_not_told",
        "The report of a loss does not tell what neither a spool file nor the store has.",
        f"{ACCEPTANCE}:look",
        edited("for each in replica.missing]", "for each in ()]"),
    ),
    (
        "cut_of_an_earlier_start_forgotten",
        "After a reboot a torn batch that an earlier start had found counts as torn by the power cut.",
        "broadsheet.journal.opening:stand",
        edited("elif found.is_cut_doubtful and", "elif context.log.is_same_boot and"),
    ),
    (
        "old_retention_goes_on",
        "A round of retention that was begun before an alteration removes what it had found.",
        f"{TRIMMING}._remove",
        edited("if not is_wanted():", "if False:"),
    ),
    (
        "unproven_told_as_trimmed",
        "What is missing, or not proven, is refused as if it had been trimmed.",
        "broadsheet.journal.committed_reads:read_chunk",
        edited("in (*replica.missing, *replica.unproven)", "in ()"),
    ),
    (
        "made_with_the_keys_of_a_former_one",
        "A journal that is made begins with the epoch and the registers of a former one of its name.",
        "broadsheet.journal.broker:Broker._put",
        edited("[Put(key, encode_spec(spec)), *left]", "[Put(key, encode_spec(spec))]"),
    ),
    (
        "named_fragments_trimmed",
        "A trim removes what the log still names.",
        f"{TRIMMING}._removable",
        edited("if (named := self._named_from()) is not None:", "if (named := None) is not None:"),
    ),
    (
        "trim_beyond_its_offset",
        "A trim and a retention remove a little more than they may.",
        f"{TRIMMING}._removable",
        edited(
            "end = replica.index.last_end(most)\n    if end is not None and",
            "end = replica.index.last_end(ByteOffset(most + 600))\n    if end is not None and",
        ),
    ),
    (
        "deletion_keeps_fragments",
        "A deletion removes no fragments from the store.",
        "broadsheet.journal.fragments:FragmentStore.delete_all",
        edited("for fragment in await self.list(journal):", "for fragment in ():"),
    ),
    (
        "alteration_of_memory_only",
        "An alteration acts and is told, and its key is not put.",
        "broadsheet.journal.broker:put_altered",
        edited("info.mod_revision)], [put])", "info.mod_revision)], [])"),
    ),
    (
        "keyspace_seal_removed_first",
        "The key space's seal is removed before the log that begins anew is durable.",
        "broadsheet.keyspace.local.role:begin_log",
        edited("await written", "pass"),
    ),
    (
        "retention_of_unknown_age",
        "A fragment counts as old a minute too early.",
        f"{TRIMMING}._by_age",
        edited("WallTime(now - age)", "WallTime(now - age + 60_000_000_000)"),
    ),
    (
        "sound_files_not_in_accepted_loss",
        "What an accepted loss leaves whole is not told by its checkpoint.",
        f"{ACCEPTANCE}:_checkpoint",
        edited("sorted([*awaited, *told]", "sorted([*awaited]"),
    ),
]

CAUGHT = (
    "altered_spec_without_its_revision",
    "retention_acts_behind_a_loss",
    "unproven_told_as_trimmed",
    "made_with_the_keys_of_a_former_one",
    "trim_beyond_its_offset",
    "retention_of_unknown_age",
    "deletion_keeps_fragments",
    "alteration_of_memory_only",
)
"""The others were not found in few seeds: the README says in how many."""

MUTANTS = [
    Mutant(f"lifecycle_{name}", guard, target, plant, workload="lifecycle", tier=Tier.CRASHES)
    for name, guard, target, plant in PLANTED
    if name in CAUGHT
]
