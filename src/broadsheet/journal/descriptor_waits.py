"""Descriptor waits: effects of one replica that wait, in order and for a bounded time, for a free descriptor.

Counts are effects of the pipeline. While one effect waits, all later ones wait behind it, so that appends
keep their order. Nothing of a waiting effect was written, so a refusal is certain. This module opens no
files: it tries the effects again when `SpoolDisk` says that a descriptor may be free. Source: journals.20;
ADR 0126.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.base.time import SECOND, Duration
from broadsheet.journal.context import Context
from broadsheet.journal.core.pipeline_events import Grant, Persist, Roll
from broadsheet.ports import File, Timer

Effect = Persist | Grant | Roll
"""An effect that may need a spool file that is not open."""

AT_ONCE: Final = Duration(0)


def more_files(wait: Duration) -> str:
    """The remedy if no descriptor was free for `wait`."""
    return (
        f"no file could be opened for it within journals.descriptor_wait, {wait / SECOND:g} s: raise the"
        " limit of open files (ulimit -n)"
    )


class Awaiting:
    """The effects of one replica that wait for a free descriptor."""

    def __init__(
        self,
        context: Context,
        *,
        perform: Callable[[Effect], bool],
        refuse: Callable[[Effect, str], None],
    ) -> None:
        """Start with no effect that waits for a descriptor.

        Args:
            perform: performs an effect; False: no descriptor is free now, and nothing changed.
            refuse: refuses an effect that waited too long, with the reason.
        """
        self._context, self._perform, self._refuse = context, perform, refuse
        self._spools = context.spools
        self._waiting: deque[Effect] = deque()
        self._patience: Timer | None = None

    def perform(self, effect: Effect, file: File) -> None:
        """Perform a replica's `effect` now, or when its turn for a descriptor comes.

        Args:
            file: the file of the open spool.
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
        """Forget the waiting effects, because the pipeline takes them back; returns them in order."""
        waiting, self._waiting = list(self._waiting), deque()
        self._rest()
        return waiting

    def _try_again(self) -> bool:
        """Perform the effects that wait for a descriptor as far as possible; whether none is left."""
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
        self._patience = None
        if not self._waiting:
            return
        effect = self._waiting.popleft()
        self._refuse(
            effect,
            f"{more_files(self._context.config.descriptor_wait)}, or append to fewer journals at a time",
        )
        # A refused roll does not clear the effects behind it. If all are gone, those that the refusal itself
        # has caused have begun a wait of their own.
        if self._waiting and self._patience is None:
            self._patience = self._context.timers.call_after(AT_ONCE, self._give_up)
