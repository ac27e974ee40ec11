"""Indexes: whether each stored producer index is what the journal's bytes below it say.

Offsets are bytes. The recomputation reads the journal from its begin in one piece, where the node made each
index from the one before and the bytes between, across restarts. Prunes nothing: runs are shorter than every
horizon. Source: journals.29.
"""

from collections.abc import Sequence
from typing import Any

from broadsheet.errors import Corrupt
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.producer_state import begun
from broadsheet.message.spans import update
from broadsheet.message.stored_index import decode
from simulator.checkers.appends import Seen
from simulator.history import Operation, Outcome
from simulator.workload import Violation


def check_indexes(operations: Sequence[Operation]) -> None:
    """Check every index that a client was given.

    Raises:
        Violation: one differs from what the bytes say, or is at no frame boundary.
    """
    told = [each for each in operations if each.outcome is Outcome.OK]
    for journal in dict.fromkeys(each.key for each in told if each.name == "indexes"):
        reads = [each.result for each in told if each.key == journal and each.name == "read"]
        whole = max((seen.content for seen in reads if isinstance(seen, Seen) and not seen.offset), key=len)
        found: dict[int, bytes] = {}
        for each in told:
            if each.key == journal and each.name == "indexes":
                points: Any = each.result
                found.update(points)
        _check(journal, whole, found)


def _check(journal: str, content: bytes, found: dict[int, bytes]) -> None:
    index = begun(JSON_LINES)
    for offset, encoded in sorted(found.items()):
        index = update(index, content[index.offset : offset])
        try:
            stored = decode(encoded)
        except Corrupt as error:
            raise Violation(f"journals.29 {journal}: the producer index at {offset}: {error}") from error
        if (stored.offset, index.offset) != (offset, offset):
            at = f"it says {stored.offset}, and frames end at {index.offset}"
            raise Violation(f"journals.29 {journal}: the producer index at {offset}: {at}")
        if (stored.states, stored.newest, stored.forgotten) != (index.states, index.newest, index.forgotten):
            raise Violation(
                f"journals.29 {journal}: the producer index at {offset} is not what the bytes say"
            )
