"""Stamper: stamps the messages of one producer, and makes the acknowledgements that commit them.

No open span --`pending`--> journals with an open span --`intents`--> no open span. The caller stores the
intents before it appends them, and appends them again after a fault. A stamper has a producer id of its
own, which no other may ever use.

The messages of one journal must be appended in the order in which they were stamped: stamp a message only
when the place of its append in the journal's queue is fixed. Otherwise a later append may overtake an
earlier one, whose messages readers then drop as duplicates. This module draws no entropy, reads no clock
and does no IO. Source: paper "Message UUIDs"; pipelines.8.
"""

import msgspec

from broadsheet.base.time import WallTime
from broadsheet.base.types import JournalName, Revision
from broadsheet.message.clock import TICK, ProducerClock
from broadsheet.message.framing import Framing, framed
from broadsheet.message.uuid import NO_CLOCK, Clock, Flag, ProducerId, pack


class Intent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An acknowledgement that is decided, and may not be appended yet."""

    journal: JournalName
    framing: Framing
    producer: ProducerId
    clock: Clock
    create_revision: Revision = Revision(0)
    """The create revision of the journal that holds the messages; 0 for any journal of that name."""

    def content(self) -> bytes:
        """The bytes to append."""
        return framed(self.framing, pack(self.producer, self.clock, Flag.ACK), b"")


class Stamper:
    """Stamps and frames the messages of one producer."""

    def __init__(self, producer: ProducerId, start: Clock = NO_CLOCK) -> None:
        self.producer = producer
        self.clock = ProducerClock(start)
        self.open: dict[JournalName, tuple[Framing, Clock, Revision]] = {}
        self._floor = start
        """A clock below that of every pending message, and at or above those of all earlier intents."""

    def committed(self, framing: Framing, body: bytes, wall: WallTime) -> bytes:
        """One message that commits by itself.

        Raises:
            InvalidArgument: `body` cannot be framed. Nothing changed but the clock.
        """
        self.clock.update(wall)
        return framed(framing, pack(self.producer, self.clock.tick(), Flag.OUTSIDE), body)

    def pending(
        self,
        journal: JournalName,
        framing: Framing,
        body: bytes,
        wall: WallTime,
        *,
        create_revision: Revision = Revision(0),
    ) -> bytes:
        """One message of `journal` that commits with the next intents; arguments as `reserve`.

        Raises:
            InvalidArgument: `body` cannot be framed. Nothing changed but the clock.
        """
        self._begin(wall)
        clock = self.clock.tick()
        content = framed(framing, pack(self.producer, clock, Flag.CONTINUE), body)
        self.open[journal] = (framing, clock, create_revision)
        return content

    def reserve(
        self,
        journal: JournalName,
        framing: Framing,
        count: int,
        wall: WallTime,
        *,
        create_revision: Revision = Revision(0),
    ) -> Clock:
        """The first of `count` clocks, `TICK` apart, for pending messages that the caller frames itself.

        Args:
            create_revision: that of the journal that gets the messages; 0 for any journal of that name.
        """
        self._begin(wall)
        first = self.clock.tick(count)
        self.open[journal] = (framing, Clock(first + (count - 1) * TICK), create_revision)
        return first

    def intents(self) -> list[Intent]:
        """One acknowledgement for each journal that got messages since the last call.

        The order is that of the first message to each journal.
        """
        intents = [
            Intent(
                journal=journal,
                framing=framing,
                producer=self.producer,
                clock=self.clock.tick(),
                create_revision=revision,
            )
            for journal, (framing, _, revision) in self.open.items()
        ]
        self.open.clear()
        return intents

    def rollbacks(self) -> list[Intent]:
        """One acknowledgement for each journal that rolls back what it got since the last intents.

        Nothing may be stamped afterwards: a message that is still on its way would join the next span.
        """
        intents = [
            Intent(
                journal=journal,
                framing=framing,
                producer=self.producer,
                clock=self._floor,
                create_revision=revision,
            )
            for journal, (framing, _, revision) in self.open.items()
        ]
        self.open.clear()
        return intents

    def _begin(self, wall: WallTime) -> None:
        self.clock.update(wall)
        if not self.open:
            self._floor = self.clock.last
