"""Linearizability: whether each key's operations have an order that a sequential object could have answered.

The search of Wing and Gong with Lowe's memory of (set done, state), over each key by itself (Herlihy and
Wing: linearizability is local). An operation of unknown outcome may take effect at any time after its call,
or never. Bounded: a search that takes more than `steps_max` raises, it never passes. Times are world
nanoseconds; equal times count as concurrent. Source: Wing, Gong 1993; Lowe, "Testing for linearizability"
(2017).
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from simulator.history import Operation, Outcome
from simulator.workload import Violation

STEPS_MAX: Final = 5_000_000

Model = Callable[[Hashable, Operation], tuple[bool, Hashable]]
"""(state, operation) -> (whether the object could answer so, state afterwards). An operation that is not OK
has no result to agree with: the model answers for the case that it takes effect."""


def register(state: Hashable, operation: Operation) -> tuple[bool, Hashable]:
    """A register: `read`, `write` of its argument, `cas` of (expected, new) that says whether it swapped."""
    is_known = operation.outcome is Outcome.OK
    match operation.name:
        case "read":
            return not is_known or state == operation.result, state
        case "write":
            assert isinstance(operation.argument, Hashable)
            return True, operation.argument
        case "cas":
            assert isinstance(operation.argument, tuple)
            expected, new = operation.argument
            swaps = state == expected
            return not is_known or swaps == operation.result, new if swaps else state
        case _:
            raise AssertionError(f"a register has no {operation.name!r}")


def check_linearizable(
    operations: Iterable[Operation],
    model: Model = register,
    *,
    initial: Hashable = None,
    reads: tuple[str, ...] = ("read",),
    steps_max: int = STEPS_MAX,
) -> None:
    """Check every key.

    Args:
        reads: names of operations without effect; unknown ones say nothing and are left out.

    Raises:
        Violation: a key has no such order, or the search was too large to tell.
    """
    keys: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.outcome is Outcome.REJECTED:
            continue
        if operation.outcome is not Outcome.OK and operation.name in reads:
            continue
        keys.setdefault(operation.key, []).append(operation)
    for key in sorted(keys):
        _Search(key, keys[key], model, initial).run(steps_max)


class _Search:
    """The search for one key's order.

    Calls and returns stand in a doubly linked list, by time. To put an operation next is to lift its call
    and return out; at a return that nothing before it explains, the last lift is undone.
    """

    def __init__(self, key: str, operations: list[Operation], model: Model, initial: Hashable) -> None:
        self.key, self.operations, self.model, self.state = key, operations, model, initial
        points = [(op.invoked_at, 0, index) for index, op in enumerate(operations)]
        points += [
            (op.returned_at, 1, index)
            for index, op in enumerate(operations)
            if op.outcome is Outcome.OK and op.returned_at is not None
        ]
        points.sort()
        self.owner = [index for _, _, index in points]
        self.is_return = [kind == 1 for _, kind, _ in points]
        self.return_of: dict[int, int] = {
            self.owner[point]: point for point in range(len(points)) if self.is_return[point]
        }
        self.end = len(points)
        self.after = [*range(1, self.end + 1), 0]
        self.before = [self.end, *range(self.end)]

    def run(self, steps_max: int) -> None:
        """Search to the end."""
        lifted: list[tuple[int, Hashable]] = []
        seen: set[tuple[int, Hashable]] = set()
        must_left = len(self.return_of)
        done, point, deepest = 0, self.after[self.end], 0
        for _ in range(steps_max):
            if must_left == 0:
                return
            if point != self.end and not self.is_return[point]:
                index = self.owner[point]
                fits, state = self.model(self.state, self.operations[index])
                if fits and (choice := (done | 1 << index, state)) not in seen:
                    seen.add(choice)
                    lifted.append((point, self.state))
                    self.state, done = state, done | 1 << index
                    must_left -= index in self.return_of
                    deepest = max(deepest, len(lifted))
                    self._lift(point)
                    point = self.after[self.end]
                else:
                    point = self.after[point]
                continue
            if not lifted:
                raise Violation(self._explain(deepest))
            point, self.state = lifted.pop()
            index = self.owner[point]
            done &= ~(1 << index)
            must_left += index in self.return_of
            self._put_back(point)
            point = self.after[point]
        raise Violation(
            f"key {self.key!r}: {len(self.operations)} operations, no verdict in {steps_max} steps"
        )

    def _lift(self, point: int) -> None:
        self._unlink(point)
        back = self.return_of.get(self.owner[point])
        if back is not None:
            self._unlink(back)

    def _put_back(self, point: int) -> None:
        back = self.return_of.get(self.owner[point])
        if back is not None:
            self._relink(back)
        self._relink(point)

    def _unlink(self, point: int) -> None:
        before, after = self.before[point], self.after[point]
        self.after[before], self.before[after] = after, before

    def _relink(self, point: int) -> None:
        self.after[self.before[point]] = self.before[self.after[point]] = point

    def _explain(self, deepest: int) -> str:
        """The operations around the place beyond which no order could go."""
        ordered = sorted(self.operations, key=lambda op: op.invoked_at)
        around = ordered[max(0, deepest - 6) : deepest + 6]
        lines = [
            f"  {op.invoked_at}..{op.returned_at} {op.client} {op.name} {op.argument!r}"
            f" -> {op.outcome.value} {op.result!r}"
            for op in around
        ]
        count = len(self.operations)
        return "\n".join([f"not linearizable: key {self.key!r}, {count} operations; about here:", *lines])
