"""Serve: `broadsheet serve`, which runs one node in this process until a signal comes."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from broadsheet import __version__
from broadsheet.cli.cluster import CLUSTER_FILE
from broadsheet.cli.running import FILE, Running, ending_signals
from broadsheet.config import load
from broadsheet.errors import ConfigError
from broadsheet.node import Node, Settings
from broadsheet.observe.logs import Level, Logs
from broadsheet.runtime.data_dir import claim, prepare, usable
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.garbage import Heap
from broadsheet.runtime.loop import run
from broadsheet.runtime.process import end_process, lift_file_limit
from broadsheet.runtime.system import system_ports

app = typer.Typer(add_completion=False)

UMASK: Final = 0o077
CLOSE_SECONDS_MAX: Final = 30
"""A node that has not closed within this time ends anyway. Everything it acknowledged is durable."""


@app.command()
def serve(
    *,
    config: Annotated[Path | None, typer.Option(help="A TOML file.", dir_okay=False)] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where the node keeps its data.")] = None,
    insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure",
            help="Allow doors beyond loopback without TLS. Without keys everybody there may do everything.",
        ),
    ] = None,
    ready_fd: Annotated[
        int | None, typer.Option(help="Write one line of JSON there when ready.", hidden=True)
    ] = None,
    lifeline_fd: Annotated[
        int | None, typer.Option(help="Stop when this descriptor ends.", hidden=True)
    ] = None,
) -> None:
    """Run one node in the foreground."""
    flags = {"node.data_dir": data_dir, "node.is_insecure": insecure}
    settings = load(Settings, path=config, environment=os.environ, flags=flags).config
    root = Path(settings.node.data_dir)
    if (root / CLUSTER_FILE).exists():
        raise ConfigError(
            f"{root} is a directory of `broadsheet up`, and holds those of its nodes: `broadsheet up"
            f" --data-dir {root}` starts them; or name another directory for this node with --data-dir"
        )
    lift_file_limit()
    run(_serve(settings, root, ready_fd=ready_fd, lifeline_fd=lifeline_fd))


async def _serve(settings: Settings, root: Path, *, ready_fd: int | None, lifeline_fd: int | None) -> None:
    os.umask(UMASK)
    prepare(root)
    with usable(root):
        disk = LocalDisk(root)
        owned = claim(disk, root=str(root), node=settings.node.id, version=__version__)
    ports = system_ports(disk, crash=end_process)
    logs = Logs(
        wall=ports.time.wall,
        level=Level[settings.node.log_level.upper()],
        is_console={"json": False, "console": True}.get(settings.node.log_format),
        node=settings.node.id,
    )
    stop = _stop_requested(lifeline_fd)
    heap = Heap(ports.timers)
    heap.hold()
    node = Node(settings, ports, logs=logs)
    running = Running(node=settings.node.id, pid=os.getpid(), addresses={})
    try:
        with usable(root):
            running.write(root)
            addresses = await _started(node, stop, forget=lambda: Running.forget(root))
            if addresses is None:
                return
            running = msgspec.structs.replace(running, addresses=dict(addresses))
            if not running.write(root):  # A hint: without it the node serves, and is found by its address.
                remedy = f"`status --address` asks it, a signal to process {running.pid} ends it; make room"
                logs.of("node").warning("node.disk_full", file=FILE, remedy=remedy)
        heap.start()
        if ready_fd is not None:
            with os.fdopen(ready_fd, "wb") as pipe:
                pipe.write(msgspec.json.encode(running) + b"\n")
        await stop.wait()
    finally:
        # The lock is released last, after the last write. This also runs if writing to `ready_fd` fails,
        # because the process that started this node is gone.
        await close_within(CLOSE_SECONDS_MAX, node.close, forget=lambda: Running.forget(root))
        heap.close()
        Running.forget(root)
        owned.release()
        disk.close()


async def _started(
    node: Node, stop: asyncio.Event, *, forget: Callable[[], None]
) -> Mapping[str, str] | None:
    """Start `node`. Returns the address of each door, or None if `stop` was set before the node was ready.

    A start with ten thousand journals takes a while; an operator who stops the node must not wait for it.
    """
    starting, stopping = asyncio.ensure_future(node.start()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
    finally:
        stopping.cancel()
    starting.cancel()  # The cancelled start closes what it has started, as after a failure.

    async def ended() -> None:
        await asyncio.wait([starting])

    await close_within(CLOSE_SECONDS_MAX, ended, forget=forget)
    return None if starting.cancelled() else starting.result()


async def close_within(
    seconds: float, close: Callable[[], Coroutine[Any, Any, None]], *, forget: Callable[[], None]
) -> None:
    """Close a node; end the process if that takes longer than `seconds`.

    Cancelling `close` would not help, because a cancelled close still waits for what hangs.

    Args:
        forget: called before the process is ended.
    """
    closing = asyncio.ensure_future(close())
    await asyncio.wait([closing], timeout=seconds)
    if not closing.done():
        forget()
        end_process(TimeoutError(f"the node has not closed within {seconds:g} s, so it ends as it is"))
    await closing


def _stop_requested(lifeline_fd: int | None) -> asyncio.Event:
    """An event that is set by an ending signal, or when the other end of the lifeline is closed."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, stop.set)
    if lifeline_fd is not None:

        def ended() -> None:
            loop.remove_reader(lifeline_fd)
            stop.set()

        loop.add_reader(lifeline_fd, ended)
    return stop
