"""Config: the settings of the journals role. Units are in the names: bytes, or nanoseconds for durations."""

import msgspec

from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.journal.core.append_admission import Limits
from broadsheet.wal.config import WALConfig

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
CACHE_BYTES_MIN = 16 * MIB
RUN_BYTES_MAX = MIB
"""Bytes of one run, at most: it is hashed on the loop."""
JOINED_FRAMES_BYTES_MAX = 256 * KIB
"""Bytes of frames that are appended as one run, at most."""

RECORD_HEAD_BYTES_MAX = 12 * KIB
"""The largest log record without its content: a proposal with the largest registers."""
CLOSED_RECORD_BYTES = 64
"""Room in a checkpoint for each closed fragment that it names; one takes at most 55."""
CLOSED_MIN = 64
"""Closed fragments of one journal that may wait for their store, however small the log's records are."""


class JournalsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section `journals` of the configuration."""

    store: str = ""
    """URL of the fragment store of journals that name none; empty: `fragments/` in the data directory.
    Another URL moves nothing, and is refused while journals name none: see `journals.stores_before`."""
    stores_before: tuple[str, ...] = ()
    """Former values of `journals.store`, whose content was copied into the present store: without them a node
    does not start with another one (`docs/operations/running.md`)."""
    stores: tuple[str, ...] = ()
    """Other fragment stores that a journal may name; any other URL is refused (access.7)."""
    inline_bytes_max: int = 64 * KIB
    """Appends up to this go through the log, longer ones through the synced spool file (journals.14)."""
    checkpoint_bytes: int = 32 * MIB
    """After this many log bytes of one journal its spool is synced and its log stream trimmed."""
    used_percent_max: int = 85
    """Appends are refused when more of the disk than this is used and less than `free_bytes_enough` is free;
    reads and recovery go on (journals.20). 100: only `free_bytes_min` counts."""
    free_bytes_enough: int = 4 * GIB
    """With this much free a disk is not full, whatever the percentage; the log may grow to this size."""
    free_bytes_min: int = 256 * MIB
    """Appends are refused when less than this is free, whatever the percentage."""
    free_check_interval: Duration = Duration(500 * MILLISECOND)
    """Pause between two looks at the free space of the disk."""
    upload_retry_min: Duration = Duration(1 * SECOND)
    """Pause after a failed upload; doubles up to `upload_retry_max`."""
    upload_retry_max: Duration = Duration(60 * SECOND)
    """The longest pause between two tries of an upload."""
    staged_count_max: int = 256
    """Streaming appends that may be staged at a time, of all journals."""
    staged_memory_bytes: int = 256 * KIB
    """Content of one streaming append up to this length is staged in memory, longer content in a file."""
    staged_bytes_max: int = 4 * GIB
    """Staged content of all streaming appends at a time."""
    uploads_max: int = 2
    """Fragments that are uploaded to one store at a time."""
    closed_fragments_max: int = 65_536
    """Closed fragments of one journal that may wait for their store. Content that would close another one is
    refused until some are stored. Never more than one record of the log can name."""
    spool_files_max: int = 512
    """Idle spool files that stay open; never more than a quarter of the descriptors of the process."""
    descriptor_wait: Duration = Duration(3 * SECOND)
    """How long an append or a read waits for a free descriptor. Then it is refused: nothing was done."""
    spool_cached_bytes: int = 64 * MIB
    """How many last bytes of a spool file stay in the page cache; synced bytes before them may leave it
    (ADR 0145). A fragment of the usual length stays whole."""
    removal_wait: Duration = Duration(5 * SECOND)
    """How long a deletion, or an accepted loss, waits for a store that does not answer. Then it returns; a
    deletion removes the content when the store answers."""
    openings_max: int = 32
    """Journals that are recovered at a time."""
    opening_wait: Duration = Duration(10 * SECOND)
    """How long a request waits for a journal that is being opened. Then it is refused: nothing was done."""
    listing_wait: Duration = Duration(5 * SECOND)
    """How long an opening waits for the store's listing. Then it goes on without it (journals.20)."""
    read_bytes_max: int = 256 * KIB
    """The longest chunk that is sent to a reader."""
    cache_bytes_max: int = 128 * MIB
    """Memory for stored fragments in all: blocks that are kept or being fetched, and decoders."""
    index_producers_max: int = 1_000_000
    """Producers that the producer indexes of all journals hold in memory together, some 300 bytes each. An
    index at rest gives its producers back when others need the room, and reads them again."""
    journals_max: int = 10_000
    """How many journals this node may have."""
    limits: Limits = Limits()
    """Bounds of one journal's pipeline."""
    wal: WALConfig = WALConfig()
    """The journals role's log. With segments below 4 MiB a run of appends is at most a quarter of one."""

    def __post_init__(self) -> None:
        """Refuse settings of section `journals` that contradict each other."""
        if not 1 <= self.inline_bytes_max <= 1 * MIB:
            raise ValueError(f"journals.inline_bytes_max must be in 1..1048576, not {self.inline_bytes_max}")
        if not 4 * KIB <= self.read_bytes_max <= 1 * MIB:
            raise ValueError(f"journals.read_bytes_max must be in 4096..1048576, not {self.read_bytes_max}")
        if not 1 <= self.used_percent_max <= 100:
            raise ValueError(f"journals.used_percent_max must be in 1..100, not {self.used_percent_max}")
        if self.cache_bytes_max < CACHE_BYTES_MIN:
            raise ValueError(
                f"journals.cache_bytes_max must be at least {CACHE_BYTES_MIN}, which one decoder and a block "
                f"take, not {self.cache_bytes_max}"
            )
        for name in (
            "staged_count_max",
            "staged_memory_bytes",
            "staged_bytes_max",
            "uploads_max",
            "closed_fragments_max",
            "openings_max",
            "spool_files_max",
            "spool_cached_bytes",
            "index_producers_max",
            "journals_max",
            "checkpoint_bytes",
            "free_check_interval",
            "descriptor_wait",
            "removal_wait",
            "opening_wait",
            "listing_wait",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"journals.{name} must be at least 1, not {getattr(self, name)}")
        if not 1 <= self.upload_retry_min <= self.upload_retry_max:
            raise ValueError(
                "journals: 1 <= upload_retry_min <= upload_retry_max does not hold: "
                f"{self.upload_retry_min}, {self.upload_retry_max} ns"
            )

    @property
    def run_bytes_max(self) -> int:
        """The most content of one run: it is hashed on the loop, and it must fit into one log record."""
        return min(RUN_BYTES_MAX, self._record_bytes)

    @property
    def joined_bytes_max(self) -> int:
        """The most content of runs that are appended as one: idle pipeline and log take it (ADR 0196)."""
        room = max(0, self.wal.pending_bytes_max - RECORD_HEAD_BYTES_MAX)
        return min(JOINED_FRAMES_BYTES_MAX, self.run_bytes_max, self.limits.pending_bytes_max, room)

    @property
    def closed_max(self) -> int:
        """Closed fragments of one journal that may wait: a checkpoint names each, in one log record."""
        return max(CLOSED_MIN, min(self.closed_fragments_max, self._record_bytes // CLOSED_RECORD_BYTES))

    @property
    def _record_bytes(self) -> int:
        return min(self.wal.record_bytes_max, self.wal.segment_bytes // 4) - RECORD_HEAD_BYTES_MAX
