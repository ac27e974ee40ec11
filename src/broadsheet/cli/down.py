"""Down: `broadsheet down`, which stops the nodes of a data directory."""

import signal
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from broadsheet.cli.cluster import Cluster
from broadsheet.cli.running import FILE, Running, is_running, wait_until_ended

app = typer.Typer(add_completion=False)

GRACE_SECONDS: Final = 40
KILL_SECONDS: Final = 10

LOST: Final = (
    f"still running, and {FILE} does not say as which process: end `broadsheet serve` of it yourself"
)


@app.command()
def down(
    *,
    data_dir: Annotated[Path, typer.Option(help="The data directory of `up`.")] = Path(".broadsheet"),
    json: Annotated[bool, typer.Option("--json", help="Print an object instead of lines.")] = False,
) -> None:
    """Ask every node to end, and wait. A node that does not end in time is killed."""
    cluster = Cluster.open(data_dir)
    asked = cluster.running()
    for running in asked.values():
        if running is not None:
            running.signal(signal.SIGTERM)
    ends = {node: _end(cluster.data_dir(node), running) for node, running in asked.items()}
    if json:
        print(msgspec.json.encode({"nodes": ends}).decode())
    else:
        print("\n".join(f"{node}: {end}" for node, end in ends.items()))
    if any(end in ("still running", LOST) for end in ends.values()):
        raise typer.Exit(1)


def _end(data_dir: Path, running: Running | None) -> str:
    if running is None:
        return LOST if is_running(data_dir) else "was not running"
    if wait_until_ended(data_dir, seconds=GRACE_SECONDS):
        return "stopped"
    running.signal(signal.SIGKILL)
    return "killed" if wait_until_ended(data_dir, seconds=KILL_SECONDS) else "still running"
