"""Answers: replies and refusals of a node, turned into values and errors for the caller."""

from typing import Any, TypeVar

import msgspec

from broadsheet.errors import (
    BY_STATUS,
    BroadsheetError,
    Refused,
    RemoteProtocolError,
    Status,
    Unknown,
    Unreachable,
)
from broadsheet.wire import frame as f

R = TypeVar("R", bound=msgspec.Struct)


def error_of(status: Status, message: str, hint: str = "") -> BroadsheetError:
    """The error that a status on the wire stands for."""
    kind = BY_STATUS.get(status, Unknown)
    return kind(message, hint=hint) if issubclass(kind, Refused) else kind(message)


def unseen(status: Status, message: str) -> Refused:
    """The refusal of a request that its node did not look at, whatever the status of its GOAWAY."""
    error = error_of(status, message)
    return error if isinstance(error, Refused) else Unreachable(f"the node gave the connection up: {message}")


def decode(body: memoryview, kind: type[R], method: str) -> R:
    """The decoded body of a node's reply.

    Raises:
        RemoteProtocolError: the body does not decode as a `kind`.
    """
    decoder: msgspec.msgpack.Decoder[R] | None = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    reply: R = f.decode_with(decoder, body, f"the reply to {method}")
    return reply


def decode_outcome(body: memoryview, kind: type[R], method: str) -> R:
    """The decoded body of a node's reply to a request that changes something.

    Raises:
        Unknown: the body does not decode. The node has answered, so it may have executed the request.
    """
    try:
        return decode(body, kind, method)
    except RemoteProtocolError as error:
        raise Unknown(f"the request may have been executed: {error}") from error


_decoders: dict[type, Any] = {}
"""Decoders by the struct of the reply; one for each struct."""
