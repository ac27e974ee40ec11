"""Document: the content of the metastore: nodes, namespaces, shards, chains (control.1).

It has no volatile data (offsets, lags, heartbeats): nodes are asked for those. Names and ids are text,
revisions and terms are integers. The acceptor set is not part of it: it is in the register's value
(`core.value`). These are plain values without state. A node reads and writes it only as bytes, and founds it
empty: the coordinator of control.8-12, which is not built yet, will fill nodes, namespaces and shards, and
the chains of files will come after it. Their places in the format are kept for them.
Source: design/control.md control.1.
"""

from typing import Final

import msgspec

from broadsheet.base.types import ClusterId, Incarnation, NodeId, Term
from broadsheet.control.core.value import oversize
from broadsheet.errors import Corrupt, TooLarge

FORMAT: Final = 1
"""Version of the document's format; a greater one is refused."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A replica in the metastore's document: a node and its incarnation."""

    node: NodeId
    incarnation: Incarnation


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A node of the cluster, in the metastore's document."""

    id: NodeId
    incarnation: Incarnation
    addresses: dict[str, str]
    """Door to address."""
    zone: str = ""


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """A shard in the metastore's document: a key range, and the members that replicate it."""

    id: int
    namespace: str
    begin: int
    """First position of the range; positions are unsigned 32 bits."""
    end: int
    """The position after the last."""
    ensemble: tuple[Member, ...]
    term: Term
    attempt: str
    """The attempt that owns the term (control.5)."""
    leader: NodeId | None = None
    pending: tuple[Member, ...] = ()
    """The ensemble that a pending change leads to."""
    tombstones: tuple[tuple[Member, Term], ...] = ()
    """Members that were removed, each with the term of its removal."""


class Chain(msgspec.Struct, frozen=True, array_like=True):
    """A chain of storage units, in the metastore's document."""

    name: str
    mode: str
    policy: str
    version: int
    """The version of `members`."""
    members: tuple[Member, ...]


class Document(msgspec.Struct, frozen=True, array_like=True):
    """The whole document of the metastore."""

    cluster: ClusterId
    nodes: tuple[Node, ...] = ()
    namespaces: tuple[str, ...] = ()
    shards: tuple[Shard, ...] = ()
    chains: tuple[Chain, ...] = ()
    format: int = FORMAT


_decoder = msgspec.msgpack.Decoder(Document)


def encoded(document: Document) -> bytes:
    """The bytes of the metastore's `document`.

    Raises:
        TooLarge: above 8 MiB.
    """
    content = msgspec.msgpack.encode(document)
    if text := oversize(content):
        raise TooLarge(text)
    return content


def decoded(content: bytes) -> Document:
    """The metastore's document in `content`.

    Raises:
        Corrupt: the content cannot be read, or is of another format.
    """
    try:
        document = _decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the metastore's document of {len(content)} bytes cannot be read: {error}") from error
    if document.format != FORMAT:
        raise Corrupt(f"the metastore's document has format {document.format}, this version reads {FORMAT}")
    return document
