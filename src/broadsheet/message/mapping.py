"""Which of several journals a key belongs to.

FNV-1a of 32 bits, as in Gazette; journals stand in order of their names. It does not know which journals
exist. Source: Gazette (its published vectors).
"""

from collections.abc import Sequence
from typing import Final

_BASIS: Final = 0x811C9DC5
_PRIME: Final = 0x01000193


def fnv1a32(key: bytes) -> int:
    """FNV-1a, 32 bits."""
    state = _BASIS
    for byte in key:
        state = ((state ^ byte) * _PRIME) & 0xFFFFFFFF
    return state


def modulo(key: bytes, count: int) -> int:
    """The position among `count` journals: hash modulo count. Most keys move when the count changes.

    Raises:
        ValueError: there is no journal. Nothing changed.
    """
    if count < 1:
        raise ValueError("no journal to map to: create one first")
    return fnv1a32(key) % count


def modulo_each(keys: Sequence[bytes], count: int) -> list[int]:
    """`modulo` of each key; equal keys are hashed once."""
    known: dict[bytes, int] = {}
    return [
        place if (place := known.get(key)) is not None else known.setdefault(key, modulo(key, count))
        for key in keys
    ]
