"""What a user's driver calls takes the token of the environment, as the options of the format do."""

import base64
import json
import time
from collections.abc import Iterator

import pytest

from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.access.tokens import Tokens
from broadsheet.base.time import SECOND, Duration, WallTime
from broadsheet.client_sync import connect_sync
from broadsheet.errors import NotAllowed
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.sink.core.records import Fence
from broadsheet.spark.application import place, read_stream_options
from tests.spark.conftest import down, up

KEY = b"k" * 32
JOURNAL, COMMITS = "token/in", "token/commits"
ORDERS, OF_QUERY, OF_PUBLISHER = "token/orders", "token/of-query", "token/of-publisher"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that asks for tokens."""
    root = tmp_path_factory.mktemp("token")
    keys = root / "keys"
    keys.write_bytes(base64.b64encode(KEY))
    keys.chmod(0o600)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BROADSHEET_NATIVE__KEYS_FILE", str(keys))
        patched.setenv("BROADSHEET_TOKEN", token_of(EVERYTHING))
        node = up(root / "data", "--any-port")
        yield node.address
        down(root / "data")


def token_of(capabilities: Capability) -> str:
    now, lifetime = WallTime(time.time_ns()), Duration(600 * SECOND)
    return Tokens((KEY,), audience="local").sign(capabilities, now=now, lifetime=lifetime)


def test_the_token_of_the_environment_is_taken(address: str) -> None:
    """The options took it, so a query failed in the two calls that come before them."""
    with connect_sync(address, token_of(EVERYTHING)) as client:
        client.journals.create(JOURNAL)
        client.journals.append(JOURNAL, b"{}\n")

        given = read_stream_options(address=address, journals=[JOURNAL], latest=True)
        assert json.loads(given["startingOffsets"]) == {JOURNAL: 3}
        place(Fence("f"), address=address, commit_journal=COMMITS, token="", patience_s=30, query="")
        assert client.journals.registers(COMMITS).values["author"] == "f"


def test_who_may_append_commits_to_a_journal_that_is_there(address: str) -> None:
    """It took the capability to create, which deletes and trims, too."""
    token = token_of(Capability.LIST | Capability.READ | Capability.APPEND)
    with connect_sync(address, token_of(EVERYTHING)) as client:
        for name in (ORDERS, OF_QUERY, OF_PUBLISHER):
            client.journals.create(name, labels={FRAMING_LABEL: "json-lines"} if name == ORDERS else {})
    with connect_sync(address, token) as client:
        place(Fence("g"), address=address, commit_journal=OF_QUERY, token=token, patience_s=30, query="")
        assert client.journals.registers(OF_QUERY).values["author"] == "g"
        with client.publisher(OF_PUBLISHER) as publisher, publisher.transaction() as transaction:
            transaction.publish(ORDERS, {"n": 1})
        assert [message.json() for message in client.messages(ORDERS)] == [{"n": 1}]

        with pytest.raises(NotAllowed, match="lacks APPLY"):
            client.journals.create("token/none", if_absent=True)
        with pytest.raises(NotAllowed, match="lacks APPLY"):
            client.journals.create(ORDERS)
    with (
        connect_sync(address, token_of(Capability.APPEND)) as client,
        pytest.raises(NotAllowed, match="lacks APPLY"),
    ):
        client.journals.create(ORDERS, if_absent=True)
