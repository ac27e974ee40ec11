"""Codecs: a fragment's content to stored bytes and back, in pieces and within bounds.

Lengths are bytes. Neither way holds a whole fragment: a decoder is fed with stored bytes as they come, and
gives its output piece by piece. Reading trusts nothing: the output of a decoder is bounded by the length that
the fragment's name declares, whatever the stored bytes claim, and each call by a piece (access.7; zstd
packs 32,000:1). GZIP content may have many members and snappy is the framing format: Gazette writes both.
Source: journals.25.
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
"""The most that a decoder gives at a time."""
FED_BYTES_MIN: Final = 1 << 20
"""What a decoder must have at hand of stored bytes that are not at their end: more than a piece of any codec
takes (a snappy chunk has up to 64 KiB, a zstd block 128 KiB)."""
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
"""What a decoder may hold, its input and a piece of output included."""


def compress(codec: Codec, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The stored form of `pieces`, as they come. Blocking: off the loop."""
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
    """Stored bytes as they come, for a decoder that takes them."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._skip = 0  # Taken of the first part.
        self.size = 0
        """Bytes at hand."""
        self.is_ended = False
        """Whether nothing more will come."""

    @property
    def is_hungry(self) -> bool:
        """Whether the decoder must not go on before more has come."""
        return not self.is_ended and self.size < FED_BYTES_MIN

    def feed(self, stored: bytes) -> None:
        """More has come; nothing says that this was all."""
        if stored:
            self._parts.append(stored)
            self.size += len(stored)
        else:
            self.is_ended = True

    def read(self, most: int = -1) -> bytes:
        """Take what is at hand, `most` bytes where that is not negative; nothing at the end.

        Raises:
            Corrupt: more is wanted than a piece of output can need.
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
    """The content of what is fed, in pieces; feed it before each while it is hungry. Blocking: off the loop.

    Args:
        length: what the content must come to, exactly.

    Raises:
        Corrupt: it is not in the codec's format, or comes to more or less.
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
    """Member after member; an empty one costs its own stored bytes, so the loop ends."""
    left = b""
    while left or (left := fed.read(PIECE_BYTES)):
        member = zlib.decompressobj(_GZIP_WBITS)
        piece = b""
        while not member.eof:
            # After a full piece it may have more without any input.
            if not left and len(piece) < PIECE_BYTES and not (left := fed.read(PIECE_BYTES)):
                raise EOFError("the last member is cut off")
            piece = member.decompress(left, PIECE_BYTES)
            left = member.unconsumed_tail
            yield piece  # Also an empty one: whoever asks looks again whether we are hungry.
        left = member.unused_data


def _unzstd(fed: Fed) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    source: Any = fed  # It reads only.
    with decoder.stream_reader(source, read_across_frames=True, read_size=64 << 10) as reader:
        # Not `read`: that fills its piece, however much input it takes.
        while piece := reader.read1(PIECE_BYTES):
            yield piece


def _unsnappy(fed: Fed) -> Iterator[bytes]:
    """Chunk by chunk, so that no declared length is believed beyond a chunk's 64 KiB."""
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
