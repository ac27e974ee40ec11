"""The key that says that a loss was accepted: the map is not known to name everything that is here.

Revisions up to `AcceptedLoss.revision` may belong to what the map lost. Who owns things that are named by
revisions deletes none of those that the map does not name. The key goes when an operator drops what nobody
names. Source: ADR 0124.
"""

from typing import Final

import msgspec

from broadsheet.base.types import Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.transaction import KeyValue

LOSS_KEY: Final = "keyspace/loss"


class AcceptedLoss(msgspec.Struct, frozen=True):
    """What was accepted, and when."""

    revision: Revision
    """The map went on above everything that was seen: here."""
    sound: Revision
    """Up to it nothing was missing."""
    accepted: int
    """Nanoseconds since 1970."""


_decoder = msgspec.json.Decoder(AcceptedLoss)


def loss_pair(loss: AcceptedLoss) -> KeyValue:
    """The key, as a part of the map that is accepted."""
    return KeyValue(LOSS_KEY, msgspec.json.encode(loss), loss.revision, loss.revision)


def decode_loss(pair: KeyValue | None) -> AcceptedLoss | None:
    """What the key says; None where it is absent.

    Raises:
        Corrupt: its value is none.
    """
    if pair is None:
        return None
    try:
        return _decoder.decode(pair.value)
    except msgspec.DecodeError as error:
        raise Corrupt(f"key {LOSS_KEY}: {error}: written by a newer version?") from error
