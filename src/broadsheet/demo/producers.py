"""Producers: processes that each append a part of the flights to a journal of their own.

A producer is the only writer of its journal, so it knows the journal's end, and names the offset in every
append. If the answer is lost, it repeats the append at the same offset; if that offset is taken, the bytes
there are compared (journals.21). Therefore no message is lost or repeated when the node is killed. Each
producer also sends a few messages that are broken on purpose. Processes are started with `spawn`, and report
progress in a shared count.
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
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import PRODUCER_BYTES, Flag, pack, producer_from, to_text
from broadsheet.spark.connection import patiently

PRODUCERS: Final = 4
APPEND_BYTES: Final = 512 << 10
BROKEN_EACH: Final = 3


class Part(msgspec.Struct, frozen=True):
    """The work of one of the demo's producers."""

    address: str
    number: int
    row_count: int | None
    """How many rows of the file all producers together send; None for all."""

    @property
    def journal(self) -> str:
        """The journal that the producer appends to."""
        return source_journal(self.number)


def source_journal(number: int) -> str:
    """The journal of a producer."""
    return f"flights/raw/producer-{number}"


def started(address: str, row_count: int | None) -> tuple[list[BaseProcess], Any]:
    """Start the demo's producers. Returns processes, and a shared array that counts acknowledged rows."""
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
    """Append the messages of one of the demo's producers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # On Ctrl-C the demo's own process ends this one.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    part = msgspec.json.decode(encoded, type=Part)
    stamper = Stamper(producer_from(os.urandom(PRODUCER_BYTES)))
    client = patiently(lambda: connect_sync(part.address))
    labels = {FRAMING_LABEL: JSON_LINES.kind.value}
    patiently(lambda: client.journals.create(part.journal, labels=labels, if_absent=True))
    at = 0
    for row_count, content in batches(part, stamper):
        patiently(partial(client.journals.append, part.journal, content, offset=at))
        at += len(content)
        counts[part.number] += row_count
    client.close()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)  # Otherwise this process would wait for a node that has ended, too.


def batches(part: Part, stamper: Stamper) -> Iterator[tuple[int, bytes]]:
    """Framed messages of flights in pieces of about `APPEND_BYTES`, each with the number of flights in it."""
    waiting, waiting_bytes, row_count = [broken(stamper, number) for number in range(BROKEN_EACH)], 0, 0
    for number, row in enumerate(flights(part.row_count)):
        if number % PRODUCERS != part.number:
            continue
        message = stamper.committed(JSON_LINES, msgspec.json.encode(row), WallTime(time.time_ns()))
        waiting.append(message)
        waiting_bytes += len(message)
        row_count += 1
        if waiting_bytes >= APPEND_BYTES:
            yield row_count, b"".join(waiting)
            waiting, waiting_bytes, row_count = [], 0, 0
    yield row_count, b"".join(waiting)


def broken(stamper: Stamper, number: int) -> bytes:
    """A message that is cut off in the middle, as a faulty sender might produce."""
    uuid = to_text(pack(stamper.producer, stamper.clock.tick(), Flag.OUTSIDE)).encode()
    return (
        JSON_LINES.prefix() + uuid + JSON_LINES.closing() + b',"carrier":"UA","flight":"%d","dist\n' % number
    )
