"""Backpressure: request bytes that one connection has in flight, and whether it reads on.

Reading stops while too much is worked on, on this connection or in its caller's account, while the account
has no room for the rest of a large frame that has begun, or while the peer does not read its answers; it goes
on at half. Streams of messages are bounded by their windows instead, so that no handler can wait for a frame
that is not read. Source: ADR 0152.
"""

from functools import partial
from typing import TYPE_CHECKING

from broadsheet.base.marks import hit
from broadsheet.base.time import Instant
from broadsheet.wire import frame as f
from broadsheet.wire.account import Holding, Owned
from broadsheet.wire.connection import Phase

if TYPE_CHECKING:
    from broadsheet.wire.serving import ServerConnection


class Backpressure:
    """What one connection has in flight."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection, self._accounts = connection, connection.server.accounts
        self.holding: Holding | None = None
        """None before the greeting: a stranger has nothing in flight."""
        self.in_flight_bytes = 0
        self.is_held = False
        """Whether the connection is not read."""
        self._unread = 0
        """Answers that the peer lets wait."""
        self._expected = self._wanted = 0
        """Of a large torn frame: bytes that are reserved for it; bytes that there was no room for yet."""

    def enter(self, name: str, *, is_control: bool) -> None:
        """The connection has greeted: it counts to the account of `name`."""
        self.holding = self._accounts.enter(name, is_control=is_control, owned=self.owned)

    def owned(self) -> Owned:
        """What the requests of the connection own, counted one by one."""
        connection = self._connection
        works, runs = connection.works, connection.runs
        expected = 0 if connection.is_lost else self._expected
        return Owned(
            used_bytes=works.size + runs.unanswered_bytes + expected,
            queued_bytes=connection.queued_bytes,
            task_count=len(works),
            run_count=len(runs),
            unread_bytes=0 if connection.is_lost else self._unread,
        )

    def forget(self) -> None:
        """The connection is gone: wait for nothing more."""
        self._accounts.forget(self)
        self.expect(0)
        self._unread_is(0)
        if self.holding is not None:
            self._accounts.leave(self.holding)

    def take(self, size: int) -> None:
        """Count request bytes that are being worked on; stop reading where they are too many."""
        assert self.holding is not None, "who asks has greeted"
        self.in_flight_bytes += size
        has_room = self._accounts.take(self.holding, size)
        if self.in_flight_bytes > self._connection.limits.in_flight_bytes_max or not has_room:
            self.hold()
            if not has_room:
                self._accounts.wait(self, self._wanted)

    def give(self, size: int) -> None:
        """Count them no longer."""
        assert self.holding is not None, "who asked had greeted"
        self.in_flight_bytes -= size
        self._accounts.give(self.holding, size)
        if self.is_held:
            self.ease()

    def queued(self, size: int) -> None:
        """Count bytes that wait for a handler (`-size`: fewer): they narrow windows, and hold nobody back."""
        if self.holding is not None:
            self._accounts.queue(self.holding, size)

    def count_unread(self) -> None:
        """Count the answers that the peer lets wait; drop it where others need that memory more."""
        connection, transport = self._connection, self._connection.transport
        if connection.is_lost or transport is None:
            return
        size = transport.get_write_buffer_size() if connection.is_write_paused else 0
        if not self._unread_is(size):
            reason = f"slow peer: it lets {size} bytes wait, and its caller more than its share of the node"
            connection.ports.timers.call_soon(partial(connection.abort, reason))  # The transport may call us.

    def _unread_is(self, size: int) -> bool:
        if self.holding is None or size == self._unread:
            return True
        self._unread = size
        return self._accounts.unread(self.holding, size)

    def may_widen(self, size: int) -> bool:
        """Whether a stream may have `size` bytes of window without a handler that waits for them."""
        is_full = self.in_flight_bytes * 2 > self._connection.limits.in_flight_bytes_max
        return not is_full and self.holding is not None and self._accounts.may_widen(self.holding, size)

    def expect(self, size: int) -> None:
        """Reserve `size` bytes for a large frame that has begun, or stop reading until there is room."""
        if size == self._expected or self.holding is None:
            return
        if self._expected:
            self._accounts.give(self.holding, self._expected)
        self._expected = self._wanted = 0
        if not size:
            return
        if self._accounts.has_room(self.holding, size):
            self._accounts.take(self.holding, size)
            self._expected = size
        else:
            self._wanted = size
            self.hold()
            self._accounts.wait(self, self._wanted)

    def hold(self) -> None:
        """Read no more for now."""
        if not self.is_held and not self._connection.is_lost:
            hit("wire.held")
            self.is_held = True
            self._connection.update_reading()

    def keep_alive(self, now: Instant) -> None:
        """The connection is not read: silence is no sign, and the peer's pings are not heard.

        It is told that somebody is here, or it would give up after `keepalive_misses_max` of them.
        """
        connection = self._connection
        connection.base.heard_at, connection.base.misses = now, 0
        if not connection.is_write_paused and connection.base.phase is not Phase.GREETING:
            connection.base.out.append(f.frame(f.PONG, 0))

    def ease(self) -> None:
        """Read on where nothing speaks against it."""
        connection, holding = self._connection, self.holding
        if not self.is_held or connection.is_lost or connection.is_closing:
            return
        is_reserved = self._expected > 0  # Only by being read does it give back what was reserved for it.
        if holding is not None and not is_reserved and not self._accounts.has_room(holding, self._wanted):
            self._accounts.wait(self, self._wanted)
            return
        if connection.is_write_paused or self.in_flight_bytes * 2 > connection.limits.in_flight_bytes_max:
            return
        if self._wanted:
            wanted, self._wanted = self._wanted, 0
            self.expect(wanted)
        self._accounts.forget(self)
        self.is_held = False
        connection.go_on()

    def check(self) -> None:
        """Assert the invariants; what is owned is the accounts' to check."""
        connection = self._connection
        if not self.is_held or connection.is_lost or connection.is_closing:
            return
        is_full = self.in_flight_bytes * 2 > connection.limits.in_flight_bytes_max
        assert is_full or connection.is_write_paused or self._accounts.is_waiting(self), (
            f"connection {connection.connection} is not read, and nothing will change that"
        )
