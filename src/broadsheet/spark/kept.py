"""Kept: where the reads of a worker process ended, so that the next batch reads on from there.

A read needs the producers' states at its begin. The owner of a journal stores them every 16 MiB, so a batch
of a few rows would read up to 16 MiB that lie before it. A worker process keeps the states at the end of what
it read. It begins a later span with them, instead of with the newest index point at or below the span, if
they were made from that same index point. Then a span gives the same rows whoever reads it: at an index point
the owner may forget a producer, and states that were made across the point would still know it.
Units: byte offsets. Source: pipelines.2; journals.29-30.
"""

from typing import Final, NamedTuple

from broadsheet.message.framing import Framing
from broadsheet.message.producer_state import ProducerIndex

JOURNALS_MAX: Final = 256
"""Of how many journals a process keeps states; what was kept longest ago goes first."""
NO_BASE: Final = -1
"""No index point: then nothing that is kept fits."""
STATES_MAX: Final = 100_000
"""How many states of producers a process keeps, of all journals together: some 30 MB."""


class Whose(NamedTuple):
    """Whose producers the states are of, and how they were read."""

    address: str
    journal: str
    create_revision: int
    journal_begin: int
    framing: Framing
    is_committed: bool


class _Place(NamedTuple):
    base: int
    states: ProducerIndex


class Kept:
    """The states of producers that one process keeps."""

    def __init__(self) -> None:
        self._places: dict[Whose, _Place] = {}
        """What was kept longest ago first."""
        self.state_count = 0

    def at(self, whose: Whose, *, base: int, begin: int) -> ProducerIndex | None:
        """States at or below `begin` that were made from index point `base`; None if there are none."""
        place = self._places.get(whose)
        if place is None or place.base != base or place.states.offset > begin:
            return None
        return place.states

    def keep(self, whose: Whose, index: ProducerIndex, *, base: int) -> None:
        """Keep `index`, which was made from index point `base`, in place of what is kept for `whose`."""
        self._drop(whose)
        if _count(index) > STATES_MAX:
            return
        self._places[whose] = _Place(base, index)
        self.state_count += _count(index)
        while len(self._places) > JOURNALS_MAX or self.state_count > STATES_MAX:
            self._drop(next(iter(self._places)))

    def _drop(self, whose: Whose) -> None:
        place = self._places.pop(whose, None)
        self.state_count -= _count(place.states) if place is not None else 0


def _count(index: ProducerIndex) -> int:
    return len(index.states) + len(index.forgotten)
