"""Witness: what `check` has seen of one accepted connection: whether all that it has will be given back.

A slot belongs to a request that somebody works on; a peer that takes nothing is given up. It changes nothing,
and exists for simulations and tests.
"""

from typing import TYPE_CHECKING, Final

from broadsheet.base.time import SECOND, Duration, after
from broadsheet.wire.connection import Phase

if TYPE_CHECKING:
    from broadsheet.wire.serving import ServerConnection

STALL_SLACK: Final = Duration(2 * SECOND)
"""How late a timer may be: a machine may stand still for a while."""


class Witness:
    """Of one connection."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection = connection
        self._stalled = (-1, connection.base.heard_at)
        """What the peer had taken when it was first seen to take no more, and when."""

    def check(self) -> None:
        """Assert the invariants."""
        self._check_progress()
        self._check_slots()

    def _check_progress(self) -> None:
        """Whoever takes nothing of what waits for it would hold its memory for ever."""
        connection = self._connection
        now, drained = connection.ports.time.now(), connection.drained_bytes()
        is_waiting = connection.is_write_paused or (
            connection.transport is not None and connection.is_closing
        )
        if connection.is_lost or not is_waiting or drained > self._stalled[0]:
            self._stalled = (drained if is_waiting else -1, now)
        patience = Duration(3 * connection.limits.write_timeout + STALL_SLACK)
        assert now <= after(self._stalled[1], patience), (
            f"connection {connection.connection} has taken nothing for {(now - self._stalled[1]) // SECOND} s"
        )

    def _check_slots(self) -> None:
        connection = self._connection
        base, works, runs = connection.base, connection.works, connection.runs
        if connection.has_pending or base.phase is Phase.BROKEN:
            return  # Streams are registered before they are looked at, and forgotten where they never are.
        for stream in base.ending:
            assert stream in works, f"stream {stream} keeps its slot, and nothing runs for it"
        for stream in base.streams:
            assert stream in works or stream in runs, f"stream {stream} is open, and nobody works on it"
        for stream in connection.streams:
            assert stream in works, f"stream {stream} has an end, and no handler"
