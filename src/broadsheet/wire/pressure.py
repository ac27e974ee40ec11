"""Pressure: request bytes that one connection has in flight, and whether it reads on.

Reading stops while too much is worked on, here or in the whole server, or while the peer does not read
its answers; it goes on at half. Streams of messages are bounded by their windows instead, so that no
handler can wait for a frame that is not read.
"""

from broadsheet.wire.budget import Budget
from broadsheet.wire.shell import Shell


class Pressure:
    """What one connection has in flight."""

    def __init__(self, shell: Shell, budget: Budget) -> None:
        self._shell, self._budget = shell, budget
        self.in_flight_bytes = 0
        self.is_held = False
        """Whether the connection is not read."""

    def forget(self) -> None:
        """The connection is gone: wait for nothing more."""
        self._budget.forget(self.ease)

    def take(self, size: int) -> None:
        """Count request bytes that are being worked on; stop reading where they are too many."""
        shell = self._shell
        self.in_flight_bytes += size
        has_room = self._budget.take(size)
        if self.in_flight_bytes > shell.limits.in_flight_bytes_max or not has_room:
            self.hold()
            if not has_room:
                self._budget.wait(self.ease)

    def give(self, size: int) -> None:
        """Count them no longer."""
        self.in_flight_bytes -= size
        self._budget.give(size)
        if self.is_held:
            self.ease()

    def hold(self) -> None:
        """Read no more for now."""
        shell = self._shell
        if not self.is_held and shell.transport is not None and not shell.is_lost:
            self.is_held = True
            shell.transport.pause_reading()

    def ease(self) -> None:
        """Read on where nothing speaks against it."""
        shell = self._shell
        if not self.is_held or shell.is_lost or shell.transport is None or shell.transport.is_closing():
            return
        budget = self._budget
        if budget.used_bytes > budget.bytes_max:
            budget.wait(self.ease)
            return
        if not shell.is_write_paused and self.in_flight_bytes * 2 <= shell.limits.in_flight_bytes_max:
            self.is_held = False
            shell.base.heard_at = shell.ports.time.now()
            shell.transport.resume_reading()
