"""What the last batch, cut short, must not make forgotten of a stream that was damaged before it (W6)."""

from broadsheet.wal.format import FrameHeader, Kind, Row, RowFlag
from broadsheet.wal.stream_replay import FoundRun, StreamReplay, Suspect


def test_a_reset_that_was_cut_off_leaves_its_stream_quarantined() -> None:
    """Its row says that all is well again; the reset that would have made it so never happened."""
    replay = StreamReplay(1)
    replay.row(Row(1, 3, 5, 0, 7, RowFlag.QUARANTINED), 1)
    replay.row(Row(1, 5, 6, 1, 99, 0), 2)

    assert replay.judge(2, is_suspect=False).flags & RowFlag.QUARANTINED


def test_a_gap_below_a_reset_that_was_cut_off_is_damage() -> None:
    """Records 0 and 1 are lost: the row of the reset begins behind them, and must not be believed."""
    replay = StreamReplay(1)
    replay.row(Row(1, 0, 2, 0, 20, 0), 1)
    replay.run(FoundRun(2, 5, 0, 20, 50, 60, 1, 8192, 2))
    replay.row(Row(1, 0, 5, 0, 50, 0), 2)
    replay.row(Row(1, 50, 51, 1, 99, 0), 3)

    assert replay.judge(3, is_suspect=False).flags & RowFlag.QUARANTINED


def test_what_a_start_has_cut_is_void_also_where_no_run_leads_to_the_cut() -> None:
    """All before it is trimmed, and the walk begins with the torn batch: the stream was quarantined."""
    replay = StreamReplay(1)
    replay.run(FoundRun(11, 12, 0, 70, 80, 60, 1, 4096, 5))
    replay.row(Row(1, 11, 12, 0, 80, 0), 5)
    replay.row(Row(1, 11, 11, 0, 70, RowFlag.TAIL_CUT), 6, is_of_start=True)
    replay.row(Row(1, 11, 11, 0, 70, 0), 7)
    verdict = replay.judge(8, is_suspect=False)

    assert (verdict.point.next, verdict.held, verdict.flags) == (11, [], 0)


def reset_at(offset: int, batch: int) -> FrameHeader:
    return FrameHeader(Kind.RESET, 1, 1, 1, batch, 0, 1, offset, 1, 0, 0, 50, 0, 0)


def test_after_a_reset_the_stream_begins_where_it_says() -> None:
    """What lies before belongs to the life before: it is neither missing nor there."""
    replay = StreamReplay(1)
    replay.run(FoundRun(0, 2, 0, 0, 20, 60, 1, 4096, 1))
    replay.reset(reset_at(5, 2))
    verdict = replay.judge(3, is_suspect=False)

    assert (verdict.first, verdict.held, verdict.flags) == (5, [], 0)


def test_after_a_reset_nothing_of_the_life_before_is_a_suspect() -> None:
    """Its domain would take a damaged record of the old content for one of the new."""
    replay = StreamReplay(1)
    replay.run(FoundRun(0, 2, 0, 0, 20, 60, 1, 4096, 1))
    replay.damaged.append(Suspect(2, 4, 0, 1, b"old"))
    replay.reset(reset_at(0, 2))
    replay.row(Row(1, 0, 3, 1, 70, 0), 3)
    verdict = replay.judge(9, is_suspect=False)

    assert verdict.flags & RowFlag.QUARANTINED
    assert not verdict.suspects


def test_a_row_trims_nothing_where_the_runs_before_it_do_not_link() -> None:
    """That of a reset may be lost between them; what came before it may be all that there is."""
    linked, broken = StreamReplay(1), StreamReplay(1)
    for replay, seed in ((linked, 20), (broken, 99)):
        replay.run(FoundRun(0, 2, 0, 0, 20, 60, 1, 4096, 1))
        replay.row(Row(1, 0, 2, 0, 20, 0), 1)
        replay.run(FoundRun(2, 4, 0, seed, 40, 60, 1, 8192, 2))
        replay.row(Row(1, 2, 4, 0, 40, 0), 2)

    assert list(linked.held) == [2]
    assert list(broken.held) == [0, 2]


def test_a_truncation_of_what_was_never_seen_lets_its_row_trim_nothing() -> None:
    """The reset and the run before it are lost in the torn batch: the record below still counts."""
    replay = StreamReplay(1)
    replay.run(FoundRun(84, 85, 11, 20, 50, 60, 1, 4096, 1))
    replay.row(Row(1, 84, 85, 11, 50, 0), 1)
    replay.truncate(FrameHeader(Kind.TRUNCATE, 1, 1, 1, 2, 0, 1, 180, 14, 0, 0, 70, 70, 0))
    replay.row(Row(1, 177, 180, 14, 70, 0), 2)
    verdict = replay.judge(2, is_suspect=False)

    assert [(held.offset, held.end) for held in verdict.held] == [(84, 85)]
    assert verdict.flags == RowFlag.TAIL_CUT


def test_runs_behind_a_drop_that_was_cut_off_void_nothing_that_was_there() -> None:
    """The stream began anew in the torn batch: its last run is whole, its drop and first run are not."""
    replay = StreamReplay(1)
    replay.run(FoundRun(0, 5, 0, 0, 50, 60, 1, 4096, 1))
    replay.row(Row(1, 0, 5, 0, 50, 0), 1)
    replay.run(FoundRun(1, 2, 0, 71, 72, 60, 1, 9000, 2))
    replay.row(Row(1, 0, 2, 0, 72, 0), 2)
    verdict = replay.judge(2, is_suspect=False)

    assert [(held.offset, held.end) for held in verdict.held] == [(0, 5)]
    assert verdict.flags == RowFlag.TAIL_CUT


def test_what_was_trimmed_is_no_part_of_what_is_left() -> None:
    """The run behind it is lost; the one before it was given up, and must not be served in its place."""
    replay = StreamReplay(1)
    replay.run(FoundRun(0, 2, 0, 0, 20, 60, 1, 4096, 1))
    replay.row(Row(1, 0, 2, 0, 20, 0), 1)
    replay.row(Row(1, 2, 4, 0, 40, 0), 2)
    verdict = replay.judge(9, is_suspect=False)

    assert verdict.flags & RowFlag.QUARANTINED
    assert (verdict.first, verdict.held) == (2, [])


def test_what_stands_behind_the_end_of_a_quarantined_stream_is_not_held() -> None:
    """A truncation was lost: the runs of the branch that it cut went on behind the end that the row names."""
    replay = StreamReplay(1)
    replay.run(FoundRun(0, 2, 0, 0, 20, 60, 1, 4096, 1))
    replay.run(FoundRun(2, 4, 0, 20, 40, 60, 1, 8192, 2))
    replay.row(Row(1, 0, 3, 1, 99, 0), 4)
    verdict = replay.judge(5, is_suspect=False)

    assert verdict.flags & RowFlag.QUARANTINED
    assert [(held.offset, held.end) for held in verdict.held] == [(0, 2)]
    assert [held.offset for held in verdict.unreached] == [2]


def test_a_row_to_which_no_run_leads_voids_nothing() -> None:
    """No start has cut the stream there: a drop was lost, and what is held may be all that there is."""
    replay = StreamReplay(1)
    replay.run(FoundRun(0, 5, 0, 0, 50, 60, 1, 4096, 1))
    replay.row(Row(1, 0, 5, 0, 50, 0), 1)
    replay.row(Row(1, 0, 3, 0, 99, 0), 2)

    assert list(replay.held) == [0]


def test_a_stream_of_which_no_row_tells_begins_at_its_first_run() -> None:
    """Frames that are salvaged between damaged headers have no row: nothing of them would be served."""
    replay = StreamReplay(1)
    replay.run(FoundRun(5, 7, 0, 0, 20, 60, 1, 4096, 1))
    replay.run(FoundRun(7, 8, 0, 20, 40, 60, 1, 8192, 2))
    verdict = replay.judge(9, is_suspect=True)

    assert (verdict.first, [held.offset for held in verdict.held]) == (5, [5, 7])


def test_a_cut_has_the_generation_of_the_last_run_that_it_keeps() -> None:
    """The next append may carry no lower one: that would be an older author's."""
    replay = StreamReplay(1)
    replay.run(FoundRun(0, 2, 0, 0, 20, 60, 1, 4096, 1))
    replay.row(Row(1, 0, 2, 0, 20, 0), 1)
    replay.run(FoundRun(2, 4, 5, 20, 40, 60, 1, 8192, 2))
    replay.row(Row(1, 0, 6, 5, 60, 0), 2)
    verdict = replay.judge(2, is_suspect=False)

    assert verdict.flags == RowFlag.TAIL_CUT
    assert verdict.point == (4, 5, 40)


def test_a_cut_keeps_no_run_of_another_branch_where_the_stream_begins() -> None:
    """All before it was trimmed, so that only the seed tells whose it is: a reset was lost between them."""
    replay = StreamReplay(1)
    replay.row(Row(1, 2, 2, 0, 20, 0), 1)
    replay.run(FoundRun(2, 4, 0, 99, 40, 60, 1, 8192, 2))
    replay.row(Row(1, 2, 6, 0, 60, 0), 2)
    verdict = replay.judge(2, is_suspect=False)

    assert verdict.flags & RowFlag.QUARANTINED
    assert verdict.point == (6, 0, 60)


def test_a_start_that_cut_a_new_branch_holds_all_runs_of_the_old_one() -> None:
    """The torn batch held runs of a stream begun anew at the same offsets; its drop was lost with it."""
    replay = StreamReplay(1)
    for begin, seed, crc, batch in ((0, 0, 20, 1), (2, 20, 40, 1), (0, 71, 72, 2), (2, 72, 73, 2)):
        replay.run(FoundRun(begin, begin + 2, 0, seed, crc, 60, 1, 4096 * batch, batch))
    replay.row(Row(1, 0, 4, 0, 40, 0), 3)
    verdict = replay.judge(9, is_suspect=False)

    assert [held.crc for held in verdict.held] == [20, 40]
    assert verdict.flags == 0


def test_a_cut_is_dealt_with_also_where_the_stream_is_quarantined() -> None:
    """The suspects of that cut are told no more after a later one: their domain has looked at them."""
    replay = StreamReplay(1)
    replay.row(Row(1, 0, 2, 0, 20, RowFlag.TAIL_CUT | RowFlag.QUARANTINED), 1)
    assert replay.settled == 0
    replay.row(Row(1, 0, 2, 0, 20, RowFlag.QUARANTINED), 2)
    assert replay.settled == 2
