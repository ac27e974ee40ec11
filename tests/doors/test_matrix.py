"""The authorization matrix of access.3: every method of a real node by every kind of caller, over sockets.

A method that a node offers and that has no row here fails `test_every_method_has_a_row`: whoever adds a
method says what a caller needs for it.
"""

import base64
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broadsheet.access.authorizer import CLUSTER_WIDE
from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.access.tokens import Tokens
from broadsheet.base.time import SECOND, Duration, WallTime
from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.control.service import CompareAndSetRequest, ReplaceRequest
from broadsheet.doors.native.door import NativeConfig
from broadsheet.errors import BroadsheetError, NotAllowed, Unauthenticated
from broadsheet.journal.core.spec import JournalSpec
from broadsheet.journal.messages import (
    AlterRequest,
    AppendRequest,
    CreateRequest,
    IndexPointsRequest,
    ListReply,
    ListRequest,
    LossRequest,
    NameRequest,
    OffsetAtRequest,
    ProducerIndexRequest,
    ReadRequest,
    RunRequest,
    SettleRequest,
    SpecChange,
    TrimRequest,
)
from broadsheet.node import Node, NodeConfig, Settings
from broadsheet.observe.logs import Logs
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.system import system_ports
from broadsheet.wire.client import ClientConnection, dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY, Method, Shape
from tests.wire.harness import LoopPorts

KEY = b"0123456789abcdef0123456789abcdef"
LIFETIME = Duration(600 * SECOND)

NAMED: dict[str, Callable[[JournalName], msgspec.Struct]] = {
    "journal.create": lambda name: CreateRequest(JournalSpec(name)),
    "journal.delete": NameRequest,
    "journal.get": NameRequest,
    "journal.status": NameRequest,
    "journal.append": AppendRequest,
    "journal.append_stream": AppendRequest,
    "journal.append_run": RunRequest,
    "journal.read": lambda name: ReadRequest(name, ByteOffset(0)),
    "journal.registers": NameRequest,
    "journal.fragments": NameRequest,
    "journal.producer_index": lambda name: ProducerIndexRequest(name, ByteOffset(0)),
    "journal.index_points": IndexPointsRequest,
    "journal.reset_head": LossRequest,
    "journal.accept_loss": LossRequest,
    "journal.alter": lambda name: AlterRequest(name, SpecChange()),
    "journal.trim": lambda name: TrimRequest(name, ByteOffset(0)),
    "journal.offset_at": lambda name: OffsetAtRequest(name, WallTime(0)),
    "journal.settle": lambda name: SettleRequest(name, bytes(16)),
}
"""Methods about one name: how to ask about it."""

UNNAMED: dict[str, msgspec.Struct] = {
    "node.status": EMPTY,
    "journal.list": ListRequest(),
    "metastore.read": EMPTY,
    "metastore.compare_and_set": CompareAndSetRequest(1 << 40),
    "metastore.status": EMPTY,
    "metastore.replace": ReplaceRequest(None, None),
    "metastore.prepare": EMPTY,  # No request of theirs: whoever may send one is told so, nobody else.
    "metastore.accept": EMPTY,
    "metastore.held": EMPTY,
}
"""Methods about no one name: they are filtered, or open to whoever has the capability."""


class Door:
    """A node's native door, and callers of every kind."""

    def __init__(self, address: str, methods: list[Method]) -> None:
        self.address, self.methods = address, methods
        self.ports = LoopPorts()

    def token(self, capabilities: Capability, prefix: str, *, issued: int = 0, key: bytes = KEY) -> str:
        now = WallTime(self.ports.time.wall() + issued * SECOND)
        return Tokens([key], audience="c1").sign(capabilities, prefixes=[prefix], now=now, lifetime=LIFETIME)

    async def client(self, token: str) -> ClientConnection:
        return await dial(self.ports, self.address, token=token, limits=WireLimits())

    async def ask(self, token: str, method: Method, request: msgspec.Struct) -> BroadsheetError | None:
        """The error that a caller with `token` gets, or None."""
        try:
            client = await self.client(token)
        except BroadsheetError as error:
            return error
        raw: Any = msgspec.Raw
        try:
            if method.shape is Shape.UNARY:
                await client.call(method.name, request, reply=raw, timeout=Duration(5 * SECOND))
            elif method.shape is Shape.STREAM:
                stream = await client.open(method.name, request, timeout=Duration(5 * SECOND))
                await stream.reply(raw)
            else:
                await client.open_run(method.name, request, reply=raw, timeout=Duration(5 * SECOND))
        except BroadsheetError as error:
            return error
        finally:
            await client.close()
        return None


@asynccontextmanager
async def node(tmp_path: Path, *, has_keys: bool) -> AsyncIterator[Door]:
    keys = tmp_path / "keys"
    keys.write_text(base64.b64encode(KEY).decode(), encoding="ascii")
    settings = Settings(
        node=NodeConfig(id="n1", cluster="c1"),
        native=NativeConfig(address="127.0.0.1:0", keys_file=str(keys) if has_keys else ""),
        http=msgspec.structs.replace(Settings().http, address="127.0.0.1:0"),
    )
    crashed: list[BaseException] = []
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    disk = LocalDisk(root)
    ports = system_ports(disk, crash=crashed.append)
    made = Node(settings, ports, logs=Logs(io.StringIO(), wall=ports.time.wall, is_console=False))
    addresses = await made.start()
    try:
        yield Door(addresses["native"], made.services.every(Method))
    finally:
        await made.close()
        disk.close()
    assert not crashed, crashed


def request_of(method: Method, name: str) -> msgspec.Struct:
    make = NAMED.get(method.name)
    return UNNAMED[method.name] if make is None else make(JournalName(name))


async def test_every_method_has_a_row(tmp_path: Path) -> None:
    """A method that nobody thought about cannot be served (access.2)."""
    async with node(tmp_path, has_keys=True) as door:
        offered = {method.name for method in door.methods}

        assert offered == {*NAMED, *UNNAMED}, "add the method to NAMED or UNNAMED, with what a caller needs"
        for method in door.methods:
            assert (method.name_of is not None) == (method.name in NAMED), method


async def test_the_matrix(tmp_path: Path) -> None:
    """No token, an expired one, a forged one, the wrong prefix, the wrong capability, the right one."""
    async with node(tmp_path, has_keys=True) as door:
        for method in door.methods:
            need, wide = method.capability, method.capability or Capability.READ
            mine, other = request_of(method, "mine/j"), request_of(method, "other/j")
            grant = "" if need & CLUSTER_WIDE else "mine/"
            is_bound = method.name_of is not None or bool(need & CLUSTER_WIDE)
            expect: list[tuple[str, str, msgspec.Struct, type[BroadsheetError] | None]] = [
                ("no token", "", mine, Unauthenticated),
                ("no token at all like one", "nonsense", mine, Unauthenticated),
                ("expired", door.token(EVERYTHING, "", issued=-700), mine, Unauthenticated),
                ("forged", door.token(EVERYTHING, "", key=b"x" * 32), mine, Unauthenticated),
                ("wrong prefix", door.token(EVERYTHING, "mine/"), other, NotAllowed if is_bound else None),
                (
                    "wrong capability",
                    door.token(EVERYTHING & ~need if need else wide, grant),
                    mine,
                    NotAllowed if need else None,
                ),
                ("right", door.token(wide, grant), mine, None),
            ]
            for who, token, request, refused in expect:
                error = await door.ask(token, method, request)
                if refused is not None:
                    assert type(error) is refused, f"{method.name}, {who}: {error!r}"
                else:
                    assert not isinstance(error, Unauthenticated | NotAllowed), (
                        f"{method.name}, {who}: {error!r}"
                    )


async def test_without_keys_everything_is_allowed_on_loopback(tmp_path: Path) -> None:
    """The embedded default: no token is wanted, and the door is bound to loopback only."""
    async with node(tmp_path, has_keys=False) as door:
        for method in door.methods:
            error = await door.ask("", method, request_of(method, "mine/j"))

            assert not isinstance(error, Unauthenticated | NotAllowed), f"{method.name}: {error!r}"


async def test_a_refusal_does_not_tell_whether_the_name_exists(tmp_path: Path) -> None:
    """A caller without a grant learns nothing, by no method (access.4).

    The same words for what is there and what is not.
    """
    async with node(tmp_path, has_keys=True) as door:
        methods = {method.name: method for method in door.methods}
        create = methods["journal.create"]
        assert await door.ask(door.token(EVERYTHING, ""), create, request_of(create, "other/there")) is None
        narrow = door.token(EVERYTHING, "mine/")
        for name in NAMED:
            there = await door.ask(narrow, methods[name], request_of(methods[name], "other/there"))
            absent = await door.ask(narrow, methods[name], request_of(methods[name], "other/absent"))

            assert type(there) is NotAllowed, name
            assert repr(there) == repr(absent), name


async def test_a_listing_shows_only_what_the_grant_covers(tmp_path: Path) -> None:
    """List-like methods filter; they do not refuse."""
    async with node(tmp_path, has_keys=True) as door:
        create = next(method for method in door.methods if method.name == "journal.create")
        for name in ("a/secret", "mine/a", "other/b"):
            assert await door.ask(door.token(EVERYTHING, ""), create, request_of(create, name)) is None
        client = await door.client(door.token(Capability.LIST, "mine/"))
        listed, _ = await client.call("journal.list", ListRequest(count_max=1), reply=ListReply)
        rest, _ = await client.call("journal.list", ListRequest(after=listed.after), reply=ListReply)
        await client.close()

        assert [info.spec.name for info in listed.journals] == ["mine/a"]
        assert (listed.after, listed.has_more) == ("mine/a", False), "where a page ends tells no other name"
        assert (rest.journals, rest.after, rest.has_more) == ([], "", False)


@pytest.mark.parametrize("name", sorted({*NAMED, *UNNAMED}))
async def test_a_malformed_request_is_authorized_before_it_is_discussed(tmp_path: Path, name: str) -> None:
    """What a request must look like is told only to those that may make it."""
    async with node(tmp_path, has_keys=True) as door:
        method = next(method for method in door.methods if method.name == name)
        if not method.capability:
            return
        error = await door.ask(door.token(EVERYTHING & ~method.capability, ""), method, Wrong())

        assert type(error) is NotAllowed, error


class Wrong(msgspec.Struct, frozen=True, array_like=True):
    """The body of no request."""

    what: int = 1
