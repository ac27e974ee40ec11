"""Blocks: have the file system give blocks to a file before it grows into them.

The standard library's `posix_fallocate` makes a file longer. A spool must not be longer than its content, so
this calls Linux's `fallocate` with the flag that keeps the length. It does no other IO. Source: fallocate(2);
ADR 0192.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Final

KEEP_SIZE: Final = 1
"""`FALLOC_FL_KEEP_SIZE` of <linux/falloc.h>."""


def reserve_blocks(fd: int, begin: int, end: int) -> bool:
    """Have blocks given to [begin, end) of a file, whose length stays; False if that is refused.

    Whatever the refusal is, no byte of the file has changed, and a write meets what is wrong with the disk.
    """
    call = _fallocate()
    return call is not None and call(fd, KEEP_SIZE, begin, end - begin) == 0


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """The C library's function; None where it has none."""
    call = getattr(ctypes.CDLL(None), "fallocate", None)
    if call is None:
        return None
    call.argtypes, call.restype = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64), ctypes.c_int
    return call  # type: ignore[no-any-return]
