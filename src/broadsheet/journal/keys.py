"""Keys: how a journal's spec, epoch and registers are encoded as values of the Keyspace.

A spec is JSON, so that an operator can read it; the other two are MessagePack. Revisions are the Keyspace's.
Source: journals.1, journals.11; `docs/protocols/journals.md`.
"""

from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import asdict

from broadsheet.base.types import ByteOffset, Incarnation, NodeId, Revision
from broadsheet.errors import Corrupt
from broadsheet.journal.core.registers import RegisterState
from broadsheet.journal.core.spec import SPEC_PREFIX, JournalSpec
from broadsheet.journal.messages import JournalInfo
from broadsheet.keyspace.core.loss import LOSS_KEY, decode_loss
from broadsheet.keyspace.core.transaction import KeyValue
from broadsheet.keyspace.port import Keyspace


class StoredSpec(JournalSpec, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The spec key's value."""

    created: Revision = Revision(0)
    """The journal's create revision; 0 in the put that created it. The key space knows it too, but not if it
    lost the records of the puts before."""


class Member(msgspec.Struct, frozen=True):
    """A replica of a journal's synced route."""

    node: NodeId
    incarnation: Incarnation


class EpochValue(msgspec.Struct, frozen=True):
    """The journal's epoch key's value. It is put once in each epoch; the epoch is the key's mod_revision."""

    members: tuple[Member, ...]
    start: ByteOffset
    """The head at which the epoch began."""
    sum: bytes
    """SHA-1 of the open fragment's content through `start`."""


T = TypeVar("T")
Decoder: TypeAlias = msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]

_spec = msgspec.json.Decoder(StoredSpec)
_epoch = msgspec.msgpack.Decoder(EpochValue)
_registers = msgspec.msgpack.Decoder(RegisterState)


def encode_spec(spec: JournalSpec, *, created: Revision = Revision(0)) -> bytes:
    """The spec key's value.

    Args:
        created: the create revision of the journal; 0: this put creates it.
    """
    return msgspec.json.encode(StoredSpec(**asdict(spec), created=created))


def decode_info(pair: KeyValue) -> JournalInfo:
    """The journal of a spec key.

    Raises:
        Corrupt: the key's value does not decode.
    """
    stored = _decoded(_spec, pair)
    spec = JournalSpec(*(getattr(stored, field) for field in JournalSpec.__struct_fields__))
    return JournalInfo(spec=spec, create_revision=pair.create_revision, mod_revision=pair.mod_revision)


def created_at(pair: KeyValue) -> Revision | None:
    """The create revision of the journal whose spec key was put then; None: the value does not tell it."""
    if not pair.key.startswith(SPEC_PREFIX):
        return None
    try:
        stored = _decoded(_spec, pair)
    except Corrupt:
        return None
    return stored.created or (None if stored.is_deleting else pair.mod_revision)


def is_retention_doubtful(keyspace: Keyspace, info: JournalInfo) -> bool:
    """Whether the key space has a retention for the journal, and may have lost the record of a later one."""
    kept = info.spec.fragment
    if not (kept.retention or kept.retained_bytes):
        return False
    loss = decode_loss(keyspace.get(LOSS_KEY))
    return loss is not None and info.mod_revision <= loss.revision


def encode_epoch(value: EpochValue) -> bytes:
    """The epoch key's value."""
    return msgspec.msgpack.encode(value)


def decode_epoch(pair: KeyValue) -> EpochValue:
    """The value of an epoch key.

    Raises:
        Corrupt: the key's value does not decode.
    """
    return _decoded(_epoch, pair)


def encode_registers(state: RegisterState) -> bytes:
    """The registers key's value."""
    return msgspec.msgpack.encode(state)


def decode_registers(pair: KeyValue) -> RegisterState:
    """The value of a registers key.

    Raises:
        Corrupt: the key's value does not decode.
    """
    return _decoded(_registers, pair)


def _decoded(decoder: Decoder[T], pair: KeyValue) -> T:
    try:
        return decoder.decode(pair.value)
    except msgspec.DecodeError as error:
        raise Corrupt(f"key {pair.key}: {error}: written by a newer version?") from error
