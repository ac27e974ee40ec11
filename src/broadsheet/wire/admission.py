"""Admission: a request is decoded and authorized, here and nowhere else, before its handler runs.

Admission looks up nothing: a name outside the caller's grant is refused whether it exists or not.
Source: access.2, access.4.
"""

from typing import Any, NamedTuple, Protocol

import msgspec

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.principal import ANYONE, Principal
from broadsheet.base.time import MILLISECOND, Duration, Instant, after
from broadsheet.base.types import ConnectionId
from broadsheet.errors import Status
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Call, Method, Shape


class Refusal(Exception):  # noqa: N818 - a status on its way to the wire.
    """A refused request's status and text, on their way to the caller."""

    def __init__(self, code: Status, message: str) -> None:
        super().__init__(message)
        self.code = code


class Asked(NamedTuple):
    """A request on the wire before it is decoded."""

    number: int
    shape: Shape
    body: memoryview
    timeout_ms: int


class Admitting(Protocol):
    """The part of a server that admission needs."""

    table: dict[int, Method]
    authorizer: Authorizer
    limits: WireLimits


def admit(
    server: Admitting,
    principal: Principal,
    asked: Asked,
    now: Instant,
    *,
    connection: ConnectionId,
    peer: str,
) -> tuple[Method, Call, Any]:
    """The method, its call and its decoded request.

    Raises:
        Refusal: there is no such method, or the request is malformed.
        NotAllowed, Unauthenticated: `principal` may not send this request.
    """
    method = server.table.get(asked.number)
    if method is None or method.shape is not asked.shape:
        raise Refusal(Status.UNSUPPORTED, f"this node has no {asked.shape.value} method {asked.number}")
    try:
        request = method.decoder.decode(asked.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        server.authorizer.authorize(principal, method.capability, None)
        raise Refusal(Status.INVALID_ARGUMENT, f"{method.name}: {error}") from None
    if principal is not ANYONE:
        name = None if method.name_of is None else method.name_of(request)
        server.authorizer.authorize(principal, method.capability, name)
    timeout = asked.timeout_ms * MILLISECOND
    if not timeout and asked.shape is Shape.UNARY:
        timeout = server.limits.call_timeout
    deadline = after(now, Duration(timeout)) if timeout else None
    return method, Call(method, principal, connection, peer, deadline), request
