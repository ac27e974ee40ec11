"""Codecs: compress a fragment's content for the store and decompress it, in pieces and within bounds.

Lengths are bytes. Neither direction holds a whole fragment in memory: a decoder is fed with stored bytes as
they arrive, and yields its output piece by piece. A decoder does not trust stored bytes: its whole output is
bounded by the length in the fragment's name, and each call by one piece, because a few bytes may decompress
to very many (zstd packs 32,000:1; access.7). GZIP content may have many members, and snappy is the framing
format: Gazette writes both. Source: journals.25.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import cramjam
import zstandard

from broadsheet.base.types import Buffer
from broadsheet.errors import Corrupt
from broadsheet.journal.core.fragment import Codec

PIECE_BYTES: Final = 256 << 10
"""The most output of a decoder at a time."""
FED_BYTES_MIN: Final = 1 << 20
"""Stored bytes that a decoder must have before it goes on, except at their end. It is more than one piece of
output of any codec needs (a snappy chunk has up to 64 KiB, a zstd block 128 KiB)."""
WINDOW_BYTES_MAX: Final = 8 << 20
GZIP_LEVEL: Final = 6
ZSTANDARD_LEVEL: Final = 3
_GZIP_WBITS: Final = 31
_SNAPPY_HEADER: Final = b"\xff\x06\x00\x00sNaPpY"

DECODER_BYTES: Final[dict[Codec, int]] = {
    Codec.NONE: 2 * FED_BYTES_MIN,
    Codec.GZIP: 3 * FED_BYTES_MIN,
    Codec.ZSTANDARD: 2 * FED_BYTES_MIN + WINDOW_BYTES_MAX,
    Codec.SNAPPY: 3 * FED_BYTES_MIN,
}
"""The memory of a decoder, including its input and a piece of output."""


def compress(codec: Codec, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """A fragment's `pieces` as the store has them, compressed as it is iterated. Blocking: for a thread."""
    match codec:
        case Codec.NONE:
            yield from pieces
        case Codec.GZIP:
            gzip = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
            yield from (gzip.compress(piece) for piece in pieces)
            yield gzip.flush()
        case Codec.ZSTANDARD:
            zstd = zstandard.ZstdCompressor(level=ZSTANDARD_LEVEL).compressobj()
            yield from (zstd.compress(piece) for piece in pieces)
            yield zstd.flush()
        case Codec.SNAPPY:
            snappy = cramjam.snappy.Compressor()
            for piece in pieces:
                snappy.compress(bytes(piece))
                yield bytes(snappy.flush())
            yield bytes(snappy.finish())


class Fed:
    """The input of a fragment's decoder: stored bytes that were fetched and not yet taken."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._skip = 0  # Bytes of the first part that were taken.
        self.size = 0
        """Bytes that were fed and not yet taken."""
        self.is_ended = False
        """Whether all stored bytes were fed."""

    @property
    def is_hungry(self) -> bool:
        """Whether more bytes must be fed before the decoder may go on."""
        return not self.is_ended and self.size < FED_BYTES_MIN

    def feed(self, stored: bytes) -> None:
        """Add stored bytes; an empty `stored` marks the end."""
        if stored:
            self._parts.append(stored)
            self.size += len(stored)
        else:
            self.is_ended = True

    def read(self, most: int = -1) -> bytes:
        """Take at most `most` bytes of the decoder's input, or all if that is negative; empty at the end.

        Raises:
            Corrupt: the decoder used up `FED_BYTES_MIN` bytes without a piece of output; valid content
                never does.
        """
        if not self.size and not self.is_ended:
            raise Corrupt(f"{FED_BYTES_MIN} stored bytes make no content")
        found: list[bytes] = []
        left = self.size if most < 0 else min(most, self.size)
        self.size -= left
        while left:
            part = self._parts[0]
            taken = part[self._skip : self._skip + left]
            found.append(taken)
            left -= len(taken)
            self._skip += len(taken)
            if self._skip == len(part):
                self._parts.popleft()
                self._skip = 0
        return found[0] if len(found) == 1 else b"".join(found)


def decompress(codec: Codec, fed: Fed, *, length: int) -> Iterator[bytes]:
    """The content of a fragment's stored bytes in `fed`, in pieces. Blocking: use it in a thread.

    The caller feeds `fed` before each piece, as long as it is hungry.

    Args:
        length: the exact length of the whole content.

    Raises:
        Corrupt: the bytes are not in the codec's format, or the content has another length.
    """
    got = 0
    try:
        for piece in _DECODERS[codec](fed):
            got += len(piece)
            if got > length:
                raise Corrupt(f"{codec.value} fragment has more than the {length} bytes that its name says")
            yield piece
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, EOFError, ValueError) as error:
        raise Corrupt(f"{codec.value} fragment does not decompress: {error}") from error
    if got != length:
        raise Corrupt(f"{codec.value} fragment has {got} bytes, not the {length} that its name says")


def _plain(fed: Fed) -> Iterator[bytes]:
    while piece := fed.read(PIECE_BYTES):
        yield piece


def _gunzip(fed: Fed) -> Iterator[bytes]:
    """Gunzip member by member. The loop ends, because even an empty member uses up stored bytes."""
    left = b""
    while left or (left := fed.read(PIECE_BYTES)):
        member = zlib.decompressobj(_GZIP_WBITS)
        piece = b""
        while not member.eof:
            # After a full piece the decompressor may have more output without further input.
            if not left and len(piece) < PIECE_BYTES and not (left := fed.read(PIECE_BYTES)):
                raise EOFError("the last member is cut off")
            piece = member.decompress(left, PIECE_BYTES)
            left = member.unconsumed_tail
            yield piece  # An empty piece, too: the caller must see whether `fed` is hungry now.
        left = member.unused_data


def _unzstd(fed: Fed) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    source: Any = fed  # The reader calls nothing but `read`.
    with decoder.stream_reader(source, read_across_frames=True, read_size=64 << 10) as reader:
        # `read` would go on until its piece is full, however much input that takes; `read1` does not.
        while piece := reader.read1(PIECE_BYTES):
            yield piece


def _unsnappy(fed: Fed) -> Iterator[bytes]:
    """Decode snappy chunk by chunk, so that no declared length is trusted beyond a chunk's 64 KiB."""
    if fed.read(len(_SNAPPY_HEADER)) != _SNAPPY_HEADER:
        raise ValueError("no snappy stream identifier")
    while header := fed.read(4):
        if len(header) < 4:
            raise EOFError("a chunk header is cut off")
        left = int.from_bytes(header[1:], "little")
        if header[0] in (0x00, 0x01):
            if left > 2 * (64 << 10):
                raise ValueError(f"a chunk of {left} bytes: at most 64 KiB of content are allowed")
            chunk = fed.read(left)
            if len(chunk) < left:
                raise EOFError("a chunk is cut off")
            yield bytes(cramjam.snappy.decompress(_SNAPPY_HEADER + header + chunk))
        elif header[0] < 0x80:
            raise ValueError(f"chunk type {header[0]:#x} is reserved and may not be skipped")
        else:
            while left:
                skipped = fed.read(min(left, PIECE_BYTES))
                if not skipped:
                    raise EOFError("a chunk is cut off")
                left -= len(skipped)
                yield b""


_DECODERS: Final = {
    Codec.NONE: _plain,
    Codec.GZIP: _gunzip,
    Codec.ZSTANDARD: _unzstd,
    Codec.SNAPPY: _unsnappy,
}
