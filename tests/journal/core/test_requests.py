"""Requests: what an append says on the wire."""

import msgspec

from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.messages import AppendRequest


def test_an_append_says_on_the_wire_only_what_it_asks_for() -> None:
    """Its request comes with every append; and a node that lacks a newer field still reads the older ones."""
    journal = JournalName("a/b")
    asked = AppendRequest(journal, condition=Condition(offset=ByteOffset(5)))

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(asked)) == {
        "journal": "a/b",
        "condition": {"offset": 5},
    }
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(AppendRequest(journal))) == {"journal": "a/b"}
