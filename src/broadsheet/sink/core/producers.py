"""Which producer id the tasks of one worker process use.

A producer id belongs to one fence and one worker process. It is used again only where PLAN lists it with
the clock of this process's last intents: else those intents were not committed, or their acknowledgement
may still arrive and would roll back what the producer sends next.
    free --take--> in a task (held by nobody) --keep--> held until the next take
A task that fails keeps nothing.
Source: pipelines.8.
"""

from collections.abc import Callable, Sequence

from broadsheet.base.marks import hit
from broadsheet.message.publisher import Intent, Publisher
from broadsheet.message.uuid import NO_CLOCK, ProducerId
from broadsheet.sink.core.records import BatchPlan


class Held:
    """The publisher of a worker process, between two tasks."""

    def __init__(self) -> None:
        self.process = 0
        self.fence = ""
        self.publisher: Publisher | None = None
        self.acknowledged = NO_CLOCK
        """The last clock of its intents; equal to what PLAN lists where they were committed."""

    def take(self, plan: BatchPlan, *, process: int, new_producer: Callable[[], ProducerId]) -> Publisher:
        """The publisher for the next task, held no more: the last one where PLAN allows, else a new one.

        Args:
            process: who asks. A forked child has a copy of what its parent held, and must not use it.
        """
        old, self.publisher = self.publisher, None
        if (
            old is not None
            and (self.process, self.fence) == (process, plan.fence)
            and plan.may_use(old.producer, self.acknowledged)
        ):
            hit("sink.producer_used_again")
            return old
        return Publisher(new_producer())

    def keep(self, plan: BatchPlan, publisher: Publisher, intents: Sequence[Intent], *, process: int) -> None:
        """Hold it until the next task, whose PLAN will know whether these intents were committed."""
        self.process, self.fence, self.publisher = process, plan.fence, publisher
        self.acknowledged = max((intent.clock for intent in intents), default=NO_CLOCK)
