"""A batch takes what fits to the last byte, and no more."""

import pytest

from broadsheet.wal.batch import Batch
from broadsheet.wal.format import BATCH_BYTES, FRAME_BYTES, ROW, Kind
from broadsheet.wal.pool import Lap


@pytest.mark.parametrize("length", range(1, 18))
def test_what_fits_is_taken_and_what_is_one_byte_longer_is_not(length: int) -> None:
    """Frames are padded. A batch that promised too much ended the process; one that promised less, rolled."""
    size = BATCH_BYTES + ROW.size + FRAME_BYTES + (length + 7) // 8 * 8
    for filled in (size - 1, size):
        batch = Batch(
            lap=1, use=Lap(0), at=0, filled=filled, bytes_max=1 << 20, sequence=1, boot=1, everyone=None
        )
        fits = batch.room_for(7, length, is_relief=False)
        assert fits == (filled == size)
        assert batch.take(7, (Kind.RUN, b"", (b"x" * length,), length)) == fits
