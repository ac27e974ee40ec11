"""Map: the present keys in order, with a count of the bytes that they hold.

Keys are text in code-point order. `held_bytes` counts keys (as characters) and values. Not a machine: a
part of `core.store`. It does not interpret revisions, limits or transactions. Source: design/control.md
control.15-16.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Final

from broadsheet.keyspace.core.transaction import KeyValue, key_size

INSERTS_SINGLE: Final = 16
"""Up to this many keys are inserted or removed one by one; for more, one pass over all keys is faster."""


class OrderedMap:
    """The key space's keys in order. Insertion moves a part of the key list: microseconds at 100,000 keys."""

    def __init__(self) -> None:
        self._pairs: dict[str, KeyValue] = {}
        self._keys: list[str] = []
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: str) -> KeyValue | None:
        """The pair of `key`, or None."""
        return self._pairs.get(key)

    def range(self, prefix: str) -> list[KeyValue]:
        """The pairs of the map whose keys start with `prefix`, in key order."""
        if not prefix:
            return self.pairs()
        found: list[KeyValue] = []
        for at in range(bisect_left(self._keys, prefix), len(self._keys)):
            key = self._keys[at]
            if not key.startswith(prefix):
                break
            found.append(self._pairs[key])
        return found

    def page(self, prefix: str, *, after: str, count_max: int) -> list[KeyValue]:
        """The first `count_max` pairs whose keys start with `prefix` and are above `after`, in key order."""
        begin = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        keys = self._keys[begin : begin + count_max]
        return [self._pairs[key] for key in keys if key.startswith(prefix)]

    def pairs(self) -> list[KeyValue]:
        """Every pair, in key order."""
        return [self._pairs[key] for key in self._keys]

    def frozen(self) -> tuple[KeyValue, ...]:
        """A copy of every pair, in no order: fast enough for the loop; a thread may work on it."""
        return tuple(self._pairs.values())

    def apply(self, changes: Iterable[tuple[str, KeyValue | None]]) -> None:
        """Set each key of the map to its pair, or remove it if that is None. No key may occur twice."""
        fresh: list[str] = []
        gone: list[str] = []
        for key, pair in changes:
            old = self._pairs.get(key)
            if old is not None:
                self.held_bytes -= size(old)
            if pair is not None:
                self._pairs[key] = pair
                self.held_bytes += size(pair)
                if old is None:
                    fresh.append(key)
            elif old is not None:
                del self._pairs[key]
                gone.append(key)
        if len(gone) > INSERTS_SINGLE:
            self._keys = [key for key in self._keys if key in self._pairs]
        else:
            for key in gone:
                del self._keys[bisect_left(self._keys, key)]
        if len(fresh) > INSERTS_SINGLE:
            self._keys += fresh
            self._keys.sort()
        else:
            for key in fresh:
                insort(self._keys, key)

    def check(self) -> None:
        """Assert that keys, pairs and the byte count agree."""
        assert self._keys == sorted(self._pairs), "the key list is the sorted keys"
        assert self.held_bytes == sum(map(size, self._pairs.values())), "bytes are counted right"


def size(pair: KeyValue) -> int:
    """The bytes of a pair that count towards `map_bytes_max`."""
    return key_size(pair.key) + len(pair.value)
