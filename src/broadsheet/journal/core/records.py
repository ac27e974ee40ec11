"""Records: what a journal writes to its stream of the journals role's log, byte by byte.

Offsets are bytes, times nanoseconds since the Unix epoch, integers little-endian and unsigned. Three kinds:

* *proposal*: an adopted append or run `[begin, end)` of the fragment that begins at `fragment_begin`, with
  the SHA-1 of that fragment through `end`. It has the content itself, or a flag that the content is in the
  spool file, synced. It has the registers if they changed, and the attempt id if the client may ask for the
  outcome;
* *checkpoint*: every spool file is synced up to `end`, with these sums and registers; earlier records of the
  stream are no longer needed;
* *identity*: the incarnation of this replica's data, in the log's stream 0.

This module reads no file. The log's checksums guard the records; the sums in them guard the spool.
Source: journals.6, journals.11, journals.14; `docs/protocols/journals.md`.
"""

from struct import Struct
from typing import Final, NamedTuple

import msgspec

from broadsheet.base.types import Buffer, ByteOffset, Epoch, Incarnation
from broadsheet.errors import Corrupt
from broadsheet.journal.core.attempts import ATTEMPT_BYTES, Remembered
from broadsheet.journal.core.registers import NO_REGISTERS, RegisterState

PROPOSAL: Final = 1
CHECKPOINT: Final = 2
IDENTITY: Final = 3

PADDING_MAX: Final = 7
"""Bytes of padding that may follow a record, if its frame does not say how long the record is."""
NO_ORIGIN: Final = msgspec.UNSET
"""The origin in the checkpoint of a journal that has none but 0."""

_IS_SPOOLED: Final = 1
_HAS_ATTEMPT: Final = 2
_HEAD: Final = Struct("<BBHIQQQQQ20s4x")
_HEAD_BYTES: Final = _HEAD.size

_registers_encoder = msgspec.msgpack.Encoder()
_registers_decoder = msgspec.msgpack.Decoder(RegisterState)


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """A journal's record of one adopted append, or of a run of them."""

    epoch: Epoch
    fragment_begin: ByteOffset
    begin: ByteOffset
    end: ByteOffset
    first_append: int
    """When the fragment got its first byte."""
    sum: bytes
    """SHA-1 of the fragment's content through `end`."""
    registers: RegisterState | None
    """The new state, if the append changed registers."""
    content: memoryview | None
    """None: the content is in the spool file, which was synced before this record was written."""
    attempt: bytes = b""
    """The attempt id, if the client may ask for the outcome."""


class ClosedSpool(msgspec.Struct, frozen=True):
    """A closed fragment whose spool file is synced and not yet known to be stored."""

    begin: ByteOffset
    end: ByteOffset
    sum: bytes


class Checkpoint(msgspec.Struct, frozen=True):
    """A journal's record that everything below `end` is in synced spool files or in the fragment store."""

    epoch: Epoch
    fragment_begin: ByteOffset
    end: ByteOffset
    sum: bytes
    """SHA-1 of the open fragment's content through `end`."""
    first_append: int
    registers: RegisterState | None = NO_REGISTERS
    closed: tuple[ClosedSpool, ...] = ()
    attempts: tuple[Remembered, ...] = ()
    """The last conditional appends below `end`, with their attempt ids."""
    attempts_from: ByteOffset | None = None
    """No attempt at or above this offset is missing in `attempts`; None means `end`."""
    is_sealed: bool | msgspec.UnsetType = msgspec.UNSET
    """True: a seal has the reason why the journal takes no appends. Without that file nothing tells of its
    loss. Only such checkpoints have the field."""
    origin: ByteOffset | msgspec.UnsetType = NO_ORIGIN
    """Where the journal begins for readers of messages: an operator accepted the loss of all below, and no
    producer index of it was stored. Only the checkpoints of such a journal have the field."""


class ProposalHead(NamedTuple):
    """The first fields of a payload that may be a damaged proposal; none of them is verified."""

    kind: int
    registers_bytes: int
    begin: int
    end: int
    sum: bytes
    content_bytes: int
    """Bytes after the registers: the attempt id, if the proposal has one, and the content."""


class Identity(msgspec.Struct, frozen=True):
    """The record that names the incarnation of the journals' data."""

    incarnation: Incarnation


_checkpoint_decoder = msgspec.msgpack.Decoder(Checkpoint)
_identity_decoder = msgspec.msgpack.Decoder(Identity)


def encode_proposal(
    *,
    epoch: Epoch,
    fragment_begin: ByteOffset,
    begin: ByteOffset,
    end: ByteOffset,
    first_append: int,
    digest: bytes,
    registers: RegisterState | None,
    is_spooled: bool,
    attempt: bytes = b"",
) -> bytes:
    """The bytes of a journal's proposal before its content."""
    tail = _registers_encoder.encode(registers) if registers is not None else b""
    flags = (_IS_SPOOLED if is_spooled else 0) | (_HAS_ATTEMPT if attempt else 0)
    head = _HEAD.pack(PROPOSAL, flags, 0, len(tail), epoch, fragment_begin, begin, end, first_append, digest)
    return b"".join((head, tail, attempt)) if tail or attempt else head


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The whole record."""
    return bytes((CHECKPOINT,)) + msgspec.msgpack.encode(checkpoint)


def encode_identity(identity: Identity) -> bytes:
    """The whole record."""
    return bytes((IDENTITY,)) + msgspec.msgpack.encode(identity)


def decode(payload: Buffer) -> Proposal | Checkpoint | Identity:
    """The journal's record in `payload`.

    Raises:
        Corrupt: this version cannot read it.
    """
    view = memoryview(payload)
    try:
        kind = view[0]
        if kind == CHECKPOINT:
            return _checkpoint_decoder.decode(view[1:])
        if kind == IDENTITY:
            return _identity_decoder.decode(view[1:])
        if kind == PROPOSAL:
            return _decode_proposal(view)
    except (IndexError, ValueError, msgspec.DecodeError) as error:
        raise Corrupt(f"journal record of {len(view)} bytes does not decode: {error}") from error
    raise Corrupt(f"journal record of kind {kind} is unknown: written by a newer version?")


def head_of(payload: bytes) -> ProposalHead | None:
    """The head of `payload`, read as a proposal that may be damaged; None if the payload is too short."""
    if len(payload) < _HEAD_BYTES:
        return None
    kind, _, _, tail_bytes, _, _, begin, end, _, digest = _HEAD.unpack_from(payload)
    return ProposalHead(kind, tail_bytes, begin, end, digest, len(payload) - _HEAD_BYTES - tail_bytes)


def _decode_proposal(view: memoryview) -> Proposal:
    if len(view) < _HEAD_BYTES:
        raise ValueError("short head")
    _, flags, _, tail_bytes, epoch, fragment_begin, begin, end, first_append, digest = _HEAD.unpack_from(view)
    content_at = _HEAD_BYTES + tail_bytes
    registers = _registers_decoder.decode(view[_HEAD_BYTES:content_at]) if tail_bytes else None
    attempt = b""
    if flags & _HAS_ATTEMPT:
        attempt = bytes(view[content_at : content_at + ATTEMPT_BYTES])
        content_at += ATTEMPT_BYTES
        if len(attempt) < ATTEMPT_BYTES:
            raise ValueError("short attempt id")
    is_spooled = bool(flags & _IS_SPOOLED)
    if is_spooled and len(view) - content_at > ATTEMPT_BYTES + PADDING_MAX:  # Registers are longer.
        raise ValueError(f"{len(view) - content_at} bytes behind the registers")
    content = None if is_spooled else view[content_at:]
    if not fragment_begin <= begin < end:
        raise ValueError(f"span [{begin}, {end}) of the fragment from {fragment_begin}")
    if content is not None and len(content) != end - begin:
        raise ValueError(f"{len(content)} bytes of content for [{begin}, {end})")
    return Proposal(
        epoch=Epoch(epoch),
        fragment_begin=ByteOffset(fragment_begin),
        begin=ByteOffset(begin),
        end=ByteOffset(end),
        first_append=first_append,
        sum=digest,
        registers=registers,
        content=content,
        attempt=attempt,
    )
