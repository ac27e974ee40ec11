"""Connection protocol: the side of a connection at the socket, as an asyncio protocol.

It owns the receive buffer, the transport and one timer; it feeds a `WireConnection`, and writes once a turn.
Server and client interpret the events in subclasses. A peer that does not read is disconnected with a reason:
after `write_timeout` without progress, or when more than `send_buffer_bytes_max` bytes wait. Source: wire.1.
"""

from collections.abc import Callable
from typing import Final, Protocol

from broadsheet.base.machine import Event
from broadsheet.base.marks import hit
from broadsheet.base.time import Duration, Instant, after
from broadsheet.base.types import Buffer
from broadsheet.ports import Network, Random, Time, Timer, Timers, Transport
from broadsheet.runtime.checking import checker
from broadsheet.runtime.scope import Crash
from broadsheet.runtime.turn import Rank, Turn
from broadsheet.wire.connection_machine import UNBOUNDED, Phase, WireConnection
from broadsheet.wire.inbound import Inbound
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.slab import MARGIN_BYTES, SMALL_BYTES, SlabPool

JOINED_BUFFER_BYTES_MAX: Final = 16 << 10
"""Neighbouring buffers up to this size are joined before they are written; larger ones go as they are."""

FLUSH_BYTES: Final = 1 << 20
"""Messages of streams that wait for the end of a turn; with more they leave at once."""


class WirePorts(Protocol):
    """The ports that the wire needs; `runtime.role.Ports` has them all."""

    @property
    def time(self) -> Time:
        """The clocks."""
        ...

    @property
    def timers(self) -> Timers:
        """Calls on the loop."""
        ...

    @property
    def network(self) -> Network:
        """Connections."""
        ...

    @property
    def random(self) -> Callable[[str], Random]:
        """Entropy by purpose."""
        ...

    @property
    def turn(self) -> Turn:
        """The end of the loop's turn."""
        ...

    @property
    def crash(self) -> Crash:
        """Ends the node."""
        ...


class ConnectionProtocol:
    """A `ByteProtocol` around a connection's state."""

    may_burst = False
    """Whether one turn may queue more than `send_buffer_bytes_max` to a socket that was not full before. A
    client may: these are bytes of our own callers, and the peer had no time yet to read them."""

    def __init__(self, machine: WireConnection, ports: WirePorts, pool: SlabPool) -> None:
        self.machine, self.ports = machine, ports
        self.limits: WireLimits = machine.limits
        self.transport: Transport | None = None
        self.is_lost = False
        self.is_write_paused = False
        self.reason = ""
        """Why we ended the connection; empty if we did not."""
        self.written_bytes = 0
        """Bytes passed to the transport since the connection began."""
        self._inbound = Inbound(pool)
        self.keep: Callable[[memoryview], memoryview] = self._inbound.keep
        """A view of received bytes, or a copy of it, for use after this read."""
        self.release_buffer = self._inbound.release_buffer
        """Gives the receive buffer back if it is empty. Not to be called within a read."""
        self._check = checker(machine.check)
        self._is_dirty = False
        self._queued_bytes = 0
        self._is_greeting = True
        self._timer: Timer | None = None
        self._timer_at: Instant | None = None
        self._drained_bytes, self._drained_at = 0, Instant(0)

    # ------------------------------------------------------------------ for the server and the client

    def on_events(self, events: list[Event], now: Instant) -> None:
        """Process the events of the connection machine, in order."""
        raise NotImplementedError  # Each side of a connection has its own.

    def on_writable(self) -> None:
        """Go on sending: the socket takes bytes again."""
        raise NotImplementedError  # Each side of a connection has its own.

    def on_lost(self) -> None:
        """Clean up: the connection is gone."""
        raise NotImplementedError  # Each side of a connection has its own.

    def on_flushed(self) -> None:
        """Hook: everything queued so far was passed to the transport."""

    def next_deadline(self) -> Instant | None:
        """A deadline besides the connection's own."""
        return None

    def on_deadline(self, now: Instant) -> None:
        """Act on `next_deadline` if it has come; the timer may also fire for other reasons."""

    def mark_dirty(self) -> None:
        """Write the queued bytes at the end of this turn."""
        if not self._is_dirty:
            self._is_dirty = True
            self.ports.turn.at_end(Rank.WIRE, self.flush)

    def queued(self, size: int) -> None:
        """Count `size` more queued bytes of a connection; if there are many, write all of them now.

        Only a write shows whether the socket is full. Without it, streams that each fill a window in one turn
        would queue more than a peer may leave unread.
        """
        self._queued_bytes += size
        if self._queued_bytes < FLUSH_BYTES:
            self.mark_dirty()
        else:
            self.flush()

    def keep_small(self, view: memoryview) -> memoryview:
        """As `keep`, for the payload of a request that runs as a task."""
        return self._inbound.keep(view, copy_bytes_max=SMALL_BYTES - 1)

    def end(self, reason: str) -> None:
        """Close when everything queued is sent."""
        self.reason = self.reason or reason
        self.flush()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
            self._drained_at, self._drained_bytes = self.ports.time.now(), self.drained_bytes()
            self.arm(self._drained_at)

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        return not self.machine.streams

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self.transport is None or self.transport.is_closing()

    def end_if_drained(self) -> None:
        """Close if one side leaves, and every request is answered. The other side may never do it."""
        if self.machine.phase is Phase.LEAVING and self.is_idle and not self.is_closing:
            hit("wire.drained")
            self.end("drained")

    def abort(self, reason: str) -> None:
        """Close at once."""
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.abort()

    def flush(self) -> None:
        """Pass everything that a connection queued to the transport in one write."""
        self._is_dirty, self._queued_bytes = False, 0
        out = self.machine.out
        if not out:
            return
        self.machine.out = []
        transport = self.transport
        if transport is None or self.is_lost or transport.is_closing():
            return
        pieces, was_full = _joined(out), self.is_write_paused
        self.written_bytes += sum(map(len, pieces))
        if len(pieces) == 1:
            transport.write(pieces[0])
        else:
            transport.writelines(pieces)
        self.on_flushed()  # Even if we give up on the peer below: it may have the first of these bytes.
        is_evidence = was_full or not self.may_burst
        if is_evidence and transport.get_write_buffer_size() > self.limits.send_buffer_bytes_max:
            self.abort(f"slow peer: it has left more than {self.limits.send_buffer_bytes_max} bytes unread")

    # ------------------------------------------------------------------ ByteProtocol

    def connection_made(self, transport: Transport) -> None:
        """Take the transport of the new connection."""
        self.transport = transport
        self.arm(self.ports.time.now())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        inbound = self._inbound
        if inbound.read == inbound.written:
            return inbound.room()
        return inbound.remainder(self.machine.wanted(inbound.slab, inbound.read, inbound.written))

    def buffer_updated(self, nbytes: int) -> None:
        """Count received bytes, and process them."""
        self._inbound.written += nbytes
        self.on_received()

    def on_received(self) -> None:
        """Process whole frames of the received bytes."""
        self.receive(self.ports.time.now())
        self.end_of_read()

    def receive(self, now: Instant, units: int = UNBOUNDED) -> int:
        """Take whole wire frames until they cost `units`; the units that they cost."""
        inbound, machine = self._inbound, self.machine
        inbound.read = machine.receive(
            inbound.slab, inbound.view, inbound.read, inbound.written, now, units=units
        )
        if machine.events:
            self.take_events(now)
        return machine.units

    def end_of_read(self) -> None:
        """After frames were taken: have answers written, and set the timer if the peer has greeted.

        The last stream of a connection that takes no more of them may have ended.
        """
        machine = self.machine
        if self._check is not None:
            self._checked(self._check)
        if machine.out:
            self.mark_dirty()
        if self._is_greeting:
            self._is_greeting = machine.phase is Phase.GREETING
            self.arm(self.ports.time.now())  # Its deadline changed with its phase, or with the first byte.
        self.end_if_drained()

    def take_events(self, now: Instant) -> None:
        """Pass the events so far to `on_events`."""
        events, self.machine.events = self.machine.events, []
        try:
            self.on_events(events, now)
        except AssertionError as error:
            self.ports.crash(error)
        if self.machine.phase is Phase.BROKEN:
            self.end(self.reason)

    def _checked(self, check: Callable[[], None]) -> None:
        try:
            check()
        except AssertionError as error:
            self.ports.crash(error)

    def eof_received(self) -> bool | None:
        """Close: a peer that sends no more cannot send requests either."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up: the connection is gone."""
        self.is_lost = True
        self.reason = self.reason or (
            f"connection lost: {exc}" if exc is not None else "the peer closed the connection"
        )
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.machine.phase = Phase.BROKEN
        self.machine.streams.clear()
        self.machine.out = []
        self.on_lost()
        self._inbound.close()

    def pause_writing(self) -> None:
        """Note that the send buffer is above its high mark."""
        self.is_write_paused = True
        self._drained_at = self.ports.time.now()
        self._drained_bytes = self.drained_bytes()
        self.arm(self._drained_at)

    def resume_writing(self) -> None:
        """Go on sending: the send buffer fell below its low mark."""
        self.is_write_paused = False
        self.on_writable()

    # ------------------------------------------------------------------ time

    def arm(self, now: Instant) -> None:
        """Set the connection's one timer to the next deadline, unless it fires earlier anyway."""
        if self.is_lost:
            return
        deadlines = [self.machine.deadline(), self.next_deadline()]
        if self.is_write_paused or (self.transport is not None and self.transport.is_closing()):
            deadlines.append(after(self._drained_at, self.limits.write_timeout))
        due = [each for each in deadlines if each is not None]
        if not due or (self._timer_at is not None and self._timer_at <= min(due)):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = min(due)
        self._timer = self.ports.timers.call_after(Duration(max(0, self._timer_at - now)), self._fire)

    def _fire(self) -> None:
        self._timer = self._timer_at = None
        if self.is_lost:
            return
        now = self.ports.time.now()
        is_waiting = self.is_write_paused or (self.transport is not None and self.transport.is_closing())
        if is_waiting and self._is_stuck(now):
            self.abort("slow peer: it reads none of the bytes that wait for it")
            return
        misses = self.machine.misses
        self.machine.tick(now)
        if self.machine.misses > misses:
            self._inbound.shrink()
        self.on_deadline(now)
        if self.machine.events:
            self.take_events(now)
        if self.machine.out:
            self.flush()
        self.arm(now)

    def _is_stuck(self, now: Instant) -> bool:
        drained = self.drained_bytes()
        if drained > self._drained_bytes:
            self._drained_bytes, self._drained_at = drained, now
        return now >= self._drained_at + self.limits.write_timeout

    def drained_bytes(self) -> int:
        """Bytes that the transport has passed to the socket."""
        waiting = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return self.written_bytes - waiting


def _joined(out: list[Buffer]) -> list[Buffer]:
    """`out` with neighbouring small buffers joined."""
    if len(out) == 1:
        return out
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    for piece in out:
        if len(piece) <= JOINED_BUFFER_BYTES_MAX:
            small.append(piece)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(piece)
    if small:
        pieces.append(b"".join(small))
    return pieces


def large_slab_bytes(limits: WireLimits) -> int:
    """The size of a slab that holds the largest frame and the beginning of the next."""
    return limits.frame_bytes_max + MARGIN_BYTES
