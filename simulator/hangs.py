"""Hangs: describes what a client that makes no progress waits for.

The description is the chain of the task's awaits, outermost first, across the tasks that it waits for. It is
read from asyncio's own records, and nothing is changed.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from simulator.history import Operation, Outcome

DEPTH_MAX: Final = 40
"""Frames of one chain that are told."""


def waits_for(task: "asyncio.Future[Any] | None") -> str:
    """Where `task` stands, frame by frame."""
    chain: list[str] = []
    while isinstance(task, asyncio.Task) and len(chain) < DEPTH_MAX:
        coroutine: Any = task.get_coro()
        while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
            chain.append(f"{coroutine.__qualname__}:{coroutine.cr_frame.f_lineno}")
            coroutine = coroutine.cr_await
        awaited = getattr(task, "_fut_waiter", None)
        children = [child for child in getattr(awaited, "_children", ()) if not child.done()]
        task = children[0] if children else awaited
    return " > ".join(chain) or "nothing"


def verdict(what: str, clients: Iterable[str], operations: list[Operation], places: dict[str, str]) -> str:
    """Each client of `clients` with the call that it has open, since when, and what that waits for."""
    lines = [what]
    for client in clients:
        mine = [op for op in operations if op.client == client]
        open_calls = [op for op in mine if op.outcome is Outcome.OPEN]
        for op in open_calls[:3]:
            since = f"{op.invoked_at / 1e9:.6f} s"
            lines.append(f"{client}: {op.name} of {op.key} {op.argument!r} is open since {since}")
        if not open_calls and mine:
            lines.append(f"{client}: no call is open; the last one was {mine[-1]}")
        lines.append(f"{client} waits for {places.get(client, 'what nobody knows')}")
    return "\n".join(lines)
