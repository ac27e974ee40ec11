"""Running: a caller's end of a RUN stream: run frames out, acknowledgements in.

Unanswered bytes never exceed the window that the listener greeted with. Runs are sent in the order of the
calls; each is answered once, with where its first byte went, or with a refusal of all of it.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from broadsheet.base.types import Buffer
from broadsheet.errors import BroadsheetError, InvalidArgument, Status, TooLarge, Unknown, Unreachable
from broadsheet.wire import checked
from broadsheet.wire import frame as f
from broadsheet.wire.answers import error_of
from broadsheet.wire.events import AcknowledgedReceived, RunRefused

if TYPE_CHECKING:
    from broadsheet.wire.client import ClientConnection


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """A run went to [begin, end), its records back to back."""

    sequence: int
    count: int
    begin: int
    end: int


class RunCaller:
    """A caller's end of a RUN stream."""

    def __init__(self, connection: "ClientConnection", stream: int) -> None:
        self.stream = stream
        self._connection = connection
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[memoryview] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._error: BroadsheetError | None = None
        self._sequence = 0
        self.unanswered_bytes = 0
        """Sent and not yet answered, and what was promised to those that are about to send."""
        self._answers: dict[int, tuple[int, int, asyncio.Future[Acknowledged]]] = {}
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._has_finished = False

    async def send(self, records: Sequence[Buffer], *, at: int | None = None) -> Acknowledged:
        """Send `records` as one run frame and await where they went.

        Args:
            records: at least one. They are not copied, and stay untouched until the answer.
            at: where the first byte must go; None for the head.

        Raises:
            TooLarge: they do not fit into one frame. Nothing was sent: send fewer at a time.
            InvalidArgument: they are no buffers, or none, or `at` is no offset. Nothing was sent.
            Refused: none of it was done.
            Unknown: it may have been done.
        """
        future = await self.submit(records, at=at)
        return await future

    async def submit(
        self, records: Sequence[Buffer], *, at: int | None = None
    ) -> "asyncio.Future[Acknowledged]":
        """As `send`, but return once the frame is on its way; the future has the answer."""
        checked.buffers("a run", records)
        checked.offset(at)
        if not records:
            raise InvalidArgument("a run has at least one record")
        lengths = array("I", [len(record) for record in records])
        size = sum(lengths)
        base = self._connection.base
        if (
            size + 8 + 4 * len(lengths) > base.peer_frame_bytes_max
            or size > base.peer_window_bytes
            or len(lengths) > base.peer_run_count_max
        ):
            raise TooLarge(
                f"a run of {len(lengths)} records and {size} bytes, and {self._connection.address} takes"
                f" {base.peer_run_count_max} and {base.peer_frame_bytes_max}"
            )
        if self._waiting or not self._has_room(size):
            await self._wait(size)
        else:
            self.unanswered_bytes += size
        self._raise_if_ended()
        table = f.U64.pack(f.AT_HEAD if at is None else at) + lengths.tobytes()
        future: asyncio.Future[Acknowledged] = asyncio.get_running_loop().create_future()
        self._answers[self._sequence] = (len(lengths), size, future)
        self._sequence += len(lengths)
        base.send_run(self.stream, table, records)
        self._connection.mark_dirty()
        return future

    async def close(self) -> None:
        """End the stream once everything is answered.

        Raises:
            BroadsheetError: it was ended otherwise before.
        """
        if not self._has_finished and self._error is None:
            self._has_finished = True
            self._connection.base.finish(self.stream)
            self._connection.mark_dirty()
        await asyncio.shield(self._ended)

    def check(self) -> None:
        """Between two turns of the loop nobody waits for room that there is; also under `python -O`."""
        if self._waiting and self._has_room(self._waiting[0][0]):
            raise AssertionError(f"a run of {self._waiting[0][0]} bytes waits, and has room")

    def _has_room(self, size: int) -> bool:
        window = self._connection.base.peer_window_bytes
        return self.unanswered_bytes + size <= window and not self._connection.is_write_paused

    async def _wait(self, size: int) -> None:
        """Wait for room, which is taken as soon as there is some: nobody may come in between."""
        self._raise_if_ended()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, waiter)
        self._waiting.append(entry)
        try:
            await waiter
        except BaseException:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif not waiter.cancelled():
                self.unanswered_bytes -= size  # It had got the room, and goes without using it.
            self.on_writable()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be submitted any more."""
        return self._error is not None

    def _raise_if_ended(self) -> None:
        """What was not submitted was not done, whatever is unknown of the records before it."""
        if isinstance(self._error, Unknown):
            raise Unreachable(f"the run stream had ended, and nothing of this was sent: {self._error}")
        if self._error is not None:
            raise self._error
        assert not self._has_finished, "the stream was closed by us"

    # ------------------------------------------------------------------ for the connection

    def on_writable(self) -> None:
        """The window, or the socket, has room: give it to those that wait, in order."""
        while self._waiting and (self._error is not None or self._has_room(self._waiting[0][0])):
            size, waiter = self._waiting.popleft()
            if not waiter.done():
                self.unanswered_bytes += size
                waiter.set_result(None)

    def on_opened(self, body: memoryview) -> None:
        """The target has accepted the stream."""
        if not self.opened.done():
            self.opened.set_result(body)

    def on_answer(self, event: AcknowledgedReceived | RunRefused) -> None:
        """Some records have their answer."""
        entry = self._answers.pop(event.sequence, None)
        if entry is None or entry[0] != event.count:
            self._connection.base.fail(Status.REMOTE_PROTOCOL, "an answer to records that were never sent")
            return
        _, size, future = entry
        self.unanswered_bytes -= size
        if not future.done():
            if isinstance(event, RunRefused):
                future.set_exception(error_of(event.status, event.message, event.hint))
            else:
                future.set_result(Acknowledged(event.sequence, event.count, event.begin, event.end))
        self.on_writable()

    def on_end(self, error: BroadsheetError | None) -> None:
        """The stream has ended; what has no answer is as the error says."""
        self._error = error if error is not None else Unknown("the run stream has ended")
        if not self.opened.done():
            self.opened.set_exception(self._error)
        undecided = Unknown(f"the run stream ended before the answer came: {self._error}")
        for _, _, future in self._answers.values():
            if not future.done():
                future.set_exception(undecided)
                future.exception()  # Whoever sent it may be gone.
        self._answers = {}
        if not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)
                self._ended.exception()
        self.on_writable()
