"""Blocks: have the file system give blocks to a file before it grows into them, and write them early.

The standard library's `posix_fallocate` makes a file longer. A spool must not be longer than its content, so
this calls Linux's `fallocate` with the flag that keeps the length. The standard library has no
`sync_file_range`. It does no other IO. Source: fallocate(2), sync_file_range(2); ADR 0192, ADR 0194.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Final

KEEP_SIZE: Final = 1
"""`FALLOC_FL_KEEP_SIZE` of <linux/falloc.h>."""
WRITE: Final = 2
"""`SYNC_FILE_RANGE_WRITE` of <linux/fs.h>: begin to write, and do not wait."""


def reserve_blocks(fd: int, begin: int, end: int) -> bool:
    """Have blocks given to [begin, end) of a file, whose length stays; False if that is refused.

    Whatever the refusal is, no byte of the file has changed, and a write meets what is wrong with the disk.
    """
    call = _fallocate()
    return call is not None and call(fd, KEEP_SIZE, begin, end - begin) == 0


def begin_writing(fd: int, begin: int, end: int) -> None:
    """Have the kernel begin to write the dirty pages of [begin, end) of a file to the disk.

    It blocks while the disk's queue is full. Nothing is durable by it, and a write that fails is told by the
    next sync.
    """
    call = _sync_file_range()
    if call is not None:
        call(fd, begin, end - begin, WRITE)


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    return _function("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    return _function("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def _function(name: str, *arguments: type) -> Callable[[int, int, int, int], int] | None:
    """A function of the C library; None where it has none of that name."""
    call = getattr(ctypes.CDLL(None), name, None)
    if call is None:
        return None
    call.argtypes, call.restype = arguments, ctypes.c_int
    return call  # type: ignore[no-any-return]
