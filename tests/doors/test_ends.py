"""Integers at the ends of their range, in every field of every request of a real node.

Each must be answered or refused with a reason: never by a handler that failed, and never by a connection that
ends. A method that is new is covered without being named here.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.doors.native.door import NativeConfig
from broadsheet.errors import BroadsheetError
from broadsheet.journal.messages import JournalInfo
from broadsheet.node import Node, NodeConfig, Settings
from broadsheet.observe.logs import Logs
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.system import system_ports
from broadsheet.wire.client import ClientConnection, dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Empty, Method, Shape
from tests.wire.harness import LoopPorts

ENDS = (-(1 << 63), -1, 0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63,
        (1 << 64) - 1)  # fmt: skip
JOURNAL = "ends/a"
PATIENCE = Duration(60 * MILLISECOND)
"""A read or a barrier may wait for what never comes: that is no answer, and no failure."""


def example(kind: Any) -> Any:
    """A value of an inspected type."""
    info = msgspec.inspect
    if isinstance(kind, info.StructType):
        values = {field.encode_name: example(field.type) for field in kind.fields}
        return list(values.values()) if kind.array_like else values
    if isinstance(kind, info.UnionType):
        some = [each for each in kind.types if not isinstance(each, info.NoneType)]
        return example(some[0])
    if isinstance(kind, info.EnumType):
        return next(iter(kind.cls)).value
    if isinstance(kind, info.DictType):
        return {example(kind.key_type): example(kind.value_type)}
    if isinstance(kind, info.ListType | info.VarTupleType | info.SetType):
        return [example(kind.item_type)]
    if isinstance(kind, info.TupleType):
        return [example(each) for each in kind.item_types]
    values_by_type: dict[type, Any] = {
        info.StrType: JOURNAL,
        info.IntType: 1,
        info.BoolType: True,
        info.BytesType: b"x",
        info.FloatType: 1.0,
    }
    return values_by_type.get(type(kind))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the integers are."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield path
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from places(each, (*path, number))


def changed(value: Any, path: tuple[Any, ...], to: int) -> Any:
    """`value` with another integer at `path`."""
    if not path:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], to)
    return copy


async def ask(client: ClientConnection, method: Method, request: Any) -> None:
    raw: Any = msgspec.Raw
    try:
        if method.shape is Shape.UNARY:
            await client.call(method.name, request, reply=raw, timeout=PATIENCE)
        elif method.shape is Shape.STREAM:
            stream = await client.open(method.name, request, timeout=PATIENCE)
            await stream.reply(raw)
        else:
            _, run = await client.open_run(method.name, request, reply=Empty, timeout=PATIENCE)
            client.withdraw(run.stream)
    except (BroadsheetError, msgspec.ValidationError):
        pass


@pytest.mark.timeout(120)
async def test_integers_at_their_ends_are_answered_or_refused(tmp_path: Path) -> None:
    """A number that no field can hold must not reach a file, a `struct` or an index (wire.11)."""
    log = io.StringIO()
    settings = Settings(
        node=NodeConfig(id="n1", cluster="c1"),
        native=NativeConfig(address="127.0.0.1:0"),
        http=msgspec.structs.replace(Settings().http, address="127.0.0.1:0"),
    )
    crashed: list[BaseException] = []
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    ports = system_ports(LocalDisk(root), crash=crashed.append)
    node = Node(settings, ports, logs=Logs(log, wall=ports.time.wall, is_console=False))
    addresses = await node.start()
    asked = 0
    try:
        client = await dial(LoopPorts(), addresses["native"], limits=WireLimits())
        request: Any = {"spec": {"name": JOURNAL}}
        await client.call("journal.create", request, reply=JournalInfo)
        for method in node.services.every(Method):
            if method.name in ("journal.create", "journal.delete"):
                continue  # Their numbers are of a spec, whose ends `tests/journal/core/test_spec.py` has.
            whole = example(msgspec.inspect.type_info(method.request))
            for place in places(whole):
                for end in ENDS:
                    await ask(client, method, changed(whole, place, end))
                    asked += 1
                    assert client.is_usable, f"{method.name} at {place}: {end} ended the connection"
                    assert "handler.failed" not in log.getvalue(), f"{method.name} at {place}: {end}"
        await client.close()
    finally:
        await node.close()
    assert asked >= 10 * len(ENDS), "there are integers in the requests of journals and metastore"
    assert not crashed
