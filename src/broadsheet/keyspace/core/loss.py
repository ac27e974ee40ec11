"""Loss: the key that records an accepted loss, after which the map may no longer name everything on disk.

Revisions up to `AcceptedLoss.revision` may belong to transactions that the map lost. While the key is
present, no role deletes streams or files that it does not find named in the map, because the lost part may
have named them. The key is removed when an operator drops these orphans. Source: ADR 0124.
"""

from typing import Final

import msgspec

from broadsheet.base.types import Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.transaction import KeyValue

LOSS_KEY: Final = "keyspace/loss"


class AcceptedLoss(msgspec.Struct, frozen=True):
    """An accepted loss of the key space: how far the map was sound, where it went on, and when."""

    revision: Revision
    """The revision at which the map went on; above every revision that was seen."""
    sound: Revision
    """Up to this revision nothing was missing."""
    accepted: int
    """When the loss was accepted, in nanoseconds since 1970."""


_decoder = msgspec.json.Decoder(AcceptedLoss)


def loss_pair(loss: AcceptedLoss) -> KeyValue:
    """The pair to put into the map that goes on after the loss."""
    return KeyValue(LOSS_KEY, msgspec.json.encode(loss), loss.revision, loss.revision)


def decode_loss(pair: KeyValue | None) -> AcceptedLoss | None:
    """The accepted loss of the key space in `pair`; None if the key is absent.

    Raises:
        Corrupt: the value does not decode.
    """
    if pair is None:
        return None
    try:
        return _decoder.decode(pair.value)
    except msgspec.DecodeError as error:
        raise Corrupt(f"key {LOSS_KEY}: {error}: written by a newer version?") from error
