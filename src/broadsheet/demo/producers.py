"""The producers: processes that append their part of the flights to one journal each.

A producer knows where its journal must end, so every append names its offset: an append whose answer was
lost is tried there again, and where the journal has moved on its bytes are compared (journals.21). Killing
the node therefore neither loses nor repeats a message. Besides flights each producer sends a few messages
that are broken on purpose. Started with `spawn`; progress is a shared count.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, Final

import msgspec

from broadsheet.base.time import WallTime
from broadsheet.client_sync import connect_sync
from broadsheet.demo.flights import flights
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.publisher import Publisher
from broadsheet.message.uuid import PRODUCER_BYTES, Flag, pack, producer_from, to_text
from broadsheet.spark.connection import patiently

PRODUCERS: Final = 4
APPEND_BYTES: Final = 512 << 10
BROKEN_EACH: Final = 3


class Part(msgspec.Struct, frozen=True):
    """What one producer does."""

    address: str
    number: int
    row_count: int | None
    """Rows of the file that all producers together send; None: all."""

    @property
    def journal(self) -> str:
        """Where it appends."""
        return source_journal(self.number)


def source_journal(number: int) -> str:
    """The journal of a producer."""
    return f"flights/raw/producer-{number}"


def started(address: str, row_count: int | None) -> tuple[list[BaseProcess], Any]:
    """Processes that append, and the shared count of acknowledged rows of each."""
    context = multiprocessing.get_context("spawn")
    counts = context.Array("q", PRODUCERS)
    processes: list[BaseProcess] = []
    for number in range(PRODUCERS):
        part = Part(address=address, number=number, row_count=row_count)
        process = context.Process(target=produce, args=(msgspec.json.encode(part), counts), daemon=True)
        process.start()
        processes.append(process)
    return processes, counts


def produce(encoded: bytes, counts: Any) -> None:  # noqa: ANN401 - a shared array has no public type.
    """Append one producer's messages."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's Ctrl-C comes to us too; the demo ends us.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    part = msgspec.json.decode(encoded, type=Part)
    publisher = Publisher(producer_from(os.urandom(PRODUCER_BYTES)))
    client = patiently(lambda: connect_sync(part.address))
    labels = {FRAMING_LABEL: JSON_LINES.kind.value}
    patiently(lambda: client.journals.create(part.journal, labels=labels, if_absent=True))
    at = 0
    for row_count, content in batches(part, publisher):
        patiently(partial(client.journals.append, part.journal, content, offset=at))
        at += len(content)
        counts[part.number] += row_count
    client.close()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)  # Else it would be patient with a node that has ended too.


def batches(part: Part, publisher: Publisher) -> Iterator[tuple[int, bytes]]:
    """Framed messages, about `APPEND_BYTES` at a time, with the number of flights in them."""
    waiting, waiting_bytes, row_count = [broken(publisher, number) for number in range(BROKEN_EACH)], 0, 0
    for number, row in enumerate(flights(part.row_count)):
        if number % PRODUCERS != part.number:
            continue
        message = publisher.committed(JSON_LINES, msgspec.json.encode(row), WallTime(time.time_ns()))
        waiting.append(message)
        waiting_bytes += len(message)
        row_count += 1
        if waiting_bytes >= APPEND_BYTES:
            yield row_count, b"".join(waiting)
            waiting, waiting_bytes, row_count = [], 0, 0
    yield row_count, b"".join(waiting)


def broken(publisher: Publisher, number: int) -> bytes:
    """A message that ends in the middle, as a sender with a bug would make it."""
    uuid = to_text(pack(publisher.producer, publisher.clock.tick(), Flag.OUTSIDE)).encode()
    return (
        JSON_LINES.prefix() + uuid + JSON_LINES.closing() + b',"carrier":"UA","flight":"%d","dist\n' % number
    )
