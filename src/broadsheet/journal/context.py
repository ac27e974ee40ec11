"""Context: the ports, the settings and the resources that all journals of this node share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from broadsheet.base.types import Epoch, Incarnation, NodeId, Revision
from broadsheet.journal.block_cache import Budget
from broadsheet.journal.config import CACHE_BYTES_MIN, JournalsConfig
from broadsheet.journal.counts import Counts
from broadsheet.journal.fragments import FragmentStore
from broadsheet.journal.index_memory import IndexMemory
from broadsheet.journal.spool_disk import SpoolDisk
from broadsheet.journal.staging_area import StagingArea
from broadsheet.journal.store_health import StoreTimes, WatchedStore
from broadsheet.journal.troubles import Troubles
from broadsheet.keyspace.port import Keyspace
from broadsheet.observe.logs import Logger
from broadsheet.observe.story import Story
from broadsheet.ports import Disk, ObjectStore, Random, Time, Timers
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.runtime.slices import Slices
from broadsheet.wal.log import Log

CLOSED_PER_TURN: Final = 4
"""Fragments that the clock closes in one turn of the loop: each makes a file, which takes 0.1 ms and more."""


class Context:
    """Ports and settings of the journals role."""

    def __init__(
        self,
        *,
        node: NodeId,
        incarnation: Incarnation,
        config: JournalsConfig,
        disk: Disk,
        log: Log,
        keyspace: Keyspace,
        time: Time,
        timers: Timers,
        random: Random,
        objects: Callable[[str], ObjectStore],
        scope: Scope,
        crash: Crash,
        open_files_max: int,
        logger: Logger | None = None,
    ) -> None:
        """Take the journals' ports, and make the shared staging area, spool files and cache.

        Args:
            incarnation: of this node's journal data; a wiped directory has another one.
        """
        self.node, self.incarnation, self.config = node, incarnation, config
        self.disk, self.log, self.keyspace = disk, log, keyspace
        self.time, self.timers, self.random = time, timers, random
        self.scope, self.crash = scope, crash
        self.staging = StagingArea(disk, config, spawn=self._spawn_removal)
        self.placing = asyncio.Lock()
        """Held for each slice that a streamed append copies to its tail: one slice in a turn of the loop,
        however many appends become whole at once."""
        self._objects, self._logger = objects, logger
        self._stores: dict[str, FragmentStore] = {}
        self.watched: list[WatchedStore] = []
        """The stores themselves, each with what it answered lately."""
        self.store_times = StoreTimes()
        self._uploading: dict[FragmentStore, asyncio.Semaphore] = {}
        self.spools = SpoolDisk(
            disk,
            open_max=min(config.spool_files_max, max(1, open_files_max // 4)),
            busy_max=max(1, open_files_max // 2),
            spawn=lambda work: scope.spawn(work, name="spools"),
            crash=crash,
        )
        self.mending = asyncio.Lock()
        """Held while a spool file is mended from the log."""
        self.reporting = asyncio.Lock()
        """Held while a journal's loss is looked for: its files are summed on the loop, a MiB in each turn."""
        self._budget = Budget(config.cache_bytes_max)
        store_count = len(dict.fromkeys((config.store, *config.stores)))
        self._share_bytes = max(CACHE_BYTES_MIN, config.cache_bytes_max // store_count)
        """How much of the budget calls to one store may hold: one that hangs leaves the others theirs."""
        self.is_leaving = False
        """Whether the node has begun to close: a reader that waits for more is sent away."""
        self.wakes: dict[object, Callable[[], None]] = {}
        """What lets each read that waits for more look again."""
        self.troubles, self.counts = Troubles(), Counts()
        self.index_memory = IndexMemory(config.index_producers_max)
        self.closing = Slices(CLOSED_PER_TURN, is_prompt=False)
        """Journals whose clocks have struck: the clocks of all strike at once."""

    def _spawn_removal(self, work: Coroutine[Any, Any, None]) -> None:
        if self.scope.is_closed:
            work.close()  # The next start removes what is staged.
        else:
            self.scope.spawn(work, name="staging")

    def store(self, url: str) -> FragmentStore:
        """The fragment store at `url`, which a spec names; the node's own if it is empty. Made once.

        Raises:
            ConfigError: the URL is of a kind that this node cannot reach.
        """
        resolved = url or self.config.store
        if resolved not in self._stores:
            watched = WatchedStore(self._objects(resolved), self.time, self.store_times, url=resolved)
            self.watched.append(watched)
            self._stores[resolved] = FragmentStore(
                watched,
                self.disk.run,
                budget=self._budget,
                share_bytes=self._share_bytes,
                tell=self._tell_damage,
            )
        return self._stores[resolved]

    def health(self, url: str) -> WatchedStore:
        """What the store at `url` has answered lately; raises as `store`."""
        self.store(url)
        resolved = url or self.config.store
        return next(each for each in self.watched if each.url == resolved)

    @property
    def damaged(self) -> dict[str, str]:
        """The stored fragments that readers were refused, of all stores, each with the error."""
        return {name: why for store in self._stores.values() for name, why in store.damaged.items()}

    def _tell_damage(self, name: str, why: str) -> None:
        if self._logger is not None:
            self._logger.error("fragment.damaged", fragment=name, reason=why)

    def uploading_to(self, store: FragmentStore) -> asyncio.Semaphore:
        """The bound of uploads to one store: each has its own, so that a store that hangs blocks no other."""
        return self._uploading.setdefault(store, asyncio.Semaphore(self.config.uploads_max))

    def leave(self) -> None:
        """End the reads that wait for more, because the node begins to close; what else was begun may end."""
        self.is_leaving = True
        for wake in dict.fromkeys(self.wakes.values()):
            wake()

    def close(self) -> None:
        """Cancel the calls to stores that are still under way."""
        for store in self._stores.values():
            store.close()
        for watched in self.watched:
            watched.close()

    def crash_of_host(self, error: BaseException, _story: Story) -> None:
        """End the node after an assertion of a machine."""
        self.crash(error)

    @staticmethod
    def revision_of(epoch: Epoch) -> Revision:
        """The mod revision of the epoch key in that epoch (journals.1)."""
        return Revision(epoch)
