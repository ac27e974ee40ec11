"""Descriptor waits: what one replica cannot do for want of an open file, in its order, for a bounded time.

Counts are effects of the pipeline. While anything waits, what comes later waits behind it: appends keep their
order. Nothing of what waits was written, so it may be refused for certain. It does not open files: it asks
again when `SpoolDisk` says that one may be open. Source: journals.20; ADR 0126.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.base.time import Duration
from broadsheet.journal.context import Context
from broadsheet.journal.core.pipeline_events import Grant, Persist, Roll
from broadsheet.journal.remedies import more_files
from broadsheet.journal.spool_disk import SpoolDisk
from broadsheet.ports import File, Timer

Effect = Persist | Grant | Roll
"""What may need a spool file that is not open."""

AT_ONCE: Final = Duration(0)


class Awaiting:
    """Effects of one replica that wait for a file that may be opened."""

    def __init__(
        self,
        context: Context,
        *,
        perform: Callable[[Effect], bool],
        refuse: Callable[[Effect, str], None],
    ) -> None:
        """Nothing waits yet.

        Args:
            perform: False where no file can be opened for it now, and nothing changed.
            refuse: of one that waited too long, with the reason.
        """
        self._context, self._perform, self._refuse = context, perform, refuse
        self._waiting: deque[Effect] = deque()
        self._patience: Timer | None = None

    @property
    def _spools(self) -> SpoolDisk:
        return self._context.spools

    def perform(self, effect: Effect, file: File) -> None:
        """Perform it now, or in its turn.

        Args:
            file: the open spool's.
        """
        if not self._waiting and not self._spools.must_wait(file) and self._perform(effect):
            return
        self._waiting.append(effect)
        if len(self._waiting) == 1:
            hit("journal.descriptor_awaited")
            wait = self._context.config.descriptor_wait
            self._patience = self._context.timers.call_after(wait, self._give_up)
            self._spools.wait(self._try_again)

    def clear(self) -> Sequence[Effect]:
        """Whoever asked for it takes it back; what it was, in order."""
        waiting, self._waiting = list(self._waiting), deque()
        self._rest()
        return waiting

    def _try_again(self) -> bool:
        """Whether nothing waits any more."""
        while self._waiting:
            effect = self._waiting.popleft()
            if not self._perform(effect):
                self._waiting.appendleft(effect)
                return False
        self._rest()
        return True

    def _rest(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        if not self._waiting:
            return
        effect = self._waiting.popleft()
        is_last = not self._waiting  # What comes of the refusal has a time of its own.
        self._refuse(
            effect,
            f"{more_files(self._context.config.descriptor_wait)}, or append to fewer journals at a time",
        )
        if self._waiting and not is_last:  # Behind a roll, which the next append makes.
            self._patience = self._context.timers.call_after(AT_ONCE, self._give_up)
