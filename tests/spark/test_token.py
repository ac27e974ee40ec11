"""What a user's driver calls takes the token of the environment, as the options of the format do."""

import base64
import json
import time
from pathlib import Path

import pytest

from broadsheet.access.capability import EVERYTHING
from broadsheet.access.tokens import Tokens
from broadsheet.base.time import SECOND, Duration, WallTime
from broadsheet.client_sync import connect_sync
from broadsheet.sink.core.records import Fence
from broadsheet.spark.application import place, read_stream_options
from tests.spark.conftest import down, up

KEY = b"k" * 32
JOURNAL, COMMITS = "token/in", "token/commits"


def test_the_token_of_the_environment_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options took it, so a query failed in the two calls that come before them."""
    keys = tmp_path / "keys"
    keys.write_bytes(base64.b64encode(KEY))
    keys.chmod(0o600)
    token = Tokens((KEY,), audience="local").sign(
        EVERYTHING, now=WallTime(time.time_ns()), lifetime=Duration(600 * SECOND)
    )
    monkeypatch.setenv("BROADSHEET_NATIVE__KEYS_FILE", str(keys))
    monkeypatch.setenv("BROADSHEET_TOKEN", token)
    node = up(tmp_path / "data", "--any-port")
    try:
        with connect_sync(node.address, token) as client:
            client.journals.create(JOURNAL)
            client.journals.append(JOURNAL, b"{}\n")

            given = read_stream_options(address=node.address, journals=[JOURNAL], latest=True)
            assert json.loads(given["startingOffsets"]) == {JOURNAL: 3}
            place(Fence("f"), address=node.address, commit_journal=COMMITS, token="", patience_s=30, query="")
            assert client.journals.registers(COMMITS).values["author"] == "f"
    finally:
        down(tmp_path / "data")
