"""Counts what is committed in journals, with nothing of ours: by docs/protocols/messages.md and the library.

Of each line the UUID is taken apart: producer, clock, flags. A producer's messages count as the table of that
page says.
"""

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

OUTSIDE, CONTINUE, ACK = 0, 1, 2


class Message(NamedTuple):
    """A line of a journal."""

    producer: int
    clock: int
    flags: int
    body: dict[str, Any]


class Producer:
    """What a reader remembers of one producer in one journal."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.pending: list[Message] = []


def uuid_of(producer: int, clock: int, flags: int) -> str:
    """The UUID of a message as text."""
    time = clock >> 4
    fields = (time & 0xFFFFFFFF, time >> 32 & 0xFFFF, time >> 48 & 0xFFF | 0x1000)
    sequence = 0x8000 | (clock & 0xF) << 10 | flags
    return str(uuid.UUID(fields=(*fields, sequence >> 8, sequence & 0xFF, producer)))


def message_of(line: bytes) -> Message:
    """A line taken apart; all of ours have a UUID."""
    body = json.loads(line)
    found = uuid.UUID(body.pop("_meta")["uuid"])
    sequence = found.int >> 48 & 0xFFFF
    return Message(found.node, found.time << 4 | sequence >> 10 & 0xF, sequence & 0x3FF, body)


def committed(content: bytes) -> list[dict[str, Any]]:
    """The bodies that a read-committed reader of the journal is to see, in commit order."""
    producers: dict[int, Producer] = defaultdict(Producer)
    found: list[dict[str, Any]] = []
    for each in map(message_of, content.splitlines()):
        producer = producers[each.producer]
        if each.flags == ACK:
            if each.clock > producer.acknowledged:
                found += [one.body for one in producer.pending if one.clock <= each.clock and one.body]
            producer.acknowledged, producer.pending = each.clock, []
        elif each.flags == CONTINUE:
            newest = producer.pending[-1].clock if producer.pending else producer.acknowledged
            if each.clock > newest:
                producer.pending.append(each)
        elif each.clock > producer.acknowledged:
            found += [each.body] if each.body else []
            producer.acknowledged, producer.pending = each.clock, []
    return found


def counted(rows: Iterable[dict[str, Any]]) -> "Counter[str]":
    """How often each row is there, whatever the order of its fields."""
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def journal_of(key: str, journals: list[str]) -> str:
    """The journal of a key: FNV-1a, 32 bits, modulo, in the order of the names."""
    state = 0x811C9DC5
    for byte in key.encode():
        state = ((state ^ byte) * 0x01000193) & 0xFFFFFFFF
    return sorted(journals)[state % len(journals)]
