"""Record: what the key space writes to its log stream.

One byte of format version, then MessagePack. A transaction is one record. A snapshot is `count` chunks of
one revision. Recovery uses a snapshot only if all its chunks are present, and ignores one that a crash cut
short. Source: control.15; log.19.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from broadsheet.base.types import Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.map import size
from broadsheet.keyspace.core.transaction import KeyValue

FORMAT: Final = 1
"""Version of the record format; a record of any other version is refused."""


class TransactionRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """One committed transaction of the key space."""

    revision: Revision
    puts: tuple[tuple[str, bytes], ...]
    deletes: tuple[str, ...]


class SnapshotChunk(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """Part `index` of `count` of the key space's whole map as of `revision`."""

    revision: Revision
    index: int
    count: int
    pairs: tuple[KeyValue, ...]


Record = TransactionRecord | SnapshotChunk

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_VERSION = bytes((FORMAT,))


def encoded(record: Record) -> bytes:
    """The bytes of `record` in the log."""
    return _VERSION + _encoder.encode(record)


def decoded(payload: bytes) -> Record:
    """The key space's record in `payload`.

    Raises:
        Corrupt: the payload has another format version, or does not decode.
    """
    if payload[:1] != _VERSION:
        raise Corrupt(f"keyspace record of format {payload[:1]!r}: this version reads format {FORMAT}")
    try:
        return _decoder.decode(memoryview(payload)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"keyspace record of {len(payload)} bytes cannot be read: {error}") from error


def snapshot(revision: Revision, pairs: Iterable[KeyValue], *, chunk_bytes: int) -> tuple[bytes, ...]:
    """The encoded chunks of a snapshot of the key space; an empty map has one, too. Slow: for a thread.

    Args:
        chunk_bytes: a chunk ends with the pair at which its keys and values reach this size.
    """
    chunks: list[list[KeyValue]] = [[]]
    room = chunk_bytes
    for pair in sorted(pairs, key=lambda pair: pair.key):
        if room <= 0:
            chunks.append([])
            room = chunk_bytes
        chunks[-1].append(pair)
        room -= size(pair)
    return tuple(
        encoded(SnapshotChunk(revision=revision, index=index, count=len(chunks), pairs=tuple(chunk)))
        for index, chunk in enumerate(chunks)
    )
