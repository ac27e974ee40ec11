"""Up: `broadsheet up`, which starts one node or a small cluster on this machine."""

import signal
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from broadsheet.cli.cluster import (
    CLUSTER_FILE,
    NODES_MAX,
    READY_LOOK_SECONDS,
    READY_SECONDS_MAX,
    Cluster,
    Process,
)
from broadsheet.cli.readyz import asked, is_passing, reasons
from broadsheet.cli.running import ending_signals
from broadsheet.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command()
def up(
    *,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=NODES_MAX, help="How many; 1 for a new directory.")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where the nodes keep their data.")] = Path(".broadsheet"),
    port_offset: Annotated[int, typer.Option(help="Added to every port of a new directory.")] = 0,
    any_port: Annotated[
        bool, typer.Option("--any-port", help="Take free ports for a new directory.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return once ready; stop with `down`.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print an object instead of a line.")] = False,
) -> None:
    """Start the nodes of a data directory that do not run yet; make the directory if it is new.

    It says `ready` when every node can serve, as `/readyz` says. If one cannot, it says why. The nodes run
    on; with --detach the exit status is 1.
    """
    is_new = not (data_dir / CLUSTER_FILE).exists()
    if is_new:
        cluster = Cluster.make(data_dir, count=nodes or 1, port_offset=port_offset, has_any_port=any_port)
    else:
        cluster = Cluster.open(data_dir)
    if nodes not in (None, len(cluster.nodes)):
        raise ConfigError(
            f"{data_dir} is a cluster of {len(cluster.nodes)}, not {nodes}: "
            "leave out --nodes, or name another directory"
        )
    if port_offset and not any_port and not cluster.has_offset(port_offset):
        raise ConfigError(
            f"{data_dir} has its ports already, in {data_dir}/*.toml: edit them there, "
            "or leave out --port-offset"
        )
    stop = _on_signal()
    started = cluster.start(is_detached=detach, stop=stop)
    stays = bool(started) and not detach
    why = _not_ready(cluster, stop)
    _announce(cluster, why, is_json=json, is_detached=not stays)
    if stays:
        _attend(started, stop)
    elif why:
        raise typer.Exit(1)


def _not_ready(cluster: Cluster, stop: threading.Event) -> list[str]:
    """Why nodes cannot serve; empty if all can. Waits for causes that end by themselves after a start."""
    until = time.monotonic() + READY_SECONDS_MAX
    while True:
        told: list[str] = []
        is_over = time.monotonic() >= until or stop.is_set()
        for running in cluster.running().values():
            if running is None or "http" not in running.addresses:
                continue
            try:
                found = asked(running.addresses["http"])
            except OSError as error:
                told.append(f"{running.node}: it {error}")
                continue
            told += [f"{running.node}: {text}" for text in reasons(found)]
            is_over = is_over or not (found.is_ready or is_passing(found))
        if not told or is_over:
            return told
        stop.wait(READY_LOOK_SECONDS)


def _announce(cluster: Cluster, why: list[str], *, is_json: bool, is_detached: bool) -> None:
    found = [running for running in cluster.running().values() if running is not None]
    if is_json:
        report = {"data_dir": str(cluster.root.resolve()), "nodes": found, "not_ready": why}
        print(msgspec.json.encode(report).decode(), flush=True)
        return
    doors = "; ".join(
        f"{each.node} " + " ".join(f"{door} {address}" for door, address in sorted(each.addresses.items()))
        for each in found
    )
    end = f"broadsheet down --data-dir {cluster.root}" if is_detached else "Ctrl-C"
    with suppress(OSError) if not is_detached else nullcontext():  # As in `_attend`.
        print(f"{'not ready' if why else 'ready'}: {doors} (stop with {end})", *why, sep="\n  ", flush=True)


def _on_signal() -> threading.Event:
    stop = threading.Event()
    for number in ending_signals():
        signal.signal(number, lambda *_: stop.set())
    return stop


def _attend(started: list[Process], stop: threading.Event) -> None:
    """Stay until a signal, or until every node has ended by itself."""
    left = dict.fromkeys(started)
    while left and not stop.wait(0.1):
        for process in list(left):
            if (status := process.popen.poll()) is not None:
                with suppress(OSError):  # Nobody reads it, or the disk is full: the other nodes go on.
                    print(f"node {process.node} ended with status {status}", flush=True)
                del left[process]
    for process in left:
        process.popen.terminate()
    statuses = [process.popen.wait() for process in started]
    if any(statuses):
        raise typer.Exit(1)
