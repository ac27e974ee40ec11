"""Limits: what one side of a native connection allows, in one frozen struct.

The greeting agrees on the limits that concern both sides: the smaller value counts. Units are in the names;
durations are in nanoseconds. Source: access.8.
"""

import msgspec

from broadsheet.base.time import MILLISECOND, SECOND, Duration


class WireLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one side of a connection."""

    frame_bytes_max: int = 4 << 20
    """Body and payload of a frame together. Checked before anything is allocated."""
    body_bytes_max: int = 1 << 20
    """The MessagePack body of a frame."""
    greeting_bytes_max: int = 16 << 10
    """A frame from a peer that has not greeted yet."""
    streams_max: int = 1024
    """Streams (unary calls included) that a peer may have open at once."""
    window_bytes: int = 9 << 20
    """Bytes that a peer may send on one stream before we have consumed them.

    For a RUN stream: bytes of records that are not answered yet.
    """
    run_count_max: int = 65_536
    """Records in one run frame."""
    in_flight_bytes_max: int = 32 << 20
    """Request bytes of one connection that are being worked on; above this, the connection is not read."""
    node_in_flight_bytes_max: int = 256 << 20
    """The same for all callers together. One caller alone may take half, n callers a (n+1)th each."""
    reserve_bytes: int = 16 << 20
    """The part of these bytes that only peers and operators may take: tokens with REPLICATE or ADMIN."""
    floor_bytes: int = 64 << 10
    """A caller with no more bytes in flight than this is always read, however many the others have."""
    node_tasks_max: int = 16_384
    """Requests that a server works on as tasks; shared like bytes, with at least 64 for each caller."""
    node_runs_max: int = 65_536
    """RUN streams that a server has open; shared in the same way."""
    turn_units_max: int = 1024
    """Work on one connection in one turn of the loop, in units of about a microsecond; the rest waits."""
    turn_time_max: Duration = Duration(3 * MILLISECOND)
    """Work on all connections of a server in one turn of the loop; the rest waits."""
    frame_timeout: Duration = Duration(60 * SECOND)
    """How long a frame may take from its first byte to its last."""
    crowded_frame_timeout: Duration = Duration(15 * SECOND)
    """The same for a frame of 128 KiB or more while another connection of its caller waits for room: the
    frame's bytes must come at the rate that ends it in this time."""
    send_buffer_bytes_max: int = 32 << 20
    """Bytes queued to a peer that does not read them; above this, the peer is disconnected. A client counts
    only bytes that it adds while the socket is full already: its requests wait for the socket."""
    node_unread_bytes_max: int = 256 << 20
    """The same for all peers together, shared like bytes in flight; above its share, a peer is dropped."""
    connections_max: int = 4096
    """Connections of a server that have greeted; above this, the caller with the most loses an idle one."""
    connections_per_source_max: int = 256
    """Connections of one remote host. Not applied on loopback, where all processes have the same host."""
    ungreeted_max: int = 256
    """Connections that have not greeted yet; above this, the oldest silent one loses its place."""
    first_byte_timeout: Duration = Duration(5 * SECOND)
    """How long a new peer may send nothing."""
    greeting_timeout: Duration = Duration(10 * SECOND)
    """How long a new peer may take until its greeting is complete."""
    write_timeout: Duration = Duration(10 * SECOND)
    """How long a peer may take none of the bytes that are queued to it."""
    keepalive_interval: Duration = Duration(10 * SECOND)
    """After so long a silence we send a PING."""
    keepalive_misses_max: int = 3
    """Unanswered PINGs, one per interval, after which the connection is given up."""
    dial_timeout: Duration = Duration(5 * SECOND)
    """How long a client waits for a connection and its greeting."""
    drain_timeout: Duration = Duration(10 * SECOND)
    """How long open streams may take to end when a server shuts down."""
    call_timeout: Duration = Duration(30 * SECOND)
    """The time limit of a unary call that names none."""

    def __post_init__(self) -> None:
        """Check the bounds of a connection's limits, and the relations between them."""
        for name in self.__struct_fields__:
            if getattr(self, name) < 1 and name != "drain_timeout":
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        frame, window = self.frame_bytes_max, self.window_bytes
        if self.greeting_bytes_max > frame:
            raise ValueError(f"greeting_bytes_max {self.greeting_bytes_max} is above frame_bytes_max {frame}")
        if self.body_bytes_max >= 1 << 24:
            raise ValueError(
                f"body_bytes_max {self.body_bytes_max} does not fit into the 24 bits of a header"
            )
        if frame >= 1 << 31:
            raise ValueError(f"frame_bytes_max {frame} is not below 2**31")
        if window < 2 * frame + 128:
            raise ValueError(f"window_bytes {window} is below 2 * frame_bytes_max + 128 = {2 * frame + 128}")
        if self.in_flight_bytes_max < frame:
            raise ValueError(
                f"in_flight_bytes_max {self.in_flight_bytes_max} is below frame_bytes_max {frame}"
            )
        if self.node_in_flight_bytes_max < 2 * (frame + self.reserve_bytes):
            raise ValueError(
                f"node_in_flight_bytes_max {self.node_in_flight_bytes_max} is below 2 * (frame_bytes_max +"
                f" reserve_bytes) = {2 * (frame + self.reserve_bytes)}: no frame might ever fit"
            )
        if self.keepalive_interval < MILLISECOND:
            raise ValueError(
                f"keepalive_interval is {self.keepalive_interval} ns, and must be a millisecond or more"
            )
