"""Bugs planted in log, journals and key space that only a crash, damage or a full disk brings out.

Each is an edit of a line or two. The first ones stand for what the simulator had been blind to: bytes written
during a flush, resets in a torn batch, what is set aside while the power goes, a full disk with damage,
attempts behind a checkpoint. The others were written when all those were caught (README).
"""

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

SPOOLS = "broadsheet.journal.spool_disk:SpoolHandle"
HOUSEKEEPING = "broadsheet.journal.housekeeping:Housekeeping"
REPLICA = "broadsheet.journal.replica:Replica"
SEALING = "broadsheet.journal.set_aside"
REPLAY = "broadsheet.wal.stream_replay:StreamReplay"
OPENING = "broadsheet.wal.opening"

JOURNAL = [
    (
        "written_in_a_flush_is_synced",
        "What is written while a spool file is flushed counts as synced.",
        f"{SPOOLS}.flush",
        ("self._synced = max(self._synced, written)", "self._synced = self._written"),
    ),
    (
        "open_file_synced_for_good",
        "A spool file that was open when a checkpoint synced it counts as synced once it is closed.",
        f"{HOUSEKEEPING}._checkpoint",
        ("for spool in closed:", "for spool in files:"),
    ),
    (
        "checkpoint_of_now",
        "A checkpoint tells of the spool as it stands after the flush, and not of what was flushed.",
        f"{HOUSEKEEPING}._checkpoint",
        ("[encode_checkpoint(checkpoint)]", "[encode_checkpoint(replica.checkpoint())]"),
    ),
    (
        "set_aside_unsynced",
        "What a start sets aside is cut off before its copy is durable.",
        f"{SEALING}:copy_out",
        ("target.sync()", "pass"),
    ),
    (
        "cut_before_it_is_copied",
        "A start cuts off what it sets aside, and keeps nothing of it.",
        f"{SEALING}:set_aside",
        ("made.append(copy_out(disk, directory, file, begin=begin, skip=length, size=size))", "pass"),
    ),
    (
        "repaired_bytes_unsynced",
        "A repair proves what a spool file has, and does not make it durable.",
        "broadsheet.journal.opening:_sync",
        ("await context.disk.run(lambda: sync_files(context.disk, names))", "pass"),
    ),
    (
        "tail_cut_settled_unasked",
        "After a kill a torn batch is settled as after a power cut, and nothing is repaired.",
        "broadsheet.journal.opening:stand",
        (
            "if not found.is_quarantined and not found.tail_cut:",
            "if not found.is_quarantined:",
        ),
    ),
    (
        "committed_attempts_in_checkpoint",
        "A checkpoint tells the committed attempts, and not those of all that it counts.",
        f"{REPLICA}.checkpoint",
        ("attempts=self.log_attempts.remembered(),", "attempts=self.pipeline.attempts.remembered(),"),
    ),
    (
        "attempts_forgotten_at_a_checkpoint",
        "A checkpoint says from where attempts are known, and tells none.",
        f"{REPLICA}.checkpoint",
        ("attempts=self.log_attempts.remembered(),", "attempts=(),"),
    ),
    (
        "committed_registers_in_checkpoint",
        "A checkpoint tells the committed registers, and not those behind all that it counts.",
        f"{REPLICA}.checkpoint",
        ("registers=self.log_registers,", "registers=self.pipeline.committed_registers,"),
    ),
]
LOG = [
    (
        "lost_reset_trims",
        "What a row no longer counts is given up, though the reset that it tells of may be lost.",
        f"{REPLAY}.row",
        ("if is_explained:", "if True:"),
    ),
    (
        "torn_reset_has_begun",
        "A torn batch with a reset has begun the stream anew.",
        f"{REPLAY}._touch",
        ("if self.touched != batch:", "if self.touched != batch or not self.held:"),
    ),
    (
        "part_of_what_is_set_aside_stays",
        "A full disk leaves a part of what is set aside, and it is taken for the whole.",
        f"{OPENING}:_holds",
        ("file.size() == len(content) and file.read_at(0, len(content)) == content", "file.size() > 0"),
    ),
    (
        "refused_is_not_kept",
        "What could not be set aside on a full disk may be written over.",
        f"{OPENING}:_open_locked",
        ("opened.kept = damage", "opened.kept = []"),
    ),
    (
        "set_aside_not_synced",
        "What is set aside is not made durable.",
        f"{OPENING}:set_aside",
        ("file.sync()", "pass"),
    ),
]
KEYSPACE = [
    (
        "seal_gone_before_the_log_has_it",
        "The key space's seal is removed before the log that begins anew is durable.",
        "broadsheet.keyspace.local.role:begin_log",
        ("await written", "pass"),
    ),
    (
        "revisions_given_again",
        "After a kill revisions go on where the sound records end, though a torn batch may have had more.",
        "broadsheet.keyspace.local.role:_above_the_cut",
        ("Revision(sound + count + REVISION_LEAP)", "Revision(sound)"),
    ),
]
FURTHER_JOURNAL = [
    (
        "registers_not_put_at_the_start",
        "A start leaves the registers key as it is.",
        "broadsheet.journal.opening:_begin_epoch",
        ("if registers is not None:", "if registers is None:"),
    ),
    (
        "record_at_the_checkpoints_end_again",
        "The append that ends where a checkpoint does is counted again.",
        "broadsheet.journal.recovered_state:replay",
        ("record.end <= base.end", "record.end < base.end"),
    ),
    (
        "stream_placed_unsynced",
        "A streaming append into a file that was synced once is not synced.",
        "broadsheet.journal.streamed_append:StreamedAppend._place",
        ("await spool.file.flush()", "spool.is_dir_synced or await spool.file.flush()"),
    ),
    (
        "refused_bytes_stay",
        "What the log refused stays in the spool.",
        f"{REPLICA}._refuse",
        ("self.spool.restore(saved)", "pass"),
    ),
    (
        "seal_gone_before_the_log",
        "A journal's seal is removed before the log that begins anew is durable.",
        "broadsheet.journal.opening:begin_log",
        ("await written", "pass"),
    ),
    (
        "repair_is_content",
        "A repair is whole although files have more than it proves.",
        "broadsheet.journal.recovered_state:repair",
        ("last_byte <= trial.end\n", "True\n"),
    ),
    (
        "any_registers_are_put",
        "A repair takes appends whose registers were never put.",
        "broadsheet.journal.spool_repair:is_put",
        ("mine.version <= put.version and mine.at <= put.at", "True"),
    ),
    (
        "flipped_version_is_put",
        "Registers that were never put are taken for older ones if a bit of their version is flipped.",
        "broadsheet.journal.spool_repair:is_put",
        ("mine.version <= put.version and mine.at <= put.at", "mine.version <= put.version"),
    ),
    (
        "wrong_bits_unbounded",
        "A repair takes any sum for the one that was told.",
        "broadsheet.journal.spool_repair:agrees",
        ("bits_wrong(found, named) <= WRONG_BITS_MAX", "bits_wrong(found, named) <= 100"),
    ),
    (
        "attempt_ends_where_it_begins",
        "An attempt is remembered with its begin for its end.",
        f"{REPLICA}._write",
        (
            "Remembered(effect.attempt, effect.begin, effect.end)",
            "Remembered(effect.attempt, effect.begin, effect.begin)",
        ),
    ),
    (
        "removed_without_a_checkpoint",
        "A stored spool file goes at once, though the log names it.",
        f"{HOUSEKEEPING}._upload",
        ("self._stored[spool.name] = None", "self._spawn(self._remove([spool.name]), 'remove')"),
    ),
]
FURTHER_LOG = [
    (
        "trimmed_records_are_back",
        "A start forgets up to where a stream is trimmed.",
        "broadsheet.wal.stream:StreamState.restored",
        ("state.first, state.next = verdict.first, point.next", "state.next = point.next"),
    ),
    (
        "oldest_before_durable",
        "A segment is past as soon as nothing pins it, also where the last durable batch needs it.",
        "broadsheet.wal.log:Log._advance_oldest",
        ("self.pool.past(self.durable_lap)", "self.pool.past(self.pool.head)"),
    ),
    (
        "any_copy_counts",
        "A copy takes the place of another branch's run.",
        f"{REPLAY}.copy",
        ("if known is None or known.crc == held.crc:", "if True:"),
    ),
    (
        "settled_for_a_while",
        "That a cut was dealt with is not written down.",
        "broadsheet.wal.log:Log.settle",
        ("batch.touch(stream)", "pass"),
    ),
]

PLANTED = [
    Mutant(f"{prefix}_{name}", guard, target, edited(*edit), workload=prefix, tier=Tier.CRASHES)
    for prefix, planted in (
        ("journal", JOURNAL),
        ("journal", FURTHER_JOURNAL),
        ("log", LOG),
        ("log", FURTHER_LOG),
        ("keyspace", KEYSPACE),
    )
    for name, guard, target, edit in planted
]

CAUGHT = (
    "journal_written_in_a_flush_is_synced",
    "journal_checkpoint_of_now",
    "journal_committed_attempts_in_checkpoint",
    "journal_attempts_forgotten_at_a_checkpoint",
    "journal_committed_registers_in_checkpoint",
    "journal_registers_not_put_at_the_start",
    "journal_record_at_the_checkpoints_end_again",
    "journal_stream_placed_unsynced",
    "journal_attempt_ends_where_it_begins",
    "journal_refused_bytes_stay",
    "journal_open_file_synced_for_good",
    "journal_tail_cut_settled_unasked",
    "journal_any_registers_are_put",
)
"""The others were not found in ten seconds, or were not tried: the README says which."""

MUTANTS = [mutant for mutant in PLANTED if mutant.name in CAUGHT]
