"""What decodes on the loop is bounded before it is decoded."""

import msgspec
import pytest

from broadsheet.journal.messages import AppendRequest, CreateRequest


@pytest.mark.parametrize("what", ["labels", "check", "union", "subtract"])
def test_far_too_many_labels_or_registers_are_refused_before_they_are_decoded(what: str) -> None:
    """A MiB of labels in one request held the node's loop for 55 ms, and a body may have a MiB."""
    many = {f"{number:06x}": "" for number in range(100_000)}
    kind: type[msgspec.Struct] = AppendRequest
    body: dict[str, object] = {"journal": "a/b", "condition": {what: many}}
    if what == "labels":
        kind, body = CreateRequest, {"spec": {"name": "a/b", "labels": many}}

    with pytest.raises(msgspec.ValidationError, match="of length <="):
        msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=kind)
