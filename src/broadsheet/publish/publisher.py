"""Publisher: `client.publisher()`, messages into journals, each once for readers of committed messages.

    async with client.publisher() as publisher:
        await publisher.publish("events/clicks", {"user": 1})          # durable, and committed by itself

    async with client.publisher("app/commits") as publisher:
        async with publisher.transaction() as transaction:             # all of it, or nothing
            await transaction.publish("events/clicks", {"user": 1})
            await transaction.publish("events/views", {"user": 1})

NEW --enter--> READY --transaction--> BUSY --its end--> READY; --close, a commit that failed--> OVER. Units:
seconds, bytes. Messages that commit by themselves and those of transactions have a producer id each, because
the former would end the open span of the latter. Source: pipelines.6-10, 18; docs/adr/0201.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from broadsheet.errors import (
    BroadsheetError,
    ConfigError,
    InvalidArgument,
    LocalProtocolError,
    NotFound,
    Unknown,
)
from broadsheet.journal.client import Journals
from broadsheet.journal.client_requests import name_of
from broadsheet.message.position import Position, positions_from_text, positions_to_text
from broadsheet.message.stamper import Intent, Stamper
from broadsheet.message.uuid import PRODUCER_BYTES, producer_from
from broadsheet.ports import Random, Time
from broadsheet.publish.arguments import Body, chosen, portions
from broadsheet.publish.commits import CommitJournal
from broadsheet.publish.lanes import Lanes, Spawn
from broadsheet.publish.transaction import Transaction
from broadsheet.sink.core.driver_events import CommitAsked
from broadsheet.sink.core.records import FENCE_BYTES, Fence

PATIENCE_SECONDS: Final = 120.0
OWNER: Final = "broadsheet.publisher"
"""What the commit journal of a publisher has in place of the id of a Spark query."""
NOT_ENTERED: Final = "enter it with `async with` first"

_log: Final = logging.getLogger("broadsheet.publish")


class MessagePublisher:
    """Publishes messages under producer ids of its own. Made by `Client.publisher`."""

    def __init__(
        self,
        journals: Journals,
        commit_journal: str = "",
        *,
        patience: float = PATIENCE_SECONDS,
        time: Time,
        random: Random,
        spawn: Spawn,
    ) -> None:
        """Publish to `journals`; arguments as `Client.publisher`."""
        self.commit_journal = name_of(commit_journal) if commit_journal else ""
        self._journals, self._patience, self._time, self._random = journals, patience, time, random
        self._lanes = Lanes(journals, patience=patience, spawn=spawn)
        self._outside, self._pending = self._new_producer(), self._new_producer()
        """Stamp messages that commit by themselves, and those of transactions."""
        self._commits: CommitJournal | None = None
        self._batch = -1
        self._positions: dict[str, Position] = {}
        self._transaction: Transaction | None = None
        self._over = NOT_ENTERED
        """Why nothing can be published; empty if it can."""

    @property
    def positions(self) -> dict[str, Position]:
        """Where the input of the committed transactions ends, by journal; earlier programs' included."""
        return dict(self._positions)

    async def __aenter__(self) -> Self:
        """Begin; with a commit journal, take over from whoever published under it before.

        An earlier publisher of the same commit journal is fenced: it cannot commit any more. What it had
        committed is acknowledged if it had not come that far.

        Raises:
            ConfigError: the commit journal holds other data, or the commits of a Spark query.
            Fenced: a still newer publisher took over meanwhile.
        """
        if self._over != NOT_ENTERED:
            raise LocalProtocolError(f"this publisher was entered before, and is over: {self._over}")
        if self.commit_journal:
            await self._begin()
        self._over = ""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Publish nothing any more, and roll an open transaction back. Idempotent.

        Every message whose `publish` returned is durable.
        """
        if self._transaction is not None:
            self._transaction.roll_back()
        self._over = self._over or "it was closed: make another one"

    async def publish(
        self, journal: str | Sequence[str], message: Body, *, key: bytes | str | None = None
    ) -> None:
        """Publish one message that commits by itself, and return when it is durable.

        Messages of one publisher stand in a journal in the order of the calls. If an answer is lost, the
        message is sent again, and readers of committed messages see it once.

        Args:
            journal: a name; or several names, of which `key` chooses one: FNV-1a of the key, modulo their
                count, in the order of the names.
            message: bytes or text as they are, or what becomes one JSON object. A journal of fixed frames
                takes bytes.

        Raises:
            InvalidArgument: the message is no JSON object or too long, or a key is missing. Nothing changed.
            Refused: it is certainly not in the journal. Unknown: it may be; the node was away for longer than
                the patience.
        """
        await self.publish_many(journal, (message,), key=key)

    async def publish_many(
        self, journal: str | Sequence[str], messages: Sequence[Body], *, key: bytes | str | None = None
    ) -> None:
        """Publish messages to one journal in their order, in few appends; otherwise as `publish`.

        Messages of other calls that are under way may stand between them, and a later call before thousands.
        Each commits by itself: after an error the first ones of `messages` may be there, and none behind one
        that is not. Where some are, the error is `Unknown`, or `InvalidArgument` of a later one.
        """
        self._require_usable()
        lane = await self._lanes.lane(self._output(journal, key))
        sent: list[asyncio.Future[None]] = []
        for bodies in await portions(lane.framing, messages):
            await self._lanes.room()
            try:
                self._require_usable()
                wall = self._time.wall()
                stamped = [self._outside.committed(lane.framing, body, wall) for body in bodies]
                sent.append(self._lanes.put(lane, b"".join(stamped), behind=sent[-1] if sent else None))
            except LocalProtocolError as closed:  # The publisher, or its client, was closed meanwhile.
                if not sent:
                    raise
                raise Unknown(
                    f"the first of {len(messages)} messages may be in {lane.name}: {closed}"
                ) from closed
        for number, each in enumerate(sent):
            try:
                await each
            except BroadsheetError as error:
                if not number or isinstance(error, Unknown):
                    raise
                # The refusal is not of all of them (C2).
                raise Unknown(f"the first of {len(messages)} messages are in {lane.name}: {error}") from error

    def transaction(self) -> Transaction:
        """Begin a transaction: `async with` commits it at its end, and rolls it back after an error.

        One at a time. Its messages become visible in all journals, or in none, whatever ends this program:
        the next publisher of the same commit journal finishes what was committed. One journal may show them
        a moment before the next.

        Raises:
            InvalidArgument: the publisher has no commit journal. LocalProtocolError: a transaction is
                open, or the publisher is over.
        """
        if not self.commit_journal:
            raise InvalidArgument(
                "a transaction is decided in a commit journal: name one, client.publisher('app/commits')"
            )
        self._require_usable()
        if self._transaction is not None:
            raise LocalProtocolError("a transaction of this publisher is open: end it first")
        self._transaction = Transaction(
            self._lanes,
            self._pending,
            time=self._time,
            output=self._output,
            decide=self._decide,
            ended=self._ended,
        )
        return self._transaction

    def _output(self, journal: str | Sequence[str], key: bytes | str | None) -> str:
        """The journal that is meant."""
        name = name_of(chosen(journal, key))
        if name == self.commit_journal:
            raise InvalidArgument(f"{name} is the publisher's commit journal: publish to another one")
        return name

    async def _begin(self) -> None:
        try:
            found = await self._journals.registers(self.commit_journal, timeout=self._patience)
            owner = found.values.get("query", "")
        except NotFound:
            owner = ""
        if owner not in ("", OWNER):
            raise ConfigError(
                f"journal {self.commit_journal} has the commits of Spark query {owner}: a publisher needs a "
                "commit journal of its own, name another one"
            )
        self._commits = CommitJournal(
            self._journals,
            self.commit_journal,
            Fence(self._random.randbytes(FENCE_BYTES).hex()),
            patience=self._patience,
            time=self._time,
            report=_log.warning,
        )
        plan = await self._commits.begin()
        self._batch, self._positions = plan.committed, positions_from_text(plan.positions)

    def _require_usable(self) -> None:
        if self._over:
            raise LocalProtocolError(f"this publisher cannot publish: {self._over}")

    def _new_producer(self) -> Stamper:
        return Stamper(producer_from(self._random.randbytes(PRODUCER_BYTES)))

    async def _decide(self, intents: Sequence[Intent], consumed: Mapping[str, Position]) -> None:
        """Commit messages that are durable, and what was consumed to make them."""
        assert self._commits is not None, "a publisher without a commit journal has no transactions"
        positions = {**self._positions, **consumed}
        if not intents and positions == self._positions:
            return
        batch, text = self._batch + 1, positions_to_text(positions)
        asked = CommitAsked(
            batch=batch,
            query=OWNER,
            digest=hashlib.sha256(f"{self._commits.fence} {text}".encode()).hexdigest(),
            intents=intents,
            positions=text,
        )
        try:
            await self._commits.commit(asked)
        except BaseException as error:
            self._over = (
                f"its transaction {batch} {self._commits.outcome}; what is committed becomes visible when"
                f" the next publisher of {self.commit_journal} begins"
            )
            error.add_note(self._over)
            raise
        self._batch, self._positions = batch, positions

    def _ended(self, stamper: Stamper | None) -> None:
        """A transaction ended. Its producer is used again if nothing of it is on its way (pipelines.8)."""
        self._transaction = None
        if stamper is None or (self._commits is not None and self._commits.is_retired):
            self._pending = self._new_producer()
