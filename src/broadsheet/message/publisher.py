"""The publisher: stamps messages of one producer, and says which acknowledgements commit them.

Nothing published --`pending`--> journals with an open span --`intents`--> none; the intents are stored
before they are appended, and
appended again after a fault. One publisher has one producer id, and nobody else ever has it.
Stamping and appending of one journal must happen in the same order: stamp only when the append's place in
the journal's queue is
certain, otherwise two appends overtake each other and the later one is dropped as a duplicate.
It draws no entropy, reads no clock, appends nothing. Source: paper "Message UUIDs";
pipelines.8.
"""

import msgspec

from broadsheet.base.time import WallTime
from broadsheet.base.types import JournalName, Revision
from broadsheet.message.clock import TICK, ProducerClock
from broadsheet.message.framing import Framing, framed
from broadsheet.message.uuid import NO_CLOCK, Clock, Flag, ProducerId, pack


class Intent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An acknowledgement that is decided, and not necessarily appended yet."""

    journal: JournalName
    framing: Framing
    producer: ProducerId
    clock: Clock
    create_revision: Revision = Revision(0)
    """Which journal of that name has the messages; 0: whichever has the name."""

    def content(self) -> bytes:
        """The bytes to append."""
        return framed(self.framing, pack(self.producer, self.clock, Flag.ACK), b"")


class Publisher:
    """Stamp and frame messages."""

    def __init__(self, producer: ProducerId, start: Clock = NO_CLOCK) -> None:
        self.producer = producer
        self.clock = ProducerClock(start)
        self.open: dict[JournalName, tuple[Framing, Clock, Revision]] = {}

    def committed(self, framing: Framing, body: bytes, wall: WallTime) -> bytes:
        """One message that commits by itself."""
        self.clock.update(wall)
        return framed(framing, pack(self.producer, self.clock.tick(), Flag.OUTSIDE), body)

    def pending(self, journal: JournalName, framing: Framing, body: bytes, wall: WallTime) -> bytes:
        """One message of `journal` that commits with the next intents."""
        self.clock.update(wall)
        clock = self.clock.tick()
        content = framed(framing, pack(self.producer, clock, Flag.CONTINUE), body)
        self.open[journal] = (framing, clock, Revision(0))
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
            create_revision: of the journal that gets them; 0: whichever has the name.
        """
        self.clock.update(wall)
        first = self.clock.tick(count)
        self.open[journal] = (framing, Clock(first + (count - 1) * TICK), create_revision)
        return first

    def intents(self) -> list[Intent]:
        """One acknowledgement per journal published to since the last call, in the order of the first."""
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
