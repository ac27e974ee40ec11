"""Producers: decides which producer id the tasks of one worker process use.

A producer id belongs to one fence and one worker process. It is used again only if PLAN lists it with the
clock of this process's last intents. If PLAN does not, then those intents were not committed, or their
acknowledgement may still arrive and would roll back what the producer sends next.
    held --take--> in a task, held by nobody --keep--> held
A task that fails does not call `keep`, so its producer is never used again. Messages that commit by
themselves have no intents, so `OutsideStamper` asks no PLAN. This module draws no entropy: the caller gives
new ids. Source: pipelines.8.
"""

from collections.abc import Callable, Sequence

from broadsheet.base.marks import hit
from broadsheet.message.stamper import Intent, Stamper
from broadsheet.message.uuid import NO_CLOCK, ProducerId
from broadsheet.sink.core.records import BatchPlan


class HeldStamper:
    """Holds the stamper of a worker process between two tasks."""

    def __init__(self) -> None:
        self.process = 0
        self.fence = ""
        self.stamper: Stamper | None = None
        self.acknowledged = NO_CLOCK
        """The greatest clock of the last intents. PLAN lists this clock if they were committed."""

    def take(self, plan: BatchPlan, *, process: int, new_producer: Callable[[], ProducerId]) -> Stamper:
        """The stamper for the next task: the held one if PLAN allows it, otherwise a new one.

        Afterwards none is held, so that a task that fails leaves nothing behind.

        Args:
            process: the caller's process id. A forked child has a copy of its parent's stamper; if both
                used it, readers would drop messages of one as duplicates of the other's.
        """
        old, self.stamper = self.stamper, None
        if (
            old is not None
            and (self.process, self.fence) == (process, plan.fence)
            and plan.may_use(old.producer, self.acknowledged)
        ):
            hit("sink.producer_used_again")
            return old
        return Stamper(new_producer())

    def keep(self, plan: BatchPlan, stamper: Stamper, intents: Sequence[Intent], *, process: int) -> None:
        """Hold `stamper` until the next task, whose PLAN tells whether these intents were committed."""
        self.process, self.fence, self.stamper = process, plan.fence, stamper
        if intents:  # A task without rows changes nothing of what was committed.
            self.acknowledged = max(intent.clock for intent in intents)


class OutsideStamper:
    """Holds, between two tasks of a worker process, the stamper of messages that commit by themselves.

    A node remembers each producer of a journal for a day and a GiB at least. A new one for each task would
    be more than a producer index holds.
    """

    def __init__(self) -> None:
        self.process = 0
        self.stamper: Stamper | None = None

    def take(self, *, process: int, new_producer: Callable[[], ProducerId]) -> Stamper:
        """The held stamper, or a new one. Afterwards none is held, so a task that fails leaves none."""
        old, self.stamper = self.stamper, None
        return old if old is not None and self.process == process else Stamper(new_producer())

    def keep(self, stamper: Stamper, *, process: int) -> None:
        """Hold `stamper`, all of whose messages were acknowledged by their journals."""
        self.process, self.stamper = process, stamper
