"""Limits of the wire.

One frozen struct, agreed in the greeting (the smaller of both sides where it concerns both).

Units are in the names; durations are nanoseconds. Source: access.8.
"""

import msgspec

from broadsheet.base.time import MILLISECOND, SECOND, Duration


class WireLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one side of a connection allows."""

    frame_bytes_max: int = 4 << 20
    """A frame after its header: body and payload. Checked before anything is allocated."""
    body_bytes_max: int = 1 << 20
    """The MessagePack body of a frame."""
    greeting_bytes_max: int = 16 << 10
    """A frame of a peer that has not been greeted."""
    streams_max: int = 1024
    """Streams (unary calls included) that a peer may have open at once."""
    window_bytes: int = 9 << 20
    """What a peer may send on one stream before we have consumed it.

    Also unanswered bytes of a RUN stream.
    """
    run_count_max: int = 65_536
    """Records in one run frame."""
    in_flight_bytes_max: int = 32 << 20
    """Request bytes of one connection that are being worked on; above, we stop reading."""
    node_in_flight_bytes_max: int = 256 << 20
    """The same of all callers together. One alone may take half, n of them a (n+1)th each."""
    reserve_bytes: int = 16 << 20
    """Of these, what only peers and operators may take: tokens with REPLICATE or ADMIN."""
    floor_bytes: int = 64 << 10
    """A caller that has no more in flight than this is always read, however much the others have."""
    node_tasks_max: int = 16_384
    """Requests that a server works on as tasks; shared among callers as bytes are, with 64 for each."""
    node_runs_max: int = 65_536
    """RUN streams that a server has open; shared in the same way."""
    turn_units_max: int = 1024
    """Work on one connection in one turn of the loop, in units of about a microsecond; the rest waits."""
    turn_time_max: Duration = Duration(3 * MILLISECOND)
    """Work on all connections of a server in one turn of the loop; the rest waits."""
    frame_timeout: Duration = Duration(60 * SECOND)
    """By when a frame that has begun must be whole."""
    send_buffer_bytes_max: int = 32 << 20
    """Bytes queued to a peer that does not read them; above, it is disconnected. A caller counts only what
    it adds to a socket that was full before: its requests wait for the socket."""
    node_unread_bytes_max: int = 256 << 20
    """The same of all peers together, divided as bytes in flight are; above its share it is disconnected."""
    connections_max: int = 4096
    """Connections of a server that have greeted; above, an idle one of who has most loses its place."""
    connections_per_source_max: int = 256
    """Connections of one remote host; on loopback all processes have one host, so there it tells nothing."""
    ungreeted_max: int = 256
    """Connections that have not yet said who they are; above, the oldest silent one loses its place."""
    first_byte_timeout: Duration = Duration(5 * SECOND)
    """How long a peer may be silent at the start."""
    greeting_timeout: Duration = Duration(10 * SECOND)
    """By when the greeting must be complete."""
    write_timeout: Duration = Duration(10 * SECOND)
    """How long a peer may take no byte of what is queued to it."""
    keepalive_interval: Duration = Duration(10 * SECOND)
    """Silence after which we ask whether the peer is there."""
    keepalive_misses_max: int = 3
    """Unanswered questions, one per interval, after which it is not."""
    dial_timeout: Duration = Duration(5 * SECOND)
    """How long a client waits for a connection and its greeting."""
    drain_timeout: Duration = Duration(10 * SECOND)
    """How long streams may take to end once a server goes away."""
    call_timeout: Duration = Duration(30 * SECOND)
    """The deadline of a unary call that names none."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
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
