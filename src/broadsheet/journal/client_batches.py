"""Client batches: small appends of one journal, gathered into run frames (wire.2).

Offsets and lengths are bytes. All appends that are ready in one turn of the loop leave as one frame, without
a timer: an append in a quiet moment does not wait, and under load frames grow by themselves. Answers arrive
in order. If the stream is lost, the outcome of its unanswered appends is `Unknown`, and the next append opens
another stream. Source: wire.2; journals.21 (tried once).
"""

import asyncio
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from broadsheet.base.types import Buffer, ByteOffset, JournalName
from broadsheet.errors import (
    BroadsheetError,
    DeadlineExceeded,
    NotFound,
    Refused,
    ShuttingDown,
    Unknown,
    Unreachable,
)
from broadsheet.journal.client_requests import not_sent
from broadsheet.journal.messages import Commit, RunReply, RunRequest
from broadsheet.wire.client import Acknowledged, Caller, ClientRunStream

FRAME_BYTES_MAX: Final = 1 << 20
FRAME_COUNT_MAX: Final = 16_384

STREAMS_KEPT: Final = 128
"""Run streams that may stay open while they are idle. A connection has a few hundred streams in all."""

Waiter = tuple[int, Buffer, "asyncio.Future[Commit]"]
"""The number of the call, the content, and what waits for its answer."""


class BatchesByJournal:
    """The run streams of one client: each opens at its first append; idle ones above a bound are closed."""

    def __init__(self, caller: Caller) -> None:
        """Append through `caller`."""
        self._caller = caller
        self._batches: dict[str, Batches] = {}
        """The one used longest ago first."""

    def of(self, journal: str) -> "Batches":
        """The run stream of `journal`. The caller must use it at once, because idle ones may be closed."""
        batches = self._batches.pop(journal, None) or Batches(self._caller, JournalName(journal), self._rest)
        self._batches[journal] = batches
        self._thin(but=batches)
        return batches

    async def close(self) -> None:
        """End the streams when nobody waits for an append any more. Idempotent."""
        batches, self._batches = list(self._batches.values()), {}
        for each in batches:
            await each.close()

    def _rest(self, _batches: "Batches") -> None:
        self._thin(but=None)

    def _thin(self, *, but: "Batches | None") -> None:
        """Close idle streams above `STREAMS_KEPT`, those used longest ago first."""
        if len(self._batches) <= STREAMS_KEPT:
            return
        idle = [name for name, batches in self._batches.items() if batches.is_idle and batches is not but]
        for name in idle[: len(self._batches) - STREAMS_KEPT]:
            self._batches.pop(name).end()


class Batches:
    """Unconditional small appends to one journal."""

    def __init__(
        self, caller: Caller, journal: JournalName, on_idle: "Callable[[Batches], None]" = lambda _: None
    ) -> None:
        """Append to `journal` through `caller`; call `on_idle` when no append waits any more."""
        self._caller, self._journal, self._on_idle = caller, journal, on_idle
        self._frame_bytes_max = FRAME_BYTES_MAX
        """What the node takes in one run, if that is less; known once a stream is open."""
        self._stream: ClientRunStream | None = None
        self._ready: list[Waiter] = []
        self._count = 0
        """Calls of `append` so far."""
        self._callers: dict[asyncio.Future[Any], bool] = {}
        """The futures of those who wait, each for its own time; whether anything may have been sent."""
        self._sender: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._answering: dict[asyncio.Task[None], None] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no append is waiting or unanswered."""
        return not (self._ready or self._sender or self._answering or self._callers)

    async def append(self, content: Buffer, within: float) -> Commit:
        """Append `content` to the journal, in one frame with the other appends that are ready now.

        Raises:
            Refused: it was not appended. Unknown: it may have been appended.
        """
        future: asyncio.Future[Commit] = asyncio.get_running_loop().create_future()
        self._count += 1
        self._ready.append((self._count, content, future))
        self._callers[future] = False
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())
        try:
            async with asyncio.timeout(within):
                return await future
        except TimeoutError:
            if not self._callers[future]:
                raise not_sent(self._journal, within) from None
            raise DeadlineExceeded(
                f"journal {self._journal}: no answer in {within} s; it may be appended"
            ) from None
        finally:
            del self._callers[future]

    async def append_many(self, contents: Sequence[Buffer], within: float) -> Sequence[Commit]:
        """Append all of `contents` to the journal in order, in frames of up to 1 MiB, or the node's limit.

        Raises:
            Refused: none was appended. Unknown: some were or may have been appended. One frame may be refused
            because there is no room, and a later one accepted.
        """
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callers[called] = False
        try:
            async with asyncio.timeout(within):
                frames, answers = await self._answers(contents, called)
        except TimeoutError:
            if not self._callers[called]:
                raise not_sent(self._journal, within) from None
            raise DeadlineExceeded(
                f"journal {self._journal}: no answer in {within} s; some may be appended"
            ) from None
        finally:
            del self._callers[called]
            called.set_result(None)
            self._look_idle()
        acknowledged = [answer for answer in answers if isinstance(answer, Acknowledged)]
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if not failed:
            pairs = zip(frames, acknowledged, strict=True)
            return [commit for frame, each in pairs for commit in _commits(frame, each.begin)]
        if not acknowledged and not any(isinstance(error, Unknown) for error in failed):
            raise failed[0]
        raise Unknown(
            f"journal {self._journal}: {len(acknowledged)} of {len(frames)} frames are appended, and the"
            f" others are not, or may be: {failed[0]}"
        ) from failed[0]

    async def _answers(
        self, contents: Sequence[Buffer], called: "asyncio.Future[None]"
    ) -> tuple[Sequence[Sequence[Buffer]], list[Acknowledged | BaseException]]:
        """The frames of `contents`, and their answers.

        If all were refused because the stream's journal was deleted, or nothing was sent because the stream
        had ended, they are sent on a new stream, as `_retry` does.
        """
        while True:
            self._callers[called] = False
            stream = await self._open()
            self._callers[called] = True
            frames = _frames(contents, self._frame_bytes_max)
            answers = await self._submit_all(stream, frames)
            if any(isinstance(each, Unknown | ShuttingDown | NotFound) for each in answers):
                self._drop(stream)
            is_of_none = stream.has_ended and any(
                isinstance(each, NotFound | Unreachable) for each in answers
            )
            if not (is_of_none and all(isinstance(each, Refused) for each in answers)):
                return frames, answers

    async def _submit_all(
        self, stream: ClientRunStream, frames: Sequence[Sequence[Buffer]]
    ) -> list[Acknowledged | BaseException]:
        """The answer to each frame of appends; if one could not be sent, its error is the last one."""
        on_way: list[asyncio.Future[Acknowledged]] = []
        unsent: list[BaseException] = []
        try:
            for frame in frames:
                future = await stream.submit(frame)
                future.add_done_callback(_looked_at)
                on_way.append(future)
        except BroadsheetError as error:
            unsent.append(error)
        return [*await asyncio.gather(*on_way, return_exceptions=True), *unsent]

    def _look_idle(self) -> None:
        if self.is_idle:
            self._on_idle(self)

    async def close(self) -> None:
        """End the client's run stream when nobody waits for an append any more.

        An append whose caller has given up is not waited for: its answer may never come. Nor is one that
        connects to a node, which may be gone: it is refused when the connections are closed.
        """
        is_connecting = self._stream is None or self._stream.has_ended
        if is_connecting:
            await self._stop_sending()
        waiting = [each for each, may_be_sent in self._callers.items() if may_be_sent or not is_connecting]
        if waiting:
            await asyncio.wait(waiting)
        await self._stop_sending()
        self.end()

    async def _stop_sending(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait((self._sender,))
            self._sender = None
        _fail(self._ready, ShuttingDown("the client was closed before it was sent"))
        self._ready = []

    def end(self) -> None:
        """End the stream: nobody waits for an append."""
        if self._stream is not None:
            self._drop(self._stream)

    async def _open(self) -> ClientRunStream:
        """The run stream, opened if there is none.

        Raises:
            Refused: it is not open. An opening whose answer was lost is refused as well: it appends nothing.
        """
        async with self._opening:
            if self._stream is None or self._stream.has_ended:
                request = RunRequest(journal=self._journal)
                try:
                    opened, self._stream = await self._caller.open_run(
                        "journal.append_run", request, reply=RunReply
                    )
                except Unknown as error:
                    raise Unreachable(f"journal {self._journal}: nothing is appended: {error}") from error
                self._frame_bytes_max = min(FRAME_BYTES_MAX, opened.run_bytes_max)
            return self._stream

    async def _send(self) -> None:
        """Send the ready appends, frame by frame, until none is left."""
        try:
            while self._ready:
                batch = self._take()
                if not batch:
                    break
                stream = None
                try:
                    stream = await self._open()
                    batch = self._fitting(_wanted(batch))
                    if not batch:
                        continue
                    self._callers |= dict.fromkeys([waiter for _, _, waiter in batch], True)
                    future = await stream.submit([content for _, content, _ in batch])
                except BroadsheetError as error:
                    if stream is not None and stream.has_ended:
                        self._retry(batch, stream)  # It ended while they waited for room.
                    else:
                        _fail(batch, error)
                    continue
                except asyncio.CancelledError:
                    _fail(batch, ShuttingDown("the client was closed before it was sent"))
                    raise
                task = asyncio.get_running_loop().create_task(self._answer(batch, stream, future))
                self._answering[task] = None
                task.add_done_callback(self._answered)
        finally:
            self._sender = None
            self._look_idle()

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.pop(task, None)
        self._look_idle()

    def _take(self) -> list[Waiter]:
        """Take the ready appends for one frame, without those whose caller has given up."""
        self._ready = _wanted(self._ready)
        size = count = 0
        for _, content, _ in self._ready:
            if count and (size + len(content) > self._frame_bytes_max or count >= FRAME_COUNT_MAX):
                break
            size, count = size + len(content), count + 1
        batch, self._ready = self._ready[:count], self._ready[count:]
        return batch

    def _fitting(self, batch: list[Waiter]) -> list[Waiter]:
        """The first of `batch` that fit into a frame: only now it is known what the node takes."""
        if sum(len(content) for _, content, _ in batch) <= self._frame_bytes_max:
            return batch
        self._ready[:0] = batch
        return self._take()

    def _drop(self, stream: ClientRunStream) -> None:
        """Use `stream` no more, and end it: otherwise the connection runs out of streams."""
        if self._stream is stream:
            self._stream = None
            stream.finish()

    def _retry(self, batch: list[Waiter], stream: ClientRunStream) -> None:
        """Send a batch of appends on a new stream, because nothing of it was appended by the old one.

        Its journal was deleted, and a same-named one may have been made since; or the stream ended before the
        batch was sent. If there is no journal of that name, or no node, no stream opens.
        """
        self._drop(stream)
        batch = _wanted(batch)
        self._ready = sorted([*batch, *self._ready], key=itemgetter(0))
        self._callers |= dict.fromkeys([waiter for _, _, waiter in batch], False)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def _answer(
        self, batch: list[Waiter], stream: ClientRunStream, future: "asyncio.Future[Acknowledged]"
    ) -> None:
        try:
            acknowledged = await future
        except NotFound:
            self._retry(batch, stream)
            return
        except BroadsheetError as error:
            if isinstance(error, Unknown | ShuttingDown):
                self._drop(stream)
            _fail(batch, error)
            return
        begin = acknowledged.begin
        for _, content, waiter in batch:
            end = begin + len(content)
            if not waiter.done():
                waiter.set_result(Commit(begin=ByteOffset(begin), end=ByteOffset(end)))
            begin = end


def _wanted(waiters: list[Waiter]) -> list[Waiter]:
    """The appends whose caller still waits. The other callers were told that nothing was sent."""
    return [each for each in waiters if not each[2].done()]


def _frames(contents: Sequence[Buffer], bytes_max: int) -> Sequence[Sequence[Buffer]]:
    frames: list[Sequence[Buffer]] = []
    frame: list[Buffer] = []
    size = 0
    for content in contents:
        if frame and (size + len(content) > bytes_max or len(frame) >= FRAME_COUNT_MAX):
            frames.append(frame)
            frame, size = [], 0
        frame.append(content)
        size += len(content)
    return [*frames, frame] if frame else frames


def _commits(frame: Sequence[Buffer], begin: int) -> list[Commit]:
    commits = []
    for content in frame:
        end = begin + len(content)
        commits.append(Commit(begin=ByteOffset(begin), end=ByteOffset(end)))
        begin = end
    return commits


def _looked_at(future: "asyncio.Future[Acknowledged]") -> None:
    """Mark an error as seen, so that asyncio does not log it if the caller has given up."""
    if not future.cancelled():
        future.exception()


def _fail(batch: Sequence[Waiter], error: BroadsheetError) -> None:
    for _, _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(error)
