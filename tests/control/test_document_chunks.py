"""The metastore's documents on the wire: in chunks, and bounded however they are cut."""

from collections.abc import Sequence

import msgspec
import pytest

from broadsheet.base.types import Buffer
from broadsheet.control.core.value import DOCUMENT_BYTES_MAX
from broadsheet.control.document_chunks import receive_document, send_document
from broadsheet.errors import RemoteProtocolError
from broadsheet.wire.method import Message


class Chunks:
    """A stream that brings what was sent on it."""

    def __init__(self, *payloads: bytes) -> None:
        self.payloads = [*payloads]

    async def receive(self) -> Message | None:
        return Message(memoryview(b""), memoryview(self.payloads.pop(0))) if self.payloads else None

    async def send(self, body: msgspec.Struct | None = None, payload: Sequence[Buffer] = ()) -> None:
        assert body is None
        self.payloads.append(b"".join(payload))


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, 3 << 20])
async def test_a_document_comes_as_it_was_sent(size: int) -> None:
    """It may be larger than a frame."""
    stream, document = Chunks(), bytes(range(256)) * (size // 256) + bytes(size % 256)
    await send_document(stream, document)
    assert await receive_document(stream) == document


@pytest.mark.parametrize(
    "payloads", [[b""], [b"x", b"", b"y"], [bytes(1 << 20)] * (DOCUMENT_BYTES_MAX // (1 << 20) + 1)]
)
async def test_a_document_that_has_no_end_is_refused(payloads: list[bytes]) -> None:
    """Chunks without bytes never reached the limit of bytes, and each was kept."""
    with pytest.raises(RemoteProtocolError, match="document"):
        await receive_document(Chunks(*payloads))
