"""Planted bugs of the log: each removes one guard. A check that no planted bug can fail proves nothing."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from broadsheet.base.types import Buffer
from broadsheet.errors import BroadsheetError
from broadsheet.wal import copying, opening, recovery, scan, stream_replay, survey
from broadsheet.wal.batch import Batch, Encoded
from broadsheet.wal.extents import Extents
from broadsheet.wal.format import BatchHeader, FrameHeader
from broadsheet.wal.log import Log
from broadsheet.wal.pool import Pool
from broadsheet.wal.reclaimer import SegmentReclaimer
from broadsheet.wal.scan import Content, FoundFrame, batches
from broadsheet.wal.stream import Place
from broadsheet.wal.survey import Found
from simulator import logimage
from simulator.disk import SimDisk, SimFile
from tests.wal import histories, scenarios

Plant = Callable[[pytest.MonkeyPatch], None]


def lost_sync(patch: pytest.MonkeyPatch) -> None:
    """A batch is written and not synced."""

    async def persist(self: SimFile, at: int, parts: Sequence[Buffer]) -> None:
        self.write_at(at, parts)

    patch.setattr(SimFile, "persist", persist)


def ack_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Everyone is told before the disk has it."""
    persist = Log._persist

    async def early(self: Log, batch: Batch, encoded: Encoded) -> bool:
        done, batch.done = batch.done, []
        for call in done:
            call()
        return await persist(self, batch, encoded)

    patch.setattr(Log, "_persist", early)


def payload_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A frame with a whole header is taken as it is, torn or not."""
    read = scan.frames

    def trusting(*arguments: object, **options: object) -> Iterator[FoundFrame]:
        for frame in read(*arguments, **options):  # type: ignore[arg-type]
            yield frame._replace(is_payload_whole=True)

    patch.setattr(recovery, "frames", trusting)


def chain_removed(patch: pytest.MonkeyPatch) -> None:
    """The links of a stream's runs are not compared: offsets without a gap are enough."""
    walk = stream_replay._walk

    def unlinked(
        held: dict[int, stream_replay.FoundRun], first: int, start: stream_replay.Point
    ) -> tuple[stream_replay.Point, list[stream_replay.FoundRun]]:
        point, chain = walk(held, first, start)
        while chain and (after := held.get(chain[-1].end)) is not None:
            chain.append(after)
            point = stream_replay.Point(after.end, after.generation, after.crc)
        return point, chain

    patch.setattr(stream_replay, "_walk", unlinked)


def boot_frame_dropped(patch: pytest.MonkeyPatch) -> None:
    """A start writes no boot frame: its batches are like those of the process before."""
    start = Log._start

    async def silent(self: Log) -> None:
        self._boot = 1
        result = self._opened_result
        if result is None:
            await start(self)
            return
        batch = self._begin(result.last.lap, result.tail_at, result.last.batch + 1, is_full=True)
        self._queue.append(batch)
        self._last = batch
        self._reclaimer.begin()

    patch.setattr(Log, "_start", silent)


def stale_tail_kept(patch: pytest.MonkeyPatch) -> None:
    """Frames behind the last batch are taken where they fit the stream, whoever wrote them."""
    look = recovery.Recovery._look_behind

    def keep(self: recovery.Recovery, segment: Found, at: int) -> None:
        content = self._content(segment.file)
        data = content.read(0, content.size)
        last = self._last
        assert last is not None
        lap = last.lap

        def of_this_lap(header: FrameHeader) -> bool:
            return (header.log_id, header.lap) == (self._log_id, lap)

        for frame in scan.frames(data, at, len(data), of_this_lap, is_after_hole=True):
            found = self._replays.get(frame.header.stream)
            if frame.is_payload_whole and found is not None and segment.lap == lap:
                self._apply(frame, data, 0)
        look(self, segment, at)

    patch.setattr(recovery.Recovery, "_look_behind", keep)


def lap_ignored(patch: pytest.MonkeyPatch) -> None:
    """Batches of a former use of the segment count as if they were of this one."""
    look = survey.survey

    def all_laps(index: int, content: Content, name: str) -> Found:
        found = look(index, content, name)
        return found._replace(batches=array("Q", (header.at for header in batches(content))))

    walk = recovery.Recovery._walk

    def walked(self: recovery.Recovery, segment: Found, content: Content) -> int:
        base = min(header.batch for header in batches(content) if header.lap == segment.lap)
        number = {at: base + n for n, at in enumerate(segment.batches)}

        def read(content: Content, at: int) -> BatchHeader | None:
            header = scan.read_batch(content, at)
            return header and header._replace(lap=segment.lap, batch=number[at])

        patch.setattr(recovery, "read_batch", read)
        return walk(self, segment, content)

    apply = recovery.Recovery._apply

    def moved(self: recovery.Recovery, frame: FoundFrame, data: bytes, base: int) -> None:
        assert self._last is not None
        header = frame.header._replace(lap=self._last.lap, batch=self._last.batch)
        apply(self, frame._replace(header=header), data, base)

    patch.setattr(opening, "survey", all_laps)
    patch.setattr(recovery, "sound_runs", lambda *_: None)  # It would know them by their lap at once.
    patch.setattr(recovery, "of_batch", lambda batch: lambda header: header.log_id == batch.log_id)
    patch.setattr(recovery.Recovery, "_apply", moved)
    patch.setattr(recovery.Recovery, "_walk", walked)


def rewrite_on_recovery_skipped(patch: pytest.MonkeyPatch) -> None:
    """Recovery believes the page cache."""
    patch.setattr(opening, "_rewrite", lambda *_: None)


def released_early(patch: pytest.MonkeyPatch) -> None:
    """What a copy or a truncation frees is free before the copy or the truncation is durable."""
    encode = Batch.encode

    def early(self: Batch, *, log_id: int, durable: int, chain: int) -> Encoded:
        true = self.oldest
        if self.releases:
            self.oldest = self.lap
        encoded = encode(self, log_id=log_id, durable=durable, chain=chain)
        self.oldest = true  # The process knows better than what it has written.
        return encoded

    patch.setattr(Batch, "encode", early)


def freed_before_told(patch: pytest.MonkeyPatch) -> None:
    """A batch frees what only a later batch says was trimmed."""

    def seal(self: Log, batch: Batch) -> None:
        if not batch.is_sealed:
            batch.seal(self.states, self._table, changed=self._changed, oldest=self._oldest)
        batch.oldest = self._oldest

    patch.setattr(Log, "_seal", seal)


def directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A new segment's name is not made durable."""
    patch.setattr(SimDisk, "sync_dir", lambda *_: None)


def copies_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A segment is freed although a stream still pins it."""

    def forget(self: Log, place: Place, header: FrameHeader, _: bytes) -> bool:
        batch = self._place(header.stream, 0, is_relief=True)
        old = self.states[header.stream].move(place, batch.lap, 0, 0)
        if old is not None:
            batch.releases.append(old)
            batch.use.pin(old.length)
        self._ask()
        return True

    patch.setattr(Log, "place_copy", forget)


def never_vouched(patch: pytest.MonkeyPatch) -> None:
    """An idle log leaves its last batch alone."""
    patch.setattr(Log, "_vouch", lambda _: None)


def reserve_open(patch: pytest.MonkeyPatch) -> None:
    """Appends take the rest of a segment that relief has moved the head into."""
    patch.setattr(Pool, "may_append", lambda _: True)


def asked_once(patch: pytest.MonkeyPatch) -> None:
    """A flush that was asked for is not asked for again."""
    request = SegmentReclaimer._request

    def once(self: SegmentReclaimer, lap: int) -> None:
        if not self._asked_count:
            request(self, lap)

    patch.setattr(SegmentReclaimer, "_request", once)


def set_aside_skipped(patch: pytest.MonkeyPatch) -> None:
    """What is damaged is unpinned, and its bytes are not kept."""
    patch.setattr(copying, "set_aside", lambda *_: [])


def damage_pins(patch: pytest.MonkeyPatch) -> None:
    """What is damaged pins its segment for ever."""
    patch.setattr(Log, "lose", lambda *_: None)


def shortness_ignored(patch: pytest.MonkeyPatch) -> None:
    """A segment that is shorter than it was counts as one that was never written further."""
    for module in (recovery, opening, logimage):
        patch.setattr(module, "shorter", lambda *_: [])


def extents_not_raised(patch: pytest.MonkeyPatch) -> None:
    """Nobody writes down how far a segment is filled while the log is open."""
    patch.setattr(Extents, "raise_to", lambda *_: None)


PLANTED: dict[str, tuple[Plant, str]] = {
    "lost_sync": (lost_sync, "appends"),
    "ack_before_sync": (ack_before_sync, "appends"),
    "payload_not_checked": (payload_not_checked, "appends"),
    "released_early": (released_early, "copying"),
    "freed_before_told": (freed_before_told, "trim_while_a_batch_waits"),
    "directory_not_synced": (directory_not_synced, "appends"),
    "stale_tail_kept": (stale_tail_kept, "torn_tail_and_the_same_bytes_again"),
    "lap_ignored": (lap_ignored, "frames_of_another_lap_behind_the_head"),
    "rewrite_on_recovery_skipped": (rewrite_on_recovery_skipped, "sync_fails_and_the_page_cache_lies"),
    "chain_removed": (chain_removed, "lost_batch_with_a_truncation"),
    "boot_frame_dropped": (boot_frame_dropped, "stale_sectors_of_another_boot"),
    "copies_forgotten": (copies_forgotten, "pinned_copies_forward"),
    "never_vouched": (never_vouched, "damage_after_a_rest"),
    "reserve_open": (reserve_open, "relief_of_a_full_log"),
    "asked_once": (asked_once, "flush_that_is_not_made_at_once"),
    "set_aside_skipped": (set_aside_skipped, "damage_found_while_copying"),
    "damage_pins": (damage_pins, "damage_found_while_copying"),
    "shortness_ignored": (shortness_ignored, "head_made_shorter"),
    "extents_not_raised": (extents_not_raised, "head_made_shorter"),
}
"""Each with what catches it: a history of `histories.MIXES`, by its crash states, or one of `scenarios`."""

ATOMS_MAX = 6


@contextmanager
def planted(name: str) -> Iterator[str]:
    """Plant a bug; the name of what catches it."""
    plant, catcher = PLANTED[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        yield catcher


def caught(name: str) -> str | None:
    """How a planted bug shows; None where nothing notices it."""
    with planted(name) as catcher:
        return look(catcher)


def look(catcher: str) -> str | None:
    """What a history or scenario finds wrong, in a few hundred crash states at most."""
    if catcher in histories.MIXES:
        wrong = histories.search(catcher, atoms_max=ATOMS_MAX)[1]
        return wrong[0] if wrong else None
    try:
        return scenarios.run(getattr(scenarios, catcher))
    except (AssertionError, BroadsheetError) as error:
        return f"the log itself noticed: {error!r}"
