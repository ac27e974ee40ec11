"""Loss: what the key of an accepted loss says."""

import pytest

from broadsheet.base.types import Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.loss import LOSS_KEY, AcceptedLoss, decode_loss, loss_pair
from broadsheet.keyspace.core.transaction import KeyValue


def test_an_accepted_loss_that_does_not_decode_is_not_taken_for_none() -> None:
    """Without a loss every stream and file that the map does not name is dropped: the lost ones with them."""
    loss = AcceptedLoss(revision=Revision(9), sound=Revision(4), accepted=1)

    assert decode_loss(loss_pair(loss)) == loss
    assert decode_loss(None) is None
    for value in (b"", b"{}", b'{"revision":"9"}'):
        with pytest.raises(Corrupt, match=LOSS_KEY):
            decode_loss(KeyValue(LOSS_KEY, value, Revision(9), Revision(9)))
