"""Client appends: content with a condition, or too large for a run frame.

Content is gathered until it ends or exceeds `inline_bytes_max`. Small content is one request. Larger content
is a stream of messages, and the last message says that all was sent. Nothing of a stream can take effect
before that message is sent, so an error before it is certain. A refused append is sent again while there is
time, because it was not executed. An append whose outcome is `Unknown` is sent again only if its condition
lets it take effect once; a lost answer of such an append is settled by its attempt id. Source: journals.11,
journals.17, journals.21; C1, C2; ADR 0130, 0131.
"""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import Final

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import SECOND, Duration, in_seconds
from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import (
    AlreadyExists,
    Cancelled,
    Corrupt,
    DeadlineExceeded,
    ProtocolError,
    Refused,
    RegisterMismatch,
    Retry,
    ShuttingDown,
    Unknown,
    Unreachable,
    WrongAppendOffset,
)
from broadsheet.journal.client_requests import PATIENCE, RETRY_MAX, RETRY_MIN, as_bytes, not_sent
from broadsheet.journal.messages import (
    AppendRequest,
    AppendStreamMessage,
    Commit,
    SettleReply,
    SettleRequest,
)
from broadsheet.wire.client import Caller, ClientStream

PIECE_BYTES: Final = 1 << 20
"""The most content of one message."""
GATHER_BYTES: Final = 64 << 10
"""Pieces of a stream are gathered up to this length and sent together."""
GRACE_SECONDS: Final = 1.0
"""How long after the deadline the client still waits for the answer to a stream."""

Source = Iterable[Buffer] | AsyncIterable[Buffer]
ReadSpan = Callable[[str, int, int], Awaitable[bytes]]


class Appending:
    """The appends of one client, through one caller."""

    def __init__(self, caller: Caller, *, inline_bytes_max: int, read_span: ReadSpan) -> None:
        """Append to journals through `caller`.

        Args:
            inline_bytes_max: content up to this goes in one request.
            read_span: the bytes of a journal between two offsets.
        """
        self.caller, self.inline_bytes_max = caller, inline_bytes_max
        self._read_span = read_span

    async def append_pieces(self, request: AppendRequest, pieces: Sequence[Buffer], within: float) -> Commit:
        """Append content that is in memory; try again while that cannot append twice."""
        loop = asyncio.get_running_loop()
        give_up, backoff = loop.time() + within, Backoff(RETRY_MIN, RETRY_MAX)
        lost: Unknown | None = None
        while True:
            try:
                return await self._attempt(request, pieces, give_up - loop.time())
            except Unknown as error:
                if not _attempt_of(request):
                    raise
                lost = error
            except (WrongAppendOffset, RegisterMismatch, AlreadyExists) as refused:
                if lost is None:
                    raise
                return await self.settle(request, pieces, give_up - loop.time(), refused)
            except (Refused, Corrupt, ProtocolError) as error:
                if lost is None and not isinstance(error, Unreachable | ShuttingDown):
                    raise
                is_final = not isinstance(error, Refused) or error.retry is Retry.NEVER
                if is_final or give_up - loop.time() <= in_seconds(backoff.pause):
                    if lost is None:
                        raise
                    raise Unknown(
                        f"journal {request.journal}: an earlier attempt may be appended; the last: {error}"
                    ) from error
            if give_up - loop.time() <= in_seconds(backoff.pause):
                assert lost is not None, "a refusal was raised"
                raise lost
            await asyncio.sleep(in_seconds(backoff.next()))

    async def append_source(self, request: AppendRequest, source: Source, within: float) -> Commit:
        """Append the content that an iterator yields; it is sent once."""
        writer = AppendWriter(self, request, within)
        try:
            await writer.drain(source)
            return await writer.finish()
        finally:
            writer.cancel()

    async def _attempt(self, request: AppendRequest, pieces: Sequence[Buffer], within: float) -> Commit:
        writer = AppendWriter(self, request, within)
        try:
            for piece in pieces:
                if writer.gather(piece):
                    await writer.send()
            return await writer.conclude()
        finally:
            writer.cancel()

    async def settle(
        self, request: AppendRequest, pieces: Sequence[Buffer] | None, within: float, refused: Refused
    ) -> Commit:
        """The span of an append whose answer was lost, if the append took effect.

        Args:
            pieces: its content, to be compared with what stands at its offset; None if it is not in memory.
            refused: the error to raise if the append did not take effect and never will.

        Raises:
            Unknown: the node no longer knows: more conditional appends followed than a journal remembers.
        """
        journal, condition = request.journal, request.condition
        assert condition is not None
        asked = SettleRequest(
            journal=journal, attempt=condition.attempt, create_revision=request.create_revision
        )
        timeout = Duration(max(1, int(within * SECOND)))
        try:
            reply, _ = await self.caller.call(
                "journal.settle", asked, reply=SettleReply, timeout=timeout, is_idempotent=True
            )
            if reply.commit is not None:
                return reply.commit
            offset = condition.offset
            is_certain = reply.known_from == 0 or (offset is not None and reply.known_from <= offset)
            if not is_certain and offset is not None and pieces is not None:
                is_certain = await self._stand_others(journal, offset, b"".join(pieces))
        except (Refused, Corrupt, ProtocolError) as error:
            raise Unknown(
                f"journal {journal}: an answer was lost, and to ask for the outcome failed: {error}: read the"
                " journal and look for the content"
            ) from error
        if is_certain:
            raise refused
        raise Unknown(
            f"journal {journal}: an answer was lost, and the node no longer knows whether this append took"
            " effect: read the journal and look for the content"
        )

    async def _stand_others(self, journal: str, offset: ByteOffset, wanted: bytes) -> bool:
        """Whether the journal has bytes at `offset` that differ from `wanted`: then this append failed."""
        return not wanted.startswith(await self._read_span(journal, offset, offset + len(wanted)))


class AppendWriter:
    """One append whose content is sent piece by piece. Its owner calls `cancel` in the end, in any case."""

    def __init__(self, appending: Appending, request: AppendRequest, within: float) -> None:
        """Prepare an append whose content is sent in pieces; nothing is sent yet.

        Args:
            within: seconds for the whole append.
        """
        loop = asyncio.get_running_loop()
        self._appending, self._request = appending, request
        self._loop, self._give_up, self._within = loop, loop.time() + within, round(within, 3)
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._stream: ClientStream | None = None
        self._ended: asyncio.Future[None] = loop.create_future()

    def gather(self, piece: object) -> bool:
        """Add a piece of the append's content; returns whether `send` must be called now.

        Does no IO. Any thread may call it, but only one at a time.

        Raises:
            InvalidArgument: the piece is not bytes.
        """
        view = as_bytes(piece)
        self._gathered.append(view)
        self._gathered_bytes += len(view)
        if self._stream is None:
            return self._gathered_bytes > self._appending.inline_bytes_max
        return self._gathered_bytes >= GATHER_BYTES

    async def send(self) -> None:
        """Send the gathered pieces of the append.

        Raises:
            Refused: nothing is, or will be, appended.
        """
        pieces, self._gathered, self._gathered_bytes = self._gathered, [], 0
        try:
            async with asyncio.timeout_at(self._give_up):
                if self._stream is None:
                    self._stream = await self._open()
                for message in _messages(pieces):
                    await self._stream.send(None, message)
        except Unknown as error:
            raise self._certain(error) from error
        except TimeoutError:
            if self._stream is None:
                raise not_sent(self._request.journal, self._within) from None
            raise self._too_late() from None

    async def _open(self) -> ClientStream:
        timeout = Duration(max(1, int((self._give_up - self._loop.time()) * SECOND)))
        stream = await self._appending.caller.open("journal.append_stream", self._request, timeout=timeout)
        stream.replied.add_done_callback(self._on_replied)
        return stream

    def _on_replied(self, _reply: object) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _certain(self, error: Unknown) -> Refused:
        """The refusal for an `Unknown` before the last message: nothing can have taken effect."""
        what = f"journal {self._request.journal}: nothing is appended, its content was not yet whole: {error}"
        return Cancelled(what) if isinstance(error, DeadlineExceeded) else Unreachable(what)

    def _too_late(self) -> Cancelled:
        """The refusal if the time is up before the last message was sent."""
        return Cancelled(
            f"journal {self._request.journal}: nothing is appended, its content was not whole in"
            f" {self._within} s"
        )

    async def drain(self, source: Source) -> None:
        """Send the append's pieces of `source`, until it ends or the node ends the stream.

        Errors of the source itself are passed on.

        Raises:
            Refused: nothing is, or will be, appended.
        """
        if not isinstance(source, AsyncIterable):
            for piece in source:
                if self.gather(piece):
                    await self.send()
            return
        pumping = self._loop.create_task(self._pump(source))
        try:
            left = max(0.0, self._give_up - self._loop.time())
            await asyncio.wait((pumping, self._ended), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if pumping.done():
                pumping.result()
            elif not self._ended.done():
                raise self._too_late()
        finally:
            if not pumping.done():
                pumping.cancel()
                await asyncio.wait((pumping,))

    async def _pump(self, source: AsyncIterable[Buffer]) -> None:
        async for piece in source:
            if self.gather(piece):
                await self.send()

    async def finish(self) -> Commit:
        """Say that all of the append was sent; if the answer is lost, ask for it by the attempt id.

        Raises:
            Refused: nothing is appended. Unknown: the content may be appended.
        """
        try:
            return await self.conclude()
        except Unknown:
            if not _attempt_of(self._request):
                raise
        given_up = Cancelled(f"journal {self._request.journal}: an answer was lost, and nothing is appended")
        left = self._give_up - self._loop.time()
        return await self._appending.settle(self._request, None, left, given_up)

    async def conclude(self) -> Commit:
        """Say that all of the append was sent, and return the node's answer.

        Raises:
            Refused: nothing is appended. Unknown: the content may be appended.
        """
        if self._stream is None:
            timeout = Duration(max(1, int((self._give_up - self._loop.time()) * SECOND)))
            commit, _ = await self._appending.caller.call(
                "journal.append",
                self._request,
                self._gathered,
                reply=Commit,
                timeout=timeout,
                patience=PATIENCE,
            )
            return commit
        await self.send()
        try:
            async with asyncio.timeout_at(self._give_up):
                await self._stream.send(AppendStreamMessage(is_last=True))
        except Unknown as error:
            raise self._certain(error) from error
        except TimeoutError:
            raise self._too_late() from None
        try:
            async with asyncio.timeout_at(self._give_up + GRACE_SECONDS):
                return await self._stream.reply(Commit)
        except TimeoutError:
            raise DeadlineExceeded(
                f"journal {self._request.journal}: no answer to the whole content in {self._within} s; it may"
                " be appended"
            ) from None

    def cancel(self) -> None:
        """Cancel the stream if it is not answered. Idempotent."""
        if self._stream is not None:
            self._stream.cancel()


def _attempt_of(request: AppendRequest) -> bytes:
    return request.condition.attempt if request.condition is not None else b""


def _messages(pieces: Sequence[Buffer]) -> Iterable[Sequence[Buffer]]:
    """Payloads of an append of up to `PIECE_BYTES`: small pieces are put together, large ones are cut."""
    message: list[Buffer] = []
    size = 0
    for piece in pieces:
        view = memoryview(piece)
        for at in range(0, len(view), PIECE_BYTES):
            part = view[at : at + PIECE_BYTES]
            if message and size + len(part) > PIECE_BYTES:
                yield message
                message, size = [], 0
            message.append(part)
            size += len(part)
    if message:
        yield message
