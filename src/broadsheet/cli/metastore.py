"""Metastore: `broadsheet metastore`, which shows the metastore and replaces an acceptor by another.

Both commands ask one node through its native door. `status` exits with 0 if a majority answers. `replace` may
be repeated: it then finishes a change that was left half done.
"""

import asyncio
import shlex
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import Incarnation, NodeId
from broadsheet.cli.calling import address_of, ask
from broadsheet.cli.cluster import running_below
from broadsheet.cli.contexts import ADDRESS_VARIABLE
from broadsheet.control.core.value import Acceptor, acceptor_text
from broadsheet.control.file import REMEDY
from broadsheet.control.service import (
    ReplaceRequest,
    StatusReply,
    VersionReply,
)
from broadsheet.errors import ConfigError, InvalidArgument, NotFound, Unsupported
from broadsheet.runtime.loop import run
from broadsheet.wire.method import EMPTY

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="The cluster's document and its acceptors."
)

CALL_TIMEOUT = Duration(15 * SECOND)
DATA_DIR: Final = Path(".broadsheet")

DataDir = Annotated[Path, typer.Option(help="The data directory of `up` or `serve`.")]
Address = Annotated[
    str | None,
    typer.Option(
        envvar=ADDRESS_VARIABLE, help="The native door of a node; by default one of --data-dir is asked."
    ),
]


@app.command()
def status(
    context: typer.Context,
    *,
    data_dir: DataDir = DATA_DIR,
    address: Address = None,
    json: Annotated[bool, typer.Option("--json", help="Print an object instead of lines.")] = False,
) -> None:
    """Show version, acceptors and a pending change, as the first node that answers sees them.

    Each other node of --data-dir is asked as well, and told of if it has no vote.
    """
    address = address_of(context, address)
    found, *others = run(_seen([address] if address else _doors(data_dir)))
    where = "" if address or data_dir == DATA_DIR else f" --data-dir {shlex.quote(str(data_dir))}"
    if json:
        print(msgspec.json.encode(_object(found)).decode())
    else:
        without_vote = [line for each in (found, *others) for line in _without_vote(each, found, where)]
        print("\n".join([*_lines(found), *without_vote]))
    if not found.is_readable:
        raise typer.Exit(1)


@app.command()
def replace(
    context: typer.Context,
    removed: Annotated[str, typer.Argument(help="NODE, or NODE#INCARNATION as `status` shows it.")],
    added: Annotated[str, typer.Argument(help="NODE, or NODE#INCARNATION; the same NODE for its new life.")],
    *,
    added_address: Annotated[str, typer.Option(help="Native door of the added node, if it is new.")] = "",
    data_dir: DataDir = DATA_DIR,
    address: Address = None,
    json: Annotated[bool, typer.Option("--json", help="Print an object instead of a line.")] = False,
) -> None:
    """Replace acceptor REMOVED, which may be dead, wiped or only cut off, by ADDED."""
    door = address_of(context, address) or _door(data_dir, other_than=removed.partition("#")[0])
    out = _member(door, removed)
    if "#" in added:
        new = _acceptor_of(added)
    else:
        where = added_address or _door_of_added(data_dir, added)
        new = _own(run(ask(where, "metastore.status", EMPTY, reply=StatusReply, timeout=CALL_TIMEOUT)), added)
    if new == out:
        raise InvalidArgument(f"{acceptor_text(new)} still has its state: there is nothing to replace")
    request = ReplaceRequest(removed=out, added=new, address=added_address)
    done = run(ask(door, "metastore.replace", request, reply=VersionReply, timeout=CALL_TIMEOUT))
    if json:
        told = {"removed": acceptor_text(out), "added": acceptor_text(new), "version": done.version}
        print(msgspec.json.encode(told).decode())
    else:
        print(f"{acceptor_text(out)} was replaced by {acceptor_text(new)} at version {done.version}")


async def _seen(doors: list[str]) -> list[StatusReply]:
    """The answers of those of `doors` that answer, at least one."""
    calls = (ask(door, "metastore.status", EMPTY, reply=StatusReply, timeout=CALL_TIMEOUT) for door in doors)
    told = await asyncio.gather(*calls, return_exceptions=True)
    seen = [reply for reply in told if isinstance(reply, StatusReply)]
    for error in told:
        if isinstance(error, BaseException) and not seen:
            raise error
    return seen


def _member(door: str, text: str) -> Acceptor:
    """The acceptor that `text` names, as NODE#INCARNATION, or as the NODE of a member."""
    if "#" in text:
        return _acceptor_of(text)
    found = run(ask(door, "metastore.status", EMPTY, reply=StatusReply, timeout=CALL_TIMEOUT))
    if found.provider == "file":
        raise Unsupported(
            f"node {found.node} stands alone: its metastore is one file, and has no acceptor to replace. If"
            f" that is damaged, {REMEDY}"
        )
    for member in (*found.acceptors, *found.pending):
        if member.node == text:
            return member
    raise NotFound(f"node {text} has no acceptor in {', '.join(map(acceptor_text, found.acceptors))}")


def _own(found: StatusReply, node: str) -> Acceptor:
    if found.own is None or found.own.node != NodeId(node):
        raise InvalidArgument(f"the node that answered is {found.node}, not {node}: give its --added-address")
    return Acceptor(found.own.node, Incarnation(found.own.incarnation))


def _door(data_dir: Path, node: str | None = None, *, other_than: str = "") -> str:
    """The native door of a running node of `data_dir`; that of `other_than` only if there is no other."""
    return _doors(data_dir, node, other_than=other_than)[0]


def _door_of_added(data_dir: Path, node: str) -> str:
    """The native door of `node`, which is asked for its present incarnation.

    Raises:
        ConfigError: `node` does not run in `data_dir`; the error says how else to name it.
    """
    try:
        return _door(data_dir, node)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; or name {node} otherwise: --added-address with its native door, or {node}#INCARNATION"
            " as `broadsheet metastore status --address` of that door shows it"
        ) from error


def _doors(data_dir: Path, node: str | None = None, *, other_than: str = "") -> list[str]:
    """The native doors of the running nodes of `data_dir`, that of `other_than` last.

    Raises:
        ConfigError: no node runs there.
    """
    running = {
        name: str(found.addresses["native"])
        for name, found in running_below(data_dir).items()
        if found is not None and "native" in found.addresses and node in (None, name)
    }
    if not running:
        wanted = f"node {node}" if node else "node"
        raise ConfigError(f"no running {wanted} in {data_dir}: give --address, or start it")
    return [running[name] for name in sorted(running, key=lambda name: name == other_than)]


def _lines(found: StatusReply) -> list[str]:
    if not found.is_readable and not found.acceptors:
        text = (
            f"metastore ({found.provider}): node {found.node} has not met any member of a cluster; the first"
            " node of node.peers by name founds one when every node of its node.peers answers: start them all"
        )
        return [text]
    if not found.is_readable:
        lines = [f"metastore ({found.provider}): no majority answers node {found.node}"]
    else:
        lines = [f"metastore ({found.provider}): version {found.version}, {found.document_bytes} bytes"]
    if found.acceptors:
        lines.append("acceptors: " + ", ".join(map(acceptor_text, found.acceptors)))
    if found.pending:
        lines.append("pending:   " + ", ".join(map(acceptor_text, found.pending)))
    return lines


def _without_vote(asked: StatusReply, found: StatusReply, where: str) -> list[str]:
    """The line that names the remedy if the node `asked` is no acceptor of those in `found`.

    Args:
        where: the option by which the command finds these nodes.
    """
    known = (*found.acceptors, *found.pending)
    if asked.own is None or not known or asked.own in known:
        return []
    own = acceptor_text(asked.own)
    remedy = f"`broadsheet metastore replace {asked.node} {own}{where}`"
    return [f"{own} is no acceptor: if it lost its state, {remedy}"]


def _object(found: StatusReply) -> dict[str, object]:
    """The status as JSON. Acceptors are texts as `replace` takes them: JSON numbers cannot hold 62 bits."""
    told: dict[str, object] = msgspec.to_builtins(found)
    for field in ("acceptors", "pending"):
        told[field] = [acceptor_text(member) for member in getattr(found, field)]
    told["own"] = None if found.own is None else acceptor_text(found.own)
    return told


def _acceptor_of(text: str) -> Acceptor:
    """The acceptor of `node#incarnation`.

    Raises:
        InvalidArgument: `text` is not of that form.
    """
    node, _, incarnation = text.rpartition("#")
    try:
        return Acceptor(NodeId(node), Incarnation(int(incarnation, 16)))
    except ValueError:
        raise InvalidArgument(f"{text!r} is not NODE#INCARNATION, as `metastore status` shows it") from None
