"""Document chunks: the metastore's document beside its messages, cut for the wire; no codec sees its bytes.

There is one STREAM method for each kind of request. The opening holds the message without its document.
Stream messages in both directions carry the document in chunks, because it may be larger than a frame.
Source: node.6; `docs/protocols/metastore.md`.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from broadsheet.control.core.messages import Accept, Held, Promised, Rejected, Request, Response
from broadsheet.control.core.value import DOCUMENT_BYTES_MAX, Accepted, Value
from broadsheet.errors import RemoteProtocolError
from broadsheet.wire.method import WireStream

CHUNK_BYTES: Final = 1 << 20

M = TypeVar("M", Request, Response)


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """The wire's reply that carries an acceptor's response."""

    response: Response


def document_of(message: Request | Response) -> bytes:
    """The document in `message`; empty if it has none."""
    value = _value_of(message)
    return b"" if value is None else value.document


def without_document(message: M) -> M:
    """`message` with an empty document."""
    return with_document(message, b"")


def with_document(message: M, document: bytes) -> M:
    """The metastore's `message` with `document` in its place."""
    value = _value_of(message)
    if value is None:
        return message
    changed = msgspec.structs.replace(value, document=document)
    if isinstance(message, Promised | Rejected):
        assert message.accepted is not None, "the value came from there"
        accepted = Accepted(message.accepted.ballot, changed)
        return msgspec.structs.replace(message, accepted=accepted)
    return msgspec.structs.replace(message, value=changed)


async def send_document(stream: WireStream, document: bytes) -> None:
    """Send `document` in chunks."""
    view = memoryview(document)
    for at in range(0, len(view), CHUNK_BYTES):
        await stream.send(None, [view[at : at + CHUNK_BYTES]])


async def receive_document(stream: WireStream, *, keep: Callable[[int], None] = lambda _: None) -> bytes:
    """The metastore's document: all chunks that come, joined.

    Args:
        keep: is told the bytes of each chunk before it is kept; what it raises ends the document.

    Raises:
        RemoteProtocolError: the chunks exceed the largest document, or a chunk is empty. Empty chunks could
            come without end.
    """
    document = bytearray()
    while (message := await stream.receive()) is not None:
        if not len(message.payload):
            raise RemoteProtocolError("a chunk of the metastore's document has no bytes")
        if len(document) + len(message.payload) > DOCUMENT_BYTES_MAX:
            raise RemoteProtocolError(
                f"the chunks of the metastore's document exceed {DOCUMENT_BYTES_MAX} bytes"
            )
        keep(len(message.payload))
        document += message.payload
    return bytes(document)


def _value_of(message: Request | Response) -> Value | None:
    if isinstance(message, Accept | Held):
        return message.value
    if isinstance(message, Promised | Rejected) and message.accepted is not None:
        return message.accepted.value
    return None
