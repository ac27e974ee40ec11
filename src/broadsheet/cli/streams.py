"""Streams: standard input and output, read and written in threads beside the loop.

A pipe may be silent for ever, and its reader may never read. Meanwhile the loop serves the connection, and
Ctrl-C ends the process. Lengths are bytes.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Final, TypeVar

import typer

R = TypeVar("R")

STANDARD_INPUT_DESCRIPTOR: Final = 0
STANDARD_OUTPUT_DESCRIPTOR: Final = 1
PIECE_BYTES: Final = 1 << 20
"""How much is read at once."""


class Input:
    """A file descriptor that is read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._reading: asyncio.Future[bytes] | None = None

    async def read(self, *, within: float | None = None) -> bytes | None:
        """The next bytes, up to `PIECE_BYTES`; empty at the end of the input; None if none came in time."""
        if self._reading is None:
            self._reading = beside(lambda: os.read(self._descriptor, PIECE_BYTES))
        await asyncio.wait((self._reading,), timeout=within)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    async def skip(self, length: int) -> bytes:
        """Leave out the next `length` bytes. Returns the bytes that were read beyond them.

        Raises:
            BadParameter: the input has fewer bytes.
        """
        left, beyond = length, b""
        while left > 0:
            found = await self.read() or b""
            if not found:
                raise typer.BadParameter(f"--skip-bytes {length}: the input has {length - left} bytes")
            beyond, left = found[left:], left - len(found)
        return beyond


async def write(descriptor: int, content: bytes) -> None:
    """Write all of `content`.

    Raises:
        OSError: the descriptor takes no more. Some of `content` may be written.
    """

    def work() -> None:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]

    await beside(work)


def beside(work: Callable[[], R]) -> "asyncio.Future[R]":
    """Do `work`, which may wait for ever, in a thread that nothing waits for at the end of the process."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[R] = loop.create_future()

    def call() -> None:
        settle: Callable[[], None]
        try:
            settle = partial(found.set_result, work())
        except OSError as error:
            settle = partial(found.set_exception, error)
        with suppress(RuntimeError):  # The loop is closed, so the result is no longer needed.
            loop.call_soon_threadsafe(lambda: None if found.done() else settle())

    Thread(target=call, daemon=True).start()
    return found
