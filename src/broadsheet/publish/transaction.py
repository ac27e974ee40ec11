"""Transaction: messages of a publisher that become visible together.

NEW --enter--> OPEN --commit--> DECIDING --> ENDED; OPEN --roll back, a message that did not arrive--> ENDED.
Its messages are appended as pending ones while it is open. The publisher decides it (`decide`). Source:
pipelines.18; docs/adr/0201.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from broadsheet.errors import LocalProtocolError, NotFound
from broadsheet.message.position import Position
from broadsheet.message.stamper import Intent, Stamper
from broadsheet.ports import Time
from broadsheet.publish.arguments import Body, portions
from broadsheet.publish.lanes import Lane, Lanes

Decide = Callable[[Sequence[Intent], Mapping[str, Position]], Coroutine[Any, Any, None]]
"""Commits the messages of `intents`, and what was consumed to make them."""


class Transaction:
    """Made by `MessagePublisher.transaction`; `async with` it."""

    def __init__(
        self,
        lanes: Lanes,
        stamper: Stamper,
        *,
        time: Time,
        output: Callable[[str | Sequence[str], bytes | str | None], str],
        decide: Decide,
        ended: Callable[[Stamper | None], None],
    ) -> None:
        """Append through `lanes` what `stamper` stamps.

        Args:
            output: the journal that is meant by a name or by several and a key.
            ended: is given `stamper` at the end, or None if nothing may be stamped by it any more.
        """
        self.positions: dict[str, Position] = {}
        """Where the input of this transaction ends, by journal: set it before the commit, which keeps it."""
        self._lanes, self._stamper, self._time = lanes, stamper, time
        self._output, self._decide, self._ended = output, decide, ended
        self._on_way: dict[asyncio.Future[None], None] = {}
        self._error: BaseException | None = None
        self._is_open = True

    async def __aenter__(self) -> Self:
        """The transaction is open since it was made."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit; after an error of the block roll back."""
        if error is not None:
            self.roll_back()
        elif self._is_open:  # The block may have ended it itself.
            await self.commit()

    async def publish(
        self, journal: str | Sequence[str], message: Body, *, key: bytes | str | None = None
    ) -> None:
        """Append one message that commits with the transaction; arguments as `MessagePublisher.publish`.

        It returns when the message has its place, not when it is durable: the commit waits for that.

        Raises:
            InvalidArgument: as `MessagePublisher.publish`. NotFound: there is no such journal.
        """
        await self.publish_many(journal, (message,), key=key)

    async def publish_many(
        self, journal: str | Sequence[str], messages: Sequence[Body], *, key: bytes | str | None = None
    ) -> None:
        """Append messages to one journal in their order; otherwise as `publish`."""
        lane = await self._lanes.lane(self._output(journal, key))
        for bodies in await portions(lane.framing, messages):
            await self._lanes.room()
            self._refuse_remade(lane)
            self._require_open()
            wall, stamp = self._time.wall(), self._stamper.pending
            stamped = [
                stamp(lane.name, lane.framing, body, wall, create_revision=lane.revision) for body in bodies
            ]
            sent = self._lanes.put(lane, b"".join(stamped))
            self._on_way[sent] = None
            sent.add_done_callback(self._answered)

    async def commit(self) -> None:
        """Wait until every message is durable, then commit them and `positions`.

        Raises:
            Refused, Unknown: a message did not arrive: everything is rolled back. If the decision itself
                fails, the publisher is over. Then `Refused` means that the transaction is not committed
                (`Fenced`: a newer publisher took over), and `Unknown` that it is, or may be; a note says
                which, as far as that is known.
        """
        try:
            self._require_open()
            while self._on_way:
                await asyncio.wait(list(self._on_way))
                await asyncio.sleep(0)  # What they have told is known after that.
            self._require_open()
        except BaseException:
            self.roll_back()
            raise
        self._is_open = False
        stamper = None
        try:
            await self._decide(self._stamper.intents(), self.positions)
            stamper = self._stamper
        finally:
            self._ended(stamper)

    def roll_back(self) -> None:
        """Take everything back: no reader of committed messages ever sees it. Idempotent.

        The journals are told, as far as they answer. Nothing depends on that, because no acknowledgement of
        this producer follows; but otherwise readers keep its messages in mind as pending for a week.
        """
        if self._is_open:
            self._is_open = False
            for intent in self._stamper.rollbacks():
                self._lanes.put_again(intent)
            self._ended(None)

    def _refuse_remade(self, lane: Lane) -> None:
        """Fail, whatever the caller does about it, if an earlier message went with a deleted journal."""
        _, _, revision = self._stamper.open.get(lane.name, (None, None, lane.revision))
        if revision != lane.revision and self._error is None:
            self._error = NotFound(
                f"journal {lane.name} was deleted and made again, and messages of this transaction went with"
                " it: begin another transaction"
            )

    def _require_open(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._is_open:
            raise LocalProtocolError("the transaction has ended: begin another one")

    def _answered(self, sent: "asyncio.Future[None]") -> None:
        self._on_way.pop(sent, None)
        if self._error is None:
            self._error = sent.exception()
