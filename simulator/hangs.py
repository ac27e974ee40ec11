"""Hangs: what a client that makes no progress waits for, and a call that never returns.

The wait of a client is the chain of its task's awaits, outermost first, across the tasks that it waits for.
It is read from asyncio's own records, and nothing is changed. A call that never returns lets no virtual time
pass, so only the process's own time shows it: whoever is in the same call after `CALL_SECONDS` of that is
stopped there, and the verdict says where. No other run depends on that time.
"""

import asyncio
import signal
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from simulator.history import Operation, Outcome
from simulator.moments import Gone
from simulator.violation import Violation
from simulator.world import World

DEPTH_MAX: Final = 40
"""Frames of one chain that are told."""
CALL_SECONDS: Final = 20.0
"""Seconds of processor time; the longest honest call takes a hundredth."""
LOOKS: Final = 4
"""In so many parts the time is waited for, so that the call can be compared with the one before."""


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


@contextmanager
def watched(world: World, *, seconds: float = CALL_SECONDS) -> Generator[None, None, None]:
    """Fail the run if one call of `world` uses `seconds` of the processor and does not return.

    Python tells signals to its main thread only; elsewhere nothing is watched.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[object] = []

    def look(_signal: int, frame: FrameType | None) -> None:
        inner, names = frame, list[str]()
        while frame is not None and frame.f_code is not World.run.__code__:
            names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back
        call = None if frame is None else frame.f_locals.get("call")
        if call is None or inner is frame or (seen and seen[0] is not call):
            seen.clear()
        if call is None or inner is frame:
            return
        seen.append(call)
        if len(seen) > LOOKS:
            seen.clear()
            where = " < ".join(names[:DEPTH_MAX])
            world.fail(Violation(f"a call does not return in {seconds} s of processor time: {where}"))
            raise Gone("it is stopped")  # No `Exception`: nobody catches it.

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds / LOOKS, seconds / LOOKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


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
