"""Linearizability in linear time, for histories whose answers carry the position in the key's total order.

An operation's `version` is the one that it wrote, or the one that it read (0: nothing yet). Sorting finds
what WGL finds by search: two values of one version, an answer older than what was known before the call, a
version taken twice, a read of something not yet asked for. Use it always, and WGL as a cross-check where
histories are small. Source: M1.
"""

from collections.abc import Iterable
from operator import itemgetter

from simulator.history import Operation, Outcome
from simulator.workload import Violation


def check_versioned(operations: Iterable[Operation], *, writes: tuple[str, ...] = ("write",)) -> None:
    """Check every key. A write's value is its `argument`, a read's its `result`.

    Raises:
        Violation: the answers contradict each other, with the operations that do.
    """
    keys: dict[str, list[Operation]] = {}
    for operation in operations:
        keys.setdefault(operation.key, []).append(operation)
    for key in sorted(keys):
        _values(key, keys[key], writes)
        _real_time([op for op in keys[key] if _is_known(op)], writes)


def _is_known(operation: Operation) -> bool:
    return operation.outcome is Outcome.OK and operation.version is not None


def _values(key: str, operations: list[Operation], writes: tuple[str, ...]) -> None:
    """One value for each version, from a write that was asked for before, and one write."""
    writer: dict[int, Operation] = {}
    loose: dict[str, Operation] = {}
    for op in operations:
        if op.name not in writes:
            continue
        if op.outcome is Outcome.OK and op.version is not None:
            if op.version in writer:
                raise Violation(
                    f"key {key!r}: version {op.version} was taken by {writer[op.version]} and {op}"
                )
            writer[op.version] = op
        elif op.outcome is not Outcome.REJECTED:
            loose[repr(op.argument)] = op  # It may have taken any version, or none.
    _reads(key, [op for op in operations if op.name not in writes and _is_known(op)], writer, loose)


def _reads(
    key: str, reads: list[Operation], writer: dict[int, Operation], loose: dict[str, Operation]
) -> None:
    """Each read saw what was written, after it was asked for."""
    seen: dict[int, Operation] = {}
    for op in reads:
        if not op.version:
            continue
        first = seen.setdefault(op.version, op)
        if first.result != op.result:
            raise Violation(f"key {key!r}: two values of version {op.version}: {first} and {op}")
        source = writer.get(op.version)
        if source is None:
            source = loose.get(repr(op.result))
        elif source.argument != op.result:
            raise Violation(f"key {key!r}: version {op.version} was written by {source} and read by {op}")
        if source is None:
            raise Violation(f"key {key!r}: nobody wrote what {op} read")
        if op.returned_at is not None and op.returned_at < source.invoked_at:
            raise Violation(f"key {key!r}: {op} read what {source} had not asked for yet")


def _real_time(operations: list[Operation], writes: tuple[str, ...]) -> None:
    """Whoever begins after another ended sees at least its version; a write sees less than it takes."""
    points = [(op.invoked_at, 1, index) for index, op in enumerate(operations)]
    points += [(op.returned_at or 0, 0, index) for index, op in enumerate(operations)]
    # Equal times count as concurrent: calls come before returns.
    points.sort(key=lambda point: (point[0], -point[1], point[2]))
    highest: tuple[int, int] = (-1, -1)
    for _, is_call, index in points:
        op = operations[index]
        version = op.version or 0
        if not is_call:
            highest = max(highest, (version, index), key=itemgetter(0))
        elif version < highest[0] or (op.name in writes and version == highest[0]):
            raise Violation(
                f"key {op.key!r}: {op} is older than {operations[highest[1]]}, which had ended before"
            )
