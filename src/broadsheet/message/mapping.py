"""Mapping: chooses the journal of a key among several journals.

The hash is FNV-1a with 32 bits, as in Gazette. Callers sort the journals by name, so that all publishers
choose the same journal. This module does not know which journals exist. Source: Gazette (its published
vectors).
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
    """The position of the key's journal among `count` journals: the hash modulo `count`.

    Most keys move to another journal when `count` changes.

    Raises:
        ValueError: `count` is 0.
    """
    if count < 1:
        raise ValueError("there is no journal to choose from: create one first")
    return fnv1a32(key) % count


def modulo_each(keys: Sequence[bytes], count: int) -> list[int]:
    """`modulo` of each key; equal keys are hashed once."""
    known: dict[bytes, int] = {}
    return [
        place if (place := known.get(key)) is not None else known.setdefault(key, modulo(key, count))
        for key in keys
    ]
