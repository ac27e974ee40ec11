"""Majority: the provider for several nodes, with one acceptor and one proposer in each.

Two hosts drive the machines. Each message to another node is one STREAM call. The called node gives it up
when the time of an operation has passed, or with the connection, because an answer counts for its round
however late it comes. Every failure to deliver counts as a lost message: only the proposer's deadline ends an
operation. This module decides nothing: see `core`.
Source: design/control.md control.2-7.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import structs

from broadsheet.base.buggify import buggify
from broadsheet.base.machine import Event
from broadsheet.base.marks import hit
from broadsheet.base.time import MILLISECOND, Duration, in_seconds
from broadsheet.base.types import Generation, LogStreamId, NodeId, Offset, RequestId
from broadsheet.control.core.acceptor import (
    AcceptorEffect,
    AcceptorEvent,
    AcceptorMachine,
    FlushAsked,
    Persist,
    Persisted,
    PersistRefused,
    Send,
    TrimLog,
)
from broadsheet.control.core.messages import Accept, Prepare, Read, Request, Response
from broadsheet.control.core.operation import (
    Answer,
    ChangeRequest,
    OperationRequest,
    ReadRequest,
    ReplaceRequest,
)
from broadsheet.control.core.proposer import ProposerEffect, ProposerEvent, ProposerMachine
from broadsheet.control.core.value import NO_BALLOT, Acceptor, AttemptId, Value, acceptor_text
from broadsheet.control.document_chunks import (
    Carried,
    document_of,
    receive_document,
    send_document,
    with_document,
    without_document,
)
from broadsheet.control.port import Versioned
from broadsheet.control.size import SizeWarning
from broadsheet.errors import (
    BY_STATUS,
    AlreadyExists,
    BroadsheetError,
    InvalidArgument,
    NotAllowed,
    NotFound,
    Refused,
    ShuttingDown,
    StoreUnhealthy,
    Throttled,
    TooLarge,
    Unauthenticated,
    Unknown,
    Unreachable,
)
from broadsheet.observe.logs import Logger
from broadsheet.observe.story import Story
from broadsheet.ports import Time, Timers
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.host import Host
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.wal.log import Log
from broadsheet.wire.pool import Pool

BEGIN_PAUSE: Final = Duration(100 * MILLISECOND)
"""How long `begin` waits before it reads again."""
CALLS_PER_PEER_MAX: Final = 64
"""Messages on their way to one node; above this, new ones are dropped."""
STORY_BYTES_MAX: Final = 4096
"""In a story, steps with more bytes are recorded without their documents."""
METHOD_OF: Final[Mapping[type[Event], str]] = {
    Prepare: "metastore.prepare",
    Accept: "metastore.accept",
    Read: "metastore.held",
}
"""The method that carries each kind of request."""


class MajorityMetastore:
    """A `Metastore` on a majority of acceptors, this node's among them."""

    def __init__(
        self,
        node: NodeId,
        acceptor: AcceptorMachine,
        proposer: ProposerMachine,
        *,
        peers: Mapping[NodeId, str],
        log: Log,
        stream: LogStreamId,
        pool: Pool,
        time: Time,
        timers: Timers,
        scope: Scope,
        crash: Crash,
        call_timeout: Duration,
        logger: Logger | None = None,
    ) -> None:
        """Drive the machines of `node`; the acceptor's records go to `stream` of `log`.

        Args:
            call_timeout: how long one message and its answer may take together; then it counts as lost.
        """
        self.node, self.acceptor, self.proposer = node, acceptor, proposer
        self._peers, self._log, self._stream, self._pool, self._scope = peers, log, stream, pool, scope
        self._next_offset = log.next_offset(stream)
        self._waiters: dict[RequestId, asyncio.Future[Answer]] = {}
        self._asked: dict[NodeId, asyncio.Future[Response]] = {}
        self._calls: dict[NodeId, int] = {}
        self._count = 0
        self._call_timeout = call_timeout
        self._is_closed = self._is_bare = False
        self._size = SizeWarning(logger)

        def end(error: BaseException, _: Story) -> None:
            crash(error)

        self.acceptor_host: Host[AcceptorEvent, AcceptorEffect] = Host(
            acceptor,
            {Persist: self._persist, Send: self._send_response, TrimLog: self._trim},
            time=time,
            timers=timers,
            crash=end,
            story=Story("metastore.acceptor", payload_bytes_max=STORY_BYTES_MAX),
        )
        self.proposer_host: Host[ProposerEvent, ProposerEffect] = Host(
            proposer,
            {Send: self._send_request, Answer: self._answer},
            time=time,
            timers=timers,
            crash=end,
            story=Story("metastore.proposer", payload_bytes_max=STORY_BYTES_MAX),
        )
        log.on_flush_request(stream, lambda _: self.acceptor_host.deliver(FlushAsked()))
        log.on_quarantine(stream, lambda _: self.acceptor_host.deliver(FlushAsked()))
        scope.defer(self.close)

    @property
    def is_member(self) -> bool:
        """Whether this node's acceptor is one of those that vote, as far as it knows."""
        accepted = self.acceptor.memory.accepted
        return accepted is not None and self.acceptor.acceptor in accepted.value.sets.members()

    @property
    def log(self) -> Log:
        """The role's log."""
        return self._log

    @property
    def shortage(self) -> str:
        """Why this node's acceptor can promise and accept nothing for want of room; empty if it can."""
        return self._log.shortage

    async def read(self) -> Versioned:
        """Like `Metastore.read`."""
        value = await self.read_value()
        return Versioned(value.document, value.version)

    async def read_value(self) -> Value:
        """The latest value, acceptor sets included."""
        answer = await self._do(ReadRequest)
        assert answer.value is not None, "an answered read has a value"
        self._size.saw(len(answer.value.document))
        return answer.value

    async def begin(self) -> None:
        """Read until there is a value: this makes the founder found, and all nodes learn the acceptors."""
        while not self._is_closed:
            try:
                await self.read_value()
            except (Refused, Unknown):  # There is no majority yet, or too many clients ask: try again.
                await asyncio.sleep(in_seconds(BEGIN_PAUSE))
                continue
            return

    async def compare_and_set(self, version: int, document: bytes) -> Versioned:
        """Like `Metastore.compare_and_set`."""
        answer = await self._do(lambda r: ChangeRequest(r, version, bytes(document), self._attempt()))
        self._size.saw(len(document))
        return Versioned(document, answer.version)

    async def replace(self, removed: Acceptor | None, added: Acceptor | None, address: str) -> int:
        """Change the acceptors by two writes; the version of the second.

        Raises:
            NotFound: `removed` is no acceptor, or no node has the acceptor `added`. Nothing changed.
            Unreachable: the node of `added` does not answer. Nothing changed.
            Unknown: the change may be half done, and the same command finishes it; or another one undid it.
        """
        if added is not None:
            await self._must_live(added, address)
        return (await self._do(lambda r: ReplaceRequest(r, removed, added, address, self._attempt()))).version

    async def _must_live(self, added: Acceptor, address: str) -> None:
        """Refuse an acceptor that does not exist: it would be a member without a vote, unnoticed."""
        if added in (await self.read_value()).sets.members():
            return  # It is a member already: a change that is half done can be finished without asking it.
        found = self.acceptor.acceptor
        if added.node != self.node:
            where = address or self._address(added.node)
            if not where:
                raise InvalidArgument(
                    f"the address of acceptor {added.node} is not known: give it with the command"
                )
            try:
                held = await self._carry(where, Read(self.node, (self.proposer.nonce, 0), NO_BALLOT))
            except BroadsheetError as error:
                text = f"{added.node} does not answer at {where}, so nothing was changed: {error}"
                raise Unreachable(text) from error
            found = held.acceptor
        if found != added:
            text = f"no acceptor is {acceptor_text(added)}: {added.node} answers as {acceptor_text(found)}"
            raise NotFound(f"{text}; nothing was changed")

    async def ask_acceptor(self, request: Request) -> Response:
        """The answer of this node's acceptor to a request from another node; it may never come.

        Raises:
            AlreadyExists: the request would found a cluster, and this node knows of one. Its acceptor may be
                blank nevertheless: it may be the new life of a replaced acceptor, whose node the founder's
                `node.peers` still names.
        """
        if isinstance(request, Prepare) and not request.sets.members():
            self._must_be_free_to_found(request)
        self._count += 1
        back = NodeId(f"{request.sender}#{self._count}")  # Names this call, to find its answer.
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._asked[back] = future
        try:
            self.acceptor_host.deliver(structs.replace(request, sender=back))
            return await future
        finally:
            self._asked.pop(back, None)

    def _must_be_free_to_found(self, request: Prepare) -> None:
        """Refuse a founding while this node knows of a cluster that it would double.

        One founding is granted twice: of a founder that alone accepted version 1, and was then wiped. All
        other acceptors that version 1 names are asked, too. If all are blank, no majority has ever accepted
        anything. If one of them was replaced by a new life, its old life, which may have accepted a later
        version, is not asked: the founding is refused.
        """
        known, own = self.proposer.known, self.acceptor.memory
        if known is None or own.accepted is not None:
            return
        members = [each for each in known.value.sets.members() if each.node != request.sender]
        is_asked = all(each in request.founders for each in members)
        if known.value.version == 1 and own.acceptor in members and is_asked:
            hit("metastore.founded_again")
            return
        raise AlreadyExists(f"{self.node} knows of a cluster at version {known.value.version}")

    async def close(self) -> None:
        """Answer all callers that wait for the metastore with Unknown. Idempotent."""
        self._is_closed = True
        self.acceptor_host.close()
        self.proposer_host.close()
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(
                    Unknown(
                        "the metastore stopped before the outcome was known: read its document and compare"
                    )
                )
        self._waiters.clear()

    def _attempt(self) -> AttemptId:
        return f"{self.node}.{self.proposer.nonce:x}.{self._count}"

    async def _do(self, make: Callable[[RequestId], OperationRequest]) -> Answer:
        if self._is_closed:
            raise ShuttingDown("the metastore of this node is stopping: nothing was sent")
        self._count += 1
        request = RequestId(self._count)
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiters[request] = waiter
        try:
            self.proposer_host.deliver(make(request))
            return await waiter
        finally:
            self._waiters.pop(request, None)

    def _answer(self, effect: Answer) -> None:
        waiter = self._waiters.get(effect.request)
        if waiter is None or waiter.done():
            return  # The caller was cancelled.
        if error := BY_STATUS.get(effect.status):
            waiter.set_exception(error(effect.message))
        else:
            waiter.set_result(effect)

    def _persist(self, effect: Persist) -> None:
        if effect.offset != self._next_offset or buggify("metastore.log_refuses"):
            # A record before this one was refused, so this one cannot get its offset either.
            self.acceptor_host.deliver(PersistRefused(effect.token))
            return
        if self._log.is_quarantined(self._stream):
            self._is_bare = True  # An old record is lost, but the acceptor has its whole memory (W6).
        if self._is_bare and not effect.is_whole:
            self.acceptor_host.deliver(PersistRefused(effect.token))
            self.acceptor_host.deliver(FlushAsked())
            return
        passed("metastore.acceptor.append")
        durable = Persisted(effect.token)
        try:
            if self._log.is_quarantined(self._stream):
                generation = Generation(self._log.generation(self._stream) + 1)
                self._log.reset(self._stream, effect.offset, generation, done=lambda: None)
            self._log.append(
                self._stream, [effect.record], relief=self._is_bare, done=lambda: self._durable(durable)
            )
        except (StoreUnhealthy, Throttled, TooLarge):
            self.acceptor_host.deliver(PersistRefused(effect.token))
            return
        self._is_bare = False
        self._next_offset = Offset(effect.offset + 1)

    def _durable(self, event: Persisted) -> None:
        passed("metastore.acceptor.durable")
        self.acceptor_host.deliver(event)

    def _trim(self, effect: TrimLog) -> None:
        self._log.trim(self._stream, effect.below)

    def _send_response(self, effect: Send) -> None:
        """Pass an answer of our acceptor to the call that asked, or to our own proposer."""
        if isinstance(effect.message, Request):
            return  # An acceptor sends no requests.
        future = self._asked.get(effect.to)
        if future is not None:
            if not future.done():
                future.set_result(effect.message)
        elif effect.to == self.node:
            self.proposer_host.deliver(effect.message)

    def _send_request(self, effect: Send) -> None:
        """Pass a request of our proposer to our own acceptor, or send it over the wire."""
        message = effect.message
        if not isinstance(message, Request):
            return  # A proposer sends no answers.
        if effect.to == self.node:
            self.acceptor_host.deliver(message)
            return
        address = self._address(effect.to)
        if not address or self._calls.get(effect.to, 0) >= CALLS_PER_PEER_MAX or self._scope.is_closed:
            return  # The message is lost. The scope may be closed already: it cancels tasks before `close`.
        self._calls[effect.to] = self._calls.get(effect.to, 0) + 1
        self._scope.spawn(self._call(effect.to, address, message), name="call")

    def _address(self, node: NodeId) -> str:
        return self._peers.get(node) or self.proposer.address(node)

    async def _call(self, to: NodeId, address: str, message: Request) -> None:
        try:
            response = await self._carry(address, message)
        except BroadsheetError:
            return  # Request or answer is lost; the proposer repeats the request.
        finally:
            self._calls[to] -= 1
        self.proposer_host.deliver(response)

    async def _carry(self, address: str, message: Request) -> Response:
        connection = await self._pool.connection(address)
        method = METHOD_OF[type(message)]
        stream = await connection.open(method, without_document(message), timeout=self._call_timeout)
        try:
            await send_document(stream, document_of(message))
            stream.finish()
            document = await receive_document(stream)
            carried = await stream.reply(Carried)
        except (NotAllowed, Unauthenticated):
            connection.end("its token was refused")  # The next message dials, with the file's token.
            raise
        except BaseException:
            stream.cancel()
            raise
        return with_document(carried.response, document)
