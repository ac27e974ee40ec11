"""What must hold of clients and servers of the wire between two turns of the loop, and in the end.

It raises, so that it holds under `python -O` too, where assertions are off.
"""

from collections.abc import Callable

from broadsheet.wire.server import Server
from simulator.workload import Violation


def hold(check: Callable[[], None]) -> None:
    """Call `check`.

    Raises:
        Violation: what it asserts does not hold.
    """
    try:
        check()
    except AssertionError as error:
        raise Violation(f"{check.__qualname__}: {error}") from error


def check_slots(server: Server) -> None:
    """Each slot that is kept for a task has its task: `check` is silent under `python -O`."""
    for connection in server.connections.values():
        for stream in connection.base.ending:
            if stream not in connection.works:
                raise Violation(f"stream {stream} keeps its slot, and nothing runs for it")


def check_left(server: Server) -> None:
    """Nobody is there any more, so nobody owns anything."""
    if server.connections or server.accounts.by_name:
        left = (list(server.connections), list(server.accounts.by_name))
        raise Violation(f"all clients have left, and connections or accounts have not: {left}")
