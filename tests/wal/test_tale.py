"""What the last batch, cut short, must not make forgotten of a stream that was damaged before it (W6)."""

from broadsheet.wal.format import Row, RowFlag
from broadsheet.wal.tale import Held, Tale


def test_a_reset_that_was_cut_off_leaves_its_stream_quarantined() -> None:
    """Its row says that all is well again; the reset that would have made it so never happened."""
    tale = Tale(1)
    tale.row(Row(1, 3, 5, 0, 7, RowFlag.QUARANTINED), 1)
    tale.row(Row(1, 5, 6, 1, 99, 0), 2)

    assert tale.judge(2, is_suspect=False).flags & RowFlag.QUARANTINED


def test_a_gap_below_a_reset_that_was_cut_off_is_damage() -> None:
    """Records 0 and 1 are lost: the row of the reset begins behind them, and must not be believed."""
    tale = Tale(1)
    tale.row(Row(1, 0, 2, 0, 20, 0), 1)
    tale.run(Held(2, 5, 0, 20, 50, 60, 1, 8192, 2))
    tale.row(Row(1, 0, 5, 0, 50, 0), 2)
    tale.row(Row(1, 50, 51, 1, 99, 0), 3)

    assert tale.judge(3, is_suspect=False).flags & RowFlag.QUARANTINED
