"""Client: the dialling side of the wire (API; bodies follow)."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from broadsheet.base.time import Duration
from broadsheet.base.types import Buffer
from broadsheet.wire.method import WireStream

R = TypeVar("R", bound=msgspec.Struct)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What a unary call brought back."""

    body: msgspec.Struct
    payload: memoryview


class ClientStream(WireStream, Protocol):
    """A caller's end of a STREAM."""

    def finish(self) -> None:
        """Say that no more messages will be sent."""
        ...

    async def reply(self, kind: type[R]) -> R:
        """The handler's reply, once it has ended; `finish` is implied.

        Raises:
            BroadsheetError: it refused, the deadline passed or the connection was lost (`Unknown`).
        """
        ...

    def cancel(self) -> None:
        """Withdraw; harmless when it has ended."""
        ...


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """Records [sequence, sequence + count) of a run stream went to [begin, end)."""

    sequence: int
    count: int
    begin: int
    end: int


class RunStream(Protocol):
    """A caller's end of a RUN stream: records out, acknowledgements in."""

    async def send(self, records: Sequence[Buffer], *, at: int | None = None) -> Acknowledged:
        """Send `records` as one run frame (split where above a frame, without `at`) and await its acknowledgement.

        Raises:
            BroadsheetError: all of it was refused, or `Unknown`.
        """
        ...

    async def close(self) -> None:
        """End the stream once everything is answered."""
        ...


class Caller(Protocol):
    """Anything that can be called: one connection, a pool's address, or a route."""

    async def call(
        self,
        method: str,
        request: msgspec.Struct,
        payload: Sequence[Buffer] = (),
        *,
        reply: type[R],
        timeout: Duration | None = None,
        is_idempotent: bool = False,
    ) -> tuple[R, memoryview]:
        """One unary call: the reply's body and payload.

        Raises:
            Refused: it was not done; for sure.
            Unknown: it may have been done.
        """
        ...

    async def open(
        self, method: str, request: msgspec.Struct, *, timeout: Duration | None = None
    ) -> ClientStream:
        """Open a STREAM."""
        ...

    async def open_run(self, method: str, request: msgspec.Struct, *, reply: type[R]) -> tuple[R, RunStream]:
        """Open a RUN stream; returns once its target has accepted it."""
        ...
