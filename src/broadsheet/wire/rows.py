"""Rows.

Many unary calls that are alike, served together: one look at who calls, one frame's worth of columns
back.

A matter of speed only: a call that differs, fails or takes its time leaves the row and is served like any
other.
Source: reference/performance.md F; ADR 0044.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

import msgspec

from broadsheet.base.time import Instant
from broadsheet.base.types import Buffer
from broadsheet.wire import frame as f
from broadsheet.wire.columns import has_one_body
from broadsheet.wire.events import CallReceived, CallsReceived
from broadsheet.wire.method import Reply, Shape

if TYPE_CHECKING:
    from broadsheet.wire.serving import ServerConnection


class Rows:
    """Replies of one event, rendered together while they have one body and payloads of one length."""

    __slots__ = ("_body", "_connection", "_encoded", "_payload_bytes", "_payloads", "_streams")

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection = connection
        self._body: msgspec.Struct | None = None
        self._encoded = b""
        self._payload_bytes = 0
        self._streams: list[int] = []
        self._payloads: list[Buffer] = []

    def form(self) -> tuple[msgspec.Struct | None, Callable[[int], None], Callable[[Buffer], None], int]:
        """The body that replies have now, how to add one, and the length of its payload."""
        return self._body, self._streams.append, self._payloads.append, self._payload_bytes

    def add(self, stream: int, reply: Reply) -> None:
        """Answer one call, in whatever form."""
        payload = reply.payload
        part = payload[0] if len(payload) == 1 else b"".join(payload)
        if reply.body is not self._body or len(part) != self._payload_bytes:
            self.flush()
            self._body, self._encoded, self._payload_bytes = reply.body, f.encode(reply.body), len(part)
        self._streams.append(stream)
        self._payloads.append(part)

    def flush(self) -> None:
        """Send what was added."""
        streams, payloads = self._streams, self._payloads
        if streams:
            self._streams, self._payloads = [], []
            self._connection.send_rows(streams, self._encoded, payloads, self._payload_bytes)


def serve_calls(connection: "ServerConnection", event: CallsReceived, now: Instant) -> None:
    """Many calls that are alike: authorized once where their requests are the same, answered by column."""
    view, stride, body = event.view, event.stride, event.body_bytes
    streams: list[int] = event.streams.tolist()
    if not has_one_body(view, stride, len(streams), body):
        _one_by_one(connection, event, streams, now)
        return
    try:
        method, call, request = connection.admit(
            event.method, Shape.UNARY, view[24 : 16 + body], event.timeout_ms, now
        )
    except Exception as error:  # noqa: BLE001 - the RPC edge (STYLE 7).
        for stream in streams:
            if connection.base.begin_call(stream):
                connection.refuse(stream, error)
        return
    connection.server.counts.calls += len(streams) - 1
    handler, rows = method.handler, Rows(connection)
    begin, stop = 16 + body, stride
    same, add_stream, add_row, row = rows.form()
    for stream in streams:
        try:
            result = handler(call, request, view[begin:stop])
            if type(result) is Reply:
                payload = result.payload
                if result.body is same and len(payload) == 1 and len(payload[0]) == row:
                    add_stream(stream)  # The usual case, inline: the form of the reply before it.
                    add_row(payload[0])
                else:
                    rows.add(stream, result)
                    same, add_stream, add_row, row = rows.form()
            elif connection.base.begin_call(stream):
                connection.start(stream, connection.unary, result, call, stride)
            elif isinstance(result, Coroutine):
                result.close()
        except Exception as error:  # noqa: BLE001 - the RPC edge (STYLE 7).
            if connection.base.begin_call(stream):
                connection.refuse(stream, error)
        begin += stride
        stop += stride
    rows.flush()


def _one_by_one(
    connection: "ServerConnection", event: CallsReceived, streams: list[int], now: Instant
) -> None:
    view, stride, body = event.view, event.stride, event.body_bytes
    for number, stream in enumerate(streams):
        at = number * stride
        request, payload = view[at + 24 : at + 16 + body], view[at + 16 + body : at + stride]
        if connection.base.begin_call(stream):
            connection.on_call(CallReceived(stream, event.method, event.timeout_ms, request, payload), now)
