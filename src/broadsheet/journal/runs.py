"""Runs, the calling side: small appends of one journal, gathered into run frames (DESIGN 2).

Offsets and lengths are bytes. What is ready when the loop comes round leaves as one frame, without a timer:
the first append of a quiet moment waits for nothing, and under load frames grow by themselves. Answers come
in order. A lost stream leaves what it carried `Unknown`, and the next append opens another. Source:
reference/performance.md E3, F ("Run frames"); journals.21 (tried once).
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from broadsheet.base.types import Buffer, ByteOffset, JournalName
from broadsheet.errors import BroadsheetError, DeadlineExceeded, NotFound, ShuttingDown, Unknown
from broadsheet.journal.messages import Commit, JournalInfo, RunRequest
from broadsheet.wire.client import Acknowledged, Caller, RunStream

FRAME_BYTES_MAX: Final = 1 << 20
FRAME_COUNT_MAX: Final = 16_384

Waiter = tuple[Buffer, "asyncio.Future[Commit]"]


class Runs:
    """Unconditional small appends to one journal."""

    def __init__(self, caller: Caller, journal: JournalName) -> None:
        """Append to `journal` through `caller`."""
        self._caller, self._journal = caller, journal
        self._stream: RunStream | None = None
        self._ready: list[Waiter] = []
        self._sender: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._answering: dict[asyncio.Task[None], None] = {}

    async def append(self, content: Buffer, within: float) -> Commit:
        """Append `content`, with whatever else is ready now.

        Raises:
            Refused: it was not. Unknown: it may have been.
        """
        future: asyncio.Future[Commit] = asyncio.get_running_loop().create_future()
        self._ready.append((content, future))
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())
        try:
            async with asyncio.timeout(within):
                return await future
        except TimeoutError:
            raise DeadlineExceeded(
                f"journal {self._journal}: no answer in {within} s; it may be appended"
            ) from None

    async def append_many(self, contents: Sequence[Buffer], within: float) -> Sequence[Commit]:
        """Append all of `contents` in order.

        Raises:
            Refused: some were not, and none after them. Unknown: some may have been.
        """
        commits: list[Commit] = []
        try:
            async with asyncio.timeout(within):
                stream = await self._open()
                on_way = [(frame, await stream.submit(frame)) for frame in _frames(contents)]
                for frame, future in on_way:
                    commits += _commits(frame, (await future).begin)
        except TimeoutError:
            raise DeadlineExceeded(
                f"journal {self._journal}: no answer in {within} s; some may be appended"
            ) from None
        except BroadsheetError:
            self._stream = None
            raise
        return commits

    async def close(self) -> None:
        """End the stream once everything is answered."""
        if self._sender is not None:
            if self._stream is None:
                self._sender.cancel()  # It dials a node that may be gone; nothing of it was sent.
            await asyncio.wait((self._sender,))
        if self._answering:
            await asyncio.wait(list(self._answering))
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                await stream.close()
            except BroadsheetError:
                return  # It was lost: whoever waited has been told.

    async def _open(self) -> RunStream:
        async with self._opening:
            if self._stream is None:
                request = RunRequest(journal=self._journal)
                _, self._stream = await self._caller.open_run(
                    "journal.append_run", request, reply=JournalInfo
                )
            return self._stream

    async def _send(self) -> None:
        """Send what is ready, frame after frame, until nothing is."""
        try:
            while self._ready:
                batch = self._take()
                try:
                    stream = await self._open()
                    future = await stream.submit([content for content, _ in batch])
                except BroadsheetError as error:
                    self._stream = None
                    _fail(batch, error)
                    continue
                except asyncio.CancelledError:
                    _fail(batch + self._ready, ShuttingDown("the client was closed before it was sent"))
                    self._ready = []
                    raise
                task = asyncio.get_running_loop().create_task(self._answer(batch, stream, future))
                self._answering[task] = None
                task.add_done_callback(lambda done: self._answering.pop(done, None))
        finally:
            self._sender = None

    def _take(self) -> list[Waiter]:
        """What is ready, up to a frame."""
        size = count = 0
        for content, _ in self._ready:
            if count and (size + len(content) > FRAME_BYTES_MAX or count >= FRAME_COUNT_MAX):
                break
            size, count = size + len(content), count + 1
        batch, self._ready = self._ready[:count], self._ready[count:]
        return batch

    def _forget(self, stream: RunStream) -> None:
        if self._stream is stream:
            self._stream = None

    def _retry(self, batch: list[Waiter], stream: RunStream, error: NotFound) -> None:
        """The stream was of a deleted journal; one of the same name may have been made since: ask it."""
        if self._stream is not stream:
            _fail(batch, error)
            return
        self._stream = None
        self._ready[:0] = batch
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def _answer(
        self, batch: list[Waiter], stream: RunStream, future: "asyncio.Future[Acknowledged]"
    ) -> None:
        try:
            acknowledged = await future
        except NotFound as error:
            self._retry(batch, stream, error)
            return
        except BroadsheetError as error:
            if isinstance(error, Unknown | ShuttingDown):
                self._forget(stream)
            _fail(batch, error)
            return
        begin = acknowledged.begin
        for content, waiter in batch:
            end = begin + len(content)
            if not waiter.done():
                waiter.set_result(Commit(begin=ByteOffset(begin), end=ByteOffset(end)))
            begin = end


def _frames(contents: Sequence[Buffer]) -> Sequence[Sequence[Buffer]]:
    frames: list[Sequence[Buffer]] = []
    frame: list[Buffer] = []
    size = 0
    for content in contents:
        if frame and (size + len(content) > FRAME_BYTES_MAX or len(frame) >= FRAME_COUNT_MAX):
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


def _fail(batch: Sequence[Waiter], error: BroadsheetError) -> None:
    for _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(error)
