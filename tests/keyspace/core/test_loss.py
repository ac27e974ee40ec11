"""Loss: what the key of an accepted loss says, and a seal that nobody can read."""

import pytest

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Revision
from broadsheet.errors import ConfigError, Corrupt
from broadsheet.keyspace.core.loss import LOSS_KEY, AcceptedLoss, decode_loss, loss_pair
from broadsheet.keyspace.core.transaction import KeyValue
from broadsheet.keyspace.local.seal_file import CRC_BYTES, SEAL_NAME, VERSION, read_seal
from simulator.disk import SimDisk


def test_an_accepted_loss_that_does_not_decode_is_not_taken_for_none() -> None:
    """Without a loss every stream and file that the map does not name is dropped: the lost ones with them."""
    loss = AcceptedLoss(revision=Revision(9), sound=Revision(4), accepted=1)

    assert decode_loss(loss_pair(loss)) == loss
    assert decode_loss(None) is None
    for value in (b"", b"{}", b'{"revision":"9"}'):
        with pytest.raises(Corrupt, match=LOSS_KEY):
            decode_loss(KeyValue(LOSS_KEY, value, Revision(9), Revision(9)))


def test_a_seal_of_another_release_is_refused_with_its_name() -> None:
    """It holds the whole map: a start that passed it over would go on with an empty one."""
    for body, words in ((VERSION + b"\x91\x01", "does not decode"), (b"\xff", "has format")):
        disk = SimDisk()
        disk.make_dir("keyspace")
        file = disk.open(SEAL_NAME, create=True)
        file.write_at(0, (body, crc32c(body).to_bytes(CRC_BYTES, "little")))

        with pytest.raises(ConfigError, match=words):
            read_seal(disk)
