"""Values: the bodies of some messages of one journal, in the bytes that were read. Source: pipelines.1."""

import numpy as np
import pyarrow as pa

from broadsheet.errors import TooLarge
from broadsheet.message.columns import Bytes, Int


class Values:
    """The bodies of some messages of one journal: body `i` is `raw[begins[i]:ends[i]]`."""

    def __init__(self, raw: Bytes, begins: Int, ends: Int) -> None:
        self.raw, self.begins, self.ends = raw, begins, ends

    def __len__(self) -> int:
        return len(self.begins)

    def at(self, rows: Int) -> "Values":
        """The bodies with these numbers."""
        return Values(self.raw, self.begins[rows], self.ends[rows])

    def joined(self, tail: int = 0) -> bytes:
        """The bodies back to back, each with the `tail` bytes that follow it in `raw`.

        Bodies that are neighbours in `raw` are copied as one slice: a batch of one producer is a few slices,
        and not thousands.
        """
        if not len(self):
            return b""
        ends = self.ends + tail
        breaks = np.flatnonzero(self.begins[1:] != ends[:-1]) + 1
        lows = self.begins[np.concatenate((np.zeros(1, np.int64), breaks))].tolist()
        highs = ends[np.concatenate((breaks - 1, np.array([len(ends) - 1])))].tolist()
        view = self.raw.data
        return b"".join([view[low:high] for low, high in zip(lows, highs, strict=True)])

    def binary(self) -> pa.Array:
        """The bodies as an Arrow column."""
        lengths = self.ends - self.begins
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] < 1 << 31:
            buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.joined())]
            return pa.Array.from_buffers(pa.binary(), len(self), buffers)
        raise TooLarge(
            f"{len(self)} bodies have {offsets[-1]} bytes together, and an Arrow batch holds less than 2 GiB"
        )
