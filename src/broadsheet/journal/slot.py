"""Slot: a journal's place at its node, from its creation to the end of its deletion.

OPENING --opened--> OPEN --its loss is accepted--> OPENING. The broker moves it; callers wait in its line.
"""

import asyncio

from broadsheet.base.time import Instant
from broadsheet.journal.housekeeping import Housekeeping
from broadsheet.journal.messages import JournalInfo
from broadsheet.journal.replica import Replica
from broadsheet.runtime.scope import OneByOne
from broadsheet.runtime.waiting_line import WaitingLine


class Slot:
    """A journal that this node serves or is opening."""

    def __init__(self, info: JournalInfo) -> None:
        self.info = info
        self.replica: Replica | None
        self.housekeeping: Housekeeping | None = None
        self.callers = WaitingLine()
        """Those that wait until the journal is open."""
        self.begin_opening()
        self.attempt = asyncio.Lock()
        """Held while the journal is being opened, so that a deletion waits for the end of that."""
        self.altering = asyncio.Lock()
        """Held by the one caller whose change of the spec is made, or is the journal's next."""
        self.deleting = OneByOne()
        """Has the deletions of the journal marked one at a time, so that one of a crowd reads its spec."""
        self.tasks: dict[asyncio.Task[None], None] = {}
        """The background work of its replicas, also of one that was closed: a deletion waits for its end."""
        self.settled: dict[bytes, Instant] = {}  # Settled attempts, for the replica of a reopened journal.
        self.opening_error = ""  # Why the journal is not open yet.

    def begin_opening(self) -> None:
        """Have callers wait from now on."""
        self.replica = None
        self.opened: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        self.opened.add_done_callback(lambda _opened: self.callers.wake())
