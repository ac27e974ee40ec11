"""Status: `broadsheet status`, which shows the state of the nodes of a data directory, or of one address."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from broadsheet.cli.calling import address_of, ask_status
from broadsheet.cli.cluster import running_below
from broadsheet.cli.contexts import ADDRESS_VARIABLE
from broadsheet.cli.readyz import asked, door_beside, reasons
from broadsheet.cli.running import Running
from broadsheet.cli.watching import Watch, pause_of, shown
from broadsheet.doors.status import StatusReply
from broadsheet.errors import Refused, Unknown
from broadsheet.runtime.loop import run

app = typer.Typer(add_completion=False)


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the command found out about one node."""

    node: str
    state: str
    """`ready` if `/readyz` says so; `not ready`, `starting`, `stopping`, `down` or `unreachable`."""
    reason: str = ""
    """Why the node is unreachable, or why it is not known whether it can serve."""
    reasons: tuple[str, ...] = ()
    """Why it is not ready."""
    warnings: tuple[str, ...] = ()
    """What is wrong with it though it can serve."""
    status: StatusReply | None = None


@app.command()
def status(
    context: typer.Context,
    *,
    data_dir: Annotated[Path, typer.Option(help="The data directory of `up` or `serve`.")] = Path(
        ".broadsheet"
    ),
    address: Annotated[
        str | None, typer.Option(envvar=ADDRESS_VARIABLE, help="Ask this native door instead.")
    ] = None,
    watch: Watch = None,
    json: Annotated[bool, typer.Option("--json", help="Print an object instead of lines.")] = False,
) -> None:
    """Show the state of every node, and why one cannot serve. The exit status is 0 if all are ready."""
    address, pause = address_of(context, address), pause_of(watch)
    found: list[NodeStatus] = []

    async def show() -> None:
        nonlocal found
        found = await (_ask(address, address) if address else _ask_all(running_below(data_dir)))
        if json:
            print(msgspec.json.encode({"nodes": found}).decode())
        else:
            print("\n".join(line for each in found for line in _lines(each)))

    run(shown(show, pause))
    if any(each.state != "ready" for each in found):
        raise typer.Exit(1)


async def _ask_all(processes: Mapping[str, Running | None]) -> list[NodeStatus]:
    found = []
    for node, running in processes.items():
        if running is None:
            found.append(NodeStatus(node=node, state="down"))
        elif "native" not in running.addresses:
            found.append(NodeStatus(node=node, state="starting"))
        else:
            found += await _ask(node, running.addresses["native"])
    return found


async def _ask(node: str, address: str) -> list[NodeStatus]:
    try:
        reply = await ask_status(address)
    except (Refused, Unknown) as error:
        return [NodeStatus(node=node, state="unreachable", reason=str(error))]
    try:
        found = await asyncio.to_thread(asked, door_beside(reply.addresses["http"], address))
        if found.node != reply.node:
            raise OSError(f"is that of node {found.node}")
    except (OSError, KeyError) as error:
        why = f"whether it can serve is not known: its HTTP door {error}"
        return [NodeStatus(node=reply.node, state=reply.state, status=reply, reason=why)]
    return [
        NodeStatus(
            node=reply.node,
            state="not ready" if reply.state == "ready" and not found.is_ready else reply.state,
            status=reply,
            reasons=tuple(reasons(found)),
            warnings=tuple(reasons(found, is_warning=True)),
        )
    ]


def _lines(each: NodeStatus) -> list[str]:
    if each.status is None:
        return [f"{each.node}: {each.state}" + (f" ({each.reason})" if each.reason else "")]
    found = each.status
    head = f"{found.node}: {each.state}, version {found.version}, pid {found.pid}"
    lag = f"loop lag at most {found.loop_lag_seconds_max * 1000:.1f} ms in the last minute"
    lines = [f"{head}, up {found.uptime_seconds:.0f} s, {lag}"]
    lines += [f"  {text}" for text in (*each.reasons, *([each.reason] if each.reason else []))]
    lines += [f"  warning: {text}" for text in each.warnings]
    lines += [f"  {door:<10} {address}" for door, address in sorted(found.addresses.items())]
    for role, fields in sorted(found.roles.items()):
        lines.append(f"  {role:<10} " + ", ".join(f"{name} {value}" for name, value in fields.items()))
    return lines
