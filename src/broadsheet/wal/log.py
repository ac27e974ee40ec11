"""The log: many logical streams in one sequence of segments, one write and one sync for all appends of a turn.

Offsets count a stream's entries from 0; generations rise; bytes elsewhere.
CLOSED --open--> OPEN --close--> CLOSED; OPEN --a failed write or sync--> DEAD, for good: the process must end.
It does not read back: what was written is read once, by recovery. It does not retry a failed sync.
Source: DESIGN 3, `docs/protocols/wal.md`.
"""

from collections.abc import Callable, Sequence

from broadsheet.base.types import Buffer, Generation, LogStreamId, Offset
from broadsheet.ports import Disk, Random, Time
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.runtime.turn import Turn
from broadsheet.wal.config import WALConfig
from broadsheet.wal.record import LogStatus, Recovered

Done = Callable[[], None]
"""Called on the loop once everything that was appended with it is durable; never called if that does not happen."""


class Log:
    """One physical log. Made by `open`; every method but `open` and `close` is synchronous, on the loop."""

    is_same_boot: bool
    """Whether the kernel has not rebooted since the last process wrote to this log (journals.2)."""

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        config: WALConfig,
        time: Time,
        random: Random,
        turn: Turn,
        scope: Scope,
        crash: Crash,
    ) -> "Log":
        """Lock, recover and start a log, or make a new one.

        When it returns, all that `recovered` tells is durable, whatever the page cache said before.

        Args:
            directory: made where absent; holds nothing but this log.
            scope: its background tasks run there, and it is closed with it.
            crash: ends the process after a failed write or sync.

        Raises:
            ConfigError: locked by another process, foreign, or of a newer or unknown version. Nothing was changed.
            OSError: the disk failed. What was durable still is.
        """
        raise NotImplementedError

    def streams(self) -> list[LogStreamId]:
        """Every stream that was appended to and not dropped, sorted."""
        raise NotImplementedError

    def recovered(self, stream: LogStreamId) -> Recovered:
        """What the last start found of `stream`; an empty stream where there was none. Kept until `forget`."""
        raise NotImplementedError

    def forget(self, stream: LogStreamId) -> None:
        """Release the memory of what `recovered` tells of `stream`; its domain has read it."""
        raise NotImplementedError

    def append(
        self,
        stream: LogStreamId,
        parts: Sequence[Buffer],
        *,
        count: int = 1,
        generation: Generation = Generation(0),
        done: Done,
    ) -> Offset:
        """Add one record of `count` entries to this turn's batch.

        Args:
            parts: the payload, borrowed until `done` is called. It is checksummed now, and written uncopied.
            count: entries that the payload stands for; offsets advance by it. At least 1.
            generation: not below the stream's. (0 is taken as "the stream's own".)
            done: called on the loop when this record, and all before it in this log, are durable.

        Returns:
            The offset of its first entry. Dense: the stream's previous next offset.

        Raises:
            LogFull: no room. Nothing was written, and no offset was used.
            Throttled: too many bytes wait for the disk. Nothing was written.
            TooLarge: above `record_bytes_max`, or too many streams. Nothing was written.
            StreamQuarantined: see there. Nothing was written.
            LocalProtocolError: a generation below the stream's, or the log is closed or dead.
        """
        raise NotImplementedError

    def next_offset(self, stream: LogStreamId) -> Offset:
        """Where the next append to `stream` goes."""
        raise NotImplementedError

    def chain(self, stream: LogStreamId) -> int:
        """The chain crc of `stream` after its last record, durable or not."""
        raise NotImplementedError

    def truncate(self, stream: LogStreamId, from_offset: Offset, generation: Generation, done: Done) -> None:
        """Void every record from `from_offset` on, by a record that says so; the next append goes there.

        Args:
            from_offset: where a record begins, or the next offset.
            generation: greater than the stream's; it becomes the stream's.

        Raises:
            LocalProtocolError: inside a record, below the trimmed part, or not a greater generation.
            LogFull: no room. Nothing changed.
        """
        raise NotImplementedError

    def reset(
        self, stream: LogStreamId, next_offset: Offset, generation: Generation, done: Done, *, crc: int = 0
    ) -> None:
        """Void `stream` whole and begin it anew at `next_offset`, as after a repair or a snapshot.

        Ends quarantine and `tail_cut`.

        Args:
            generation: greater than the stream's where it has records.
            crc: the chain crc that the next run is seeded with.

        Raises:
            LogFull: no room. Nothing changed.
        """
        raise NotImplementedError

    def trim(self, stream: LogStreamId, below: Offset) -> None:
        """Give up every record that lies wholly below `below`: its domain holds it durably elsewhere.

        Stands in the next batch; until then a restart may bring them back.
        """
        raise NotImplementedError

    def drop(self, stream: LogStreamId) -> None:
        """Forget `stream` whole, with the next batch. The same id may then begin anew at offset 0."""
        raise NotImplementedError

    def settle(self, stream: LogStreamId) -> None:
        """Clear `tail_cut`, with the next batch: its domain has dealt with what may be missing."""
        raise NotImplementedError

    def on_flush_request(self, stream: LogStreamId, callback: Callable[[LogStreamId], None]) -> None:
        """Call `callback` when `stream` holds the oldest segment and room grows short.

        It should make what it can durable elsewhere and `trim`. Where it does not, its records are copied forward.
        """
        raise NotImplementedError

    def status(self) -> LogStatus:
        """The state of this log."""
        raise NotImplementedError

    async def close(self) -> None:
        """Write what is pending, wait until it is durable, and release the files. Idempotent."""
        raise NotImplementedError
