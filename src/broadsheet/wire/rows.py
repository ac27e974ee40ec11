"""Rows.

Many unary calls that are alike, served together: one look at who calls, one frame's worth of columns
back.

A matter of speed only: a call that differs, fails or takes its time leaves the row and is served like any
other. Source: ADR 0044.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broadsheet.base.marks import hit
from broadsheet.base.time import Instant
from broadsheet.base.types import Buffer
from broadsheet.wire import frame as f
from broadsheet.wire.columns import U32Column, has_one_body
from broadsheet.wire.events import CallReceived, CallsReceived
from broadsheet.wire.method import Call, Reply, Shape

if TYPE_CHECKING:
    from broadsheet.wire.serving import ServerConnection


class Rows:
    """Replies of one event, rendered together while they have one body and payloads of one length."""

    __slots__ = ("_begin", "_body", "_connection", "_encoded", "_payload_bytes", "_payloads", "_streams")

    def __init__(self, connection: "ServerConnection", streams: U32Column) -> None:
        self._connection, self._streams = connection, streams
        self._begin = 0
        """The call that the first of `_payloads` answers."""
        self._body: msgspec.Struct | None = None
        self._encoded = b""
        self._payload_bytes = 0
        self._payloads: list[Buffer] = []

    def form(self) -> tuple[msgspec.Struct | None, Callable[[Buffer], None], int]:
        """The body that replies have now, how to add the payload of the next one, and its length."""
        return self._body, self._payloads.append, self._payload_bytes

    def add(self, number: int, reply: Reply) -> None:
        """Answer call `number` in a form of its own."""
        payload = reply.payload
        part = payload[0] if len(payload) == 1 else b"".join(payload)
        self.flush(number)
        self._body, self._encoded, self._payload_bytes = reply.body, f.encode(reply.body), len(part)
        self._payloads.append(part)

    def flush(self, begin: int) -> None:
        """Send what was added, and go on with call `begin`."""
        payloads, first = self._payloads, self._begin
        self._payloads, self._begin, self._body = [], begin, None
        if payloads:
            streams = self._streams[first : first + len(payloads)]
            self._connection.send_rows(streams, self._encoded, payloads, self._payload_bytes)


CHUNK_MIN: Final = 4
CHUNK_MAX: Final = 64
"""Calls of a row between two looks at the share of the turn: few at first, for who knows what one costs."""
CHUNK_UNITS: Final = 16
REFUSAL_UNITS: Final = 4
"""Refusing one of a row."""


def serve_calls(connection: "ServerConnection", event: CallsReceived, now: Instant) -> CallsReceived | None:
    """Many calls that are alike: authorized once where their requests are the same, answered by column.

    Returns what is left of them where the share of this turn is used up.
    """
    view, stride, body, count = event.view, event.stride, event.body_bytes, len(event.streams)
    if not has_one_body(view, stride, count, body):
        return _one_by_one(connection, event, now)
    try:
        method, call, request = connection.admit(
            event.method, Shape.UNARY, view[24 : 16 + body], event.timeout_ms, now
        )
    except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
        return _refuse(connection, event, error)
    hit("wire.row")
    handler, rows, done = method.handler, Rows(connection, event.streams), 0
    share, chunk = connection.share, CHUNK_MIN
    while done < count:
        done = _serve_chunk(connection, event, rows, handler, call, request, done, min(count, done + chunk))
        chunk = min(2 * chunk, CHUNK_MAX)
        if share is not None and done < count:
            share.units -= CHUNK_UNITS
            if share.is_over or connection.backpressure.is_held:
                break
    rows.flush(done)
    connection.server.counts.calls += done - 1
    if done == count:
        return None
    hit("wire.row_waited")
    return _rest(event, done)


def _refuse(connection: "ServerConnection", event: CallsReceived, error: Exception) -> CallsReceived | None:
    """Refuse as many of the calls as the share allows; returns what is left of them."""
    share, count = connection.share, len(event.streams)
    most = count if share is None else max(1, share.units // REFUSAL_UNITS)
    for stream in event.streams[:most].tolist():
        if connection.base.begin_call(stream):
            connection.refuse(stream, error)
    if share is not None:
        share.units -= REFUSAL_UNITS * min(most, count)
    return _rest(event, most) if most < count else None


def _rest(event: CallsReceived, done: int) -> CallsReceived:
    """`event` without its first calls."""
    return CallsReceived(
        event.streams[done:], event.method, event.timeout_ms, event.view[done * event.stride :], event.stride,
        event.body_bytes,
    )  # fmt: skip


def _serve_chunk(  # noqa: PLR0917 - the hot loop's own variables.
    connection: "ServerConnection",
    event: CallsReceived,
    rows: Rows,
    handler: Callable[..., Any],
    call: Call,
    request: Any,  # noqa: ANN401 - any request.
    done: int,
    last: int,
) -> int:
    """Serve the calls [done, last), or as many as the share allows; returns how many are done."""
    view, stride, body, share = event.view, event.stride, event.body_bytes, connection.share
    is_task = call.method.is_task
    first, size = f.HEADER_BYTES + body, stride - f.HEADER_BYTES - body
    same, add_row, row = rows.form()
    for begin in range(first + done * stride, first + last * stride, stride):
        try:
            payload_view = view[begin : begin + size]
            result = handler(call, request, connection.keep_small(payload_view) if is_task else payload_view)
            if type(result) is Reply:
                payload = result.payload
                if result.body is same and len(payload) == 1 and len(payload[0]) == row:
                    add_row(payload[0])  # The usual case, inline: the form of the reply before it.
                else:
                    rows.add((begin - first) // stride, result)
                    same, add_row, row = rows.form()
                continue
            stream = int(event.streams[(begin - first) // stride])
            if connection.base.begin_call(stream):
                connection.works.answer(stream, result, call, stride)
            elif isinstance(result, Coroutine):
                result.close()
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            stream = int(event.streams[(begin - first) // stride])
            if connection.base.begin_call(stream):
                connection.refuse(stream, error)
        number = (begin - first) // stride + 1
        rows.flush(number)  # This call has left the row.
        same, add_row, row = rows.form()
        if share is not None and (share.units <= 0 or connection.backpressure.is_held):
            return number
    return last


def _one_by_one(connection: "ServerConnection", event: CallsReceived, now: Instant) -> CallsReceived | None:
    view, stride, body, share = event.view, event.stride, event.body_bytes, connection.share
    for number, stream in enumerate(event.streams.tolist()):
        if share is not None:
            share.units -= 2
            if share.is_over or connection.backpressure.is_held:
                return _rest(event, number)
        at = number * stride
        request, payload = view[at + 24 : at + 16 + body], view[at + 16 + body : at + stride]
        if connection.base.begin_call(stream):
            connection.on_call(CallReceived(stream, event.method, event.timeout_ms, request, payload), now)
    return None
