"""Index memory: how many producers the producer indexes of this node hold together (access.8).

An index that is not at work gives its producers back when others need the room, the one used longest ago
first: they can be computed again from its newest index point, which is at most 16 MiB behind. What is at work
is never taken away. So a new index may find no room; its journal tries again later.
"""

from typing import Protocol

from broadsheet.errors import Throttled


class Held(Protocol):
    """A producer index whose producers are counted."""

    def give_back(self) -> bool:
        """Forget the producers; False, with nothing changed, while the index is at work."""
        ...


class IndexMemory:
    """The count of the producers that all producer indexes of a node hold."""

    def __init__(self, producers_max: int) -> None:
        """Hold `producers_max` at most, some 300 bytes each."""
        self.producers_max = producers_max
        self.held_count = 0
        self._held: dict[Held, int] = {}  # Used longest ago first.

    def hold(self, index: Held, count: int) -> None:
        """Count `count` producers for the producer index `index` from now on.

        Raises:
            Throttled: all others are at work, and there is no room. `index` counts for nothing, and must
                forget its producers.
        """
        self.release(index)
        self._held[index] = count
        self.held_count += count
        if self.held_count > self.producers_max:
            for other in [each for each in self._held if each is not index]:
                if other.give_back():
                    self.release(other)
                if self.held_count <= self.producers_max:
                    return
            self.release(index)
            raise Throttled(
                f"its index has {count} producers, and journals.index_producers_max, {self.producers_max},"
                " are held by indexes that are at work: try again later"
            )

    def release(self, index: Held) -> None:
        """Count nothing for `index` any more."""
        self.held_count -= self._held.pop(index, 0)

    def check(self) -> None:
        """Assert the invariants."""
        assert self.held_count == sum(self._held.values()) <= self.producers_max, "what is held is counted"
