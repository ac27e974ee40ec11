"""Service: the metastore's methods for the native door, with their requests and replies.

Peers use `prepare`, `accept` and `held` (capability REPLICATE); clients `read`, `compare_and_set`,
`status`, `replace` (ADMIN). Numbers 16-31 are the metastore's. Source: `docs/protocols/metastore.md`.
"""

from typing import Final

import msgspec

from broadsheet.access.capability import Capability
from broadsheet.base.types import NodeId
from broadsheet.control.core.messages import Accept, Prepare, Read, Request
from broadsheet.control.core.value import Acceptor, AcceptorSets, Count
from broadsheet.control.document_chunks import (
    Carried,
    document_of,
    receive_document,
    send_document,
    with_document,
    without_document,
)
from broadsheet.control.majority import METHOD_OF, MajorityMetastore
from broadsheet.control.port import Metastore
from broadsheet.errors import InvalidArgument, Refused, Unknown, Unsupported
from broadsheet.wire.method import Call, Empty, KeepingStream, Method, Reply, Shape, WireStream

NUMBERS: Final = {
    "metastore.prepare": 16,
    "metastore.accept": 17,
    "metastore.held": 18,
    "metastore.read": 19,
    "metastore.compare_and_set": 20,
    "metastore.status": 21,
    "metastore.replace": 22,
}


class VersionReply(msgspec.Struct, frozen=True):
    """A version of the metastore's document."""

    version: int


class CompareAndSetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A compare-and-set on the metastore's `version`. The new document follows in chunks."""

    version: Count


class StatusReply(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the metastore, as this node sees it."""

    provider: str
    node: NodeId
    version: int = 0
    """The version of the document; 0 if `is_readable` is false."""
    document_bytes: int = 0
    is_readable: bool = False
    """Whether a majority answered just now."""
    acceptors: tuple[Acceptor, ...] = ()
    """The acceptor set in force."""
    pending: tuple[Acceptor, ...] = ()
    """The acceptor set after a pending change."""
    own: Acceptor | None = None
    """This node's acceptor. If it lost its state, it is no member until it replaces its old life."""
    ballot: int = 0
    """Counter of the greatest ballot that this node's acceptor promised."""


class ReplaceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replace the acceptor `removed` by `added`."""

    removed: Acceptor | None
    added: Acceptor | None
    address: str = ""


class MetastoreService:
    """The handlers of the metastore's methods at one node."""

    def __init__(self, node: NodeId, metastore: Metastore) -> None:
        self._node, self._metastore = node, metastore

    def methods(self) -> list[Method]:
        """Every row of the metastore's methods."""
        rows = [
            self._row("metastore.read", Empty, self._read, Capability.ADMIN),
            self._row(
                "metastore.compare_and_set", CompareAndSetRequest, self._compare_and_set, Capability.ADMIN
            ),
            self._row("metastore.status", Empty, self._status, Capability.ADMIN, Shape.UNARY),
            self._row("metastore.replace", ReplaceRequest, self._replace, Capability.ADMIN, Shape.UNARY),
        ]
        peers = [
            self._row(METHOD_OF[kind], kind, self._ask, Capability.REPLICATE)
            for kind in (Prepare, Accept, Read)
        ]
        return [*rows, *peers]

    def _row(
        self,
        name: str,
        request: type[msgspec.Struct],
        handler: object,
        capability: Capability,
        shape: Shape = Shape.STREAM,
    ) -> Method:
        assert callable(handler), "a row has a handler"
        return Method(
            name,
            number=NUMBERS[name],
            shape=shape,
            capability=capability,
            request=request,
            name_of=None,
            handler=handler,
        )

    async def _ask(self, _call: Call, request: Request, stream: KeepingStream) -> Reply:
        document = await receive_document(stream, keep=stream.keep)
        response = await self._majority().ask_acceptor(with_document(request, document))
        await send_document(stream, document_of(response))
        return Reply(Carried(without_document(response)))

    async def _read(self, _call: Call, _request: Empty, stream: WireStream) -> Reply:
        versioned = await self._metastore.read()
        await send_document(stream, versioned.document)
        return Reply(VersionReply(versioned.version))

    async def _compare_and_set(
        self, _call: Call, request: CompareAndSetRequest, stream: KeepingStream
    ) -> Reply:
        document = await receive_document(stream, keep=stream.keep)
        versioned = await self._metastore.compare_and_set(request.version, document)
        return Reply(VersionReply(versioned.version))

    async def _status(self, _call: Call, _request: Empty, _payload: memoryview) -> Reply:
        metastore = self._metastore
        if not isinstance(metastore, MajorityMetastore):
            found = await metastore.read()
            return Reply(
                StatusReply(
                    provider="file",
                    node=self._node,
                    version=found.version,
                    document_bytes=len(found.document),
                    is_readable=True,
                )
            )
        return Reply(await majority_status(self._node, metastore))

    async def _replace(self, _call: Call, request: ReplaceRequest, _payload: memoryview) -> Reply:
        if request.removed is None and request.added is None:
            raise InvalidArgument("name the acceptor to remove, the one to add, or both")
        return Reply(
            VersionReply(await self._majority().replace(request.removed, request.added, request.address))
        )

    def _majority(self) -> MajorityMetastore:
        if not isinstance(self._metastore, MajorityMetastore):
            raise Unsupported("this node stands alone: its metastore is a file and has no acceptors")
        return self._metastore


async def majority_status(node: NodeId, metastore: MajorityMetastore) -> StatusReply:
    """The metastore's status by the latest value; if no majority answers, by what this node knows."""
    own = metastore.acceptor.acceptor
    ballot = metastore.acceptor.memory.promised.counter
    try:
        value = await metastore.read_value()
    except (Refused, Unknown):
        known = metastore.proposer.known
        sets = known.value.sets if known else AcceptorSets()
        return StatusReply(
            provider="majority", node=node, acceptors=sets.old, pending=sets.new, own=own, ballot=ballot
        )
    return StatusReply(
        provider="majority",
        node=node,
        version=value.version,
        document_bytes=len(value.document),
        is_readable=True,
        acceptors=value.sets.old,
        pending=value.sets.new,
        own=own,
        ballot=ballot,
    )
