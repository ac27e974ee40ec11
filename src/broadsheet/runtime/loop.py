"""Loop: the event loop of a process: uvloop if it is installed, otherwise asyncio's own."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def loop_factory(*, plain: bool = False) -> Callable[[], asyncio.AbstractEventLoop]:
    """How to make a loop. `plain` asks for asyncio's own."""
    if not plain:
        try:
            from uvloop import new_event_loop  # noqa: PLC0415 - absent on some platforms, and slow to import.
        except ImportError:
            return asyncio.new_event_loop
        return new_event_loop
    return asyncio.new_event_loop


def run(main: Coroutine[Any, Any, T], *, plain: bool = False) -> T:
    """Run `main` to its end on a new loop, then close the loop."""
    try:
        with asyncio.Runner(loop_factory=loop_factory(plain=plain)) as runner:
            return runner.run(main)
    finally:
        main.close()  # If Ctrl-C came before it began, Python would warn that nobody awaited it.
