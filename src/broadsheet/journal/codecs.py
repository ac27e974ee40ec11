"""Codecs: a fragment's content to stored bytes and back, in pieces and within bounds.

Lengths are bytes. Reading trusts nothing: the output of a decoder is bounded by the length that the
fragment's name declares, whatever the stored bytes claim, and each call by a piece (reliability S8; zstd
packs 32,000:1). GZIP content may have many members and snappy is the framing format: Gazette writes both.
Source: journals.25; reference/gazette.md 1.10, 2.5.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import cramjam
import zstandard

from broadsheet.base.types import Buffer
from broadsheet.errors import Corrupt
from broadsheet.journal.core.fragment import Codec

PIECE_BYTES: Final = 1 << 20
WINDOW_BYTES_MAX: Final = 8 << 20
GZIP_LEVEL: Final = 6
ZSTANDARD_LEVEL: Final = 3
_GZIP_WBITS: Final = 31
_SNAPPY_HEADER: Final = b"\xff\x06\x00\x00sNaPpY"


def compress(codec: Codec, pieces: Iterable[Buffer]) -> Sequence[Buffer]:
    """The stored form of `pieces`. Blocking: off the loop."""
    match codec:
        case Codec.NONE:
            return list(pieces)
        case Codec.GZIP:
            gzip = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
            return [*(gzip.compress(piece) for piece in pieces), gzip.flush()]
        case Codec.ZSTANDARD:
            zstd = zstandard.ZstdCompressor(level=ZSTANDARD_LEVEL).compressobj()
            return [*(zstd.compress(piece) for piece in pieces), zstd.flush()]
        case Codec.SNAPPY:
            snappy = cramjam.snappy.Compressor()
            for piece in pieces:
                snappy.compress(bytes(piece))
            return [bytes(snappy.finish())]


def decompress(codec: Codec, stored: Buffer, *, length: int) -> Iterator[bytes]:
    """The content of `stored`, in pieces. Blocking: off the loop.

    Args:
        length: what the content must come to, exactly.

    Raises:
        Corrupt: it is not in the codec's format, or comes to more or less.
    """
    got = 0
    try:
        for piece in _DECODERS[codec](memoryview(stored), length):
            got += len(piece)
            if got > length:
                raise Corrupt(f"{codec.value} fragment has more than the {length} bytes that its name says")
            yield piece
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, EOFError, ValueError) as error:
        raise Corrupt(f"{codec.value} fragment does not decompress: {error}") from error
    if got != length:
        raise Corrupt(f"{codec.value} fragment has {got} bytes, not the {length} that its name says")


def _plain(stored: memoryview, _length: int) -> Iterator[bytes]:
    for at in range(0, len(stored), PIECE_BYTES):
        yield bytes(stored[at : at + PIECE_BYTES])


def _gunzip(stored: memoryview, length: int) -> Iterator[bytes]:
    """Member after member; an empty one costs its own bytes of `stored`, so the loop ends."""
    left: Buffer = stored
    while len(left):
        member = zlib.decompressobj(_GZIP_WBITS)
        pending: Buffer = left
        while not member.eof:
            piece = member.decompress(pending, min(PIECE_BYTES, length + 1))
            pending = member.unconsumed_tail
            if not piece and not pending and not member.eof:
                raise EOFError("the last member is cut off")
            yield piece
        left = member.unused_data


def _unzstd(stored: memoryview, _length: int) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    with decoder.stream_reader(stored, read_across_frames=True, read_size=PIECE_BYTES) as reader:
        while piece := reader.read(PIECE_BYTES):
            yield piece


def _unsnappy(stored: memoryview, _length: int) -> Iterator[bytes]:
    """Chunk by chunk, so that no declared length is believed beyond a chunk's 64 KiB."""
    at, parts = 0, bytes(stored)
    if not parts.startswith(_SNAPPY_HEADER):
        raise ValueError("no snappy stream identifier")
    while at < len(parts):
        if at + 4 > len(parts):
            raise EOFError("a chunk header is cut off")
        end = at + 4 + int.from_bytes(parts[at + 1 : at + 4], "little")
        if end > len(parts):
            raise EOFError("a chunk is cut off")
        if parts[at] in (0x00, 0x01):
            yield bytes(cramjam.snappy.decompress(_SNAPPY_HEADER + parts[at:end]))
        elif parts[at] < 0x80:
            raise ValueError(f"chunk type {parts[at]:#x} is reserved and may not be skipped")
        at = end


_DECODERS: Final = {
    Codec.NONE: _plain,
    Codec.GZIP: _gunzip,
    Codec.ZSTANDARD: _unzstd,
    Codec.SNAPPY: _unsnappy,
}
