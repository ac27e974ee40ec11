"""Exactly once: what came out is what went in, each thing once (P1, P9).

Things are named by ids. What was acknowledged must be there once; what is unknown at most once; what was
refused, or never sent, not at all. Source: Gazette's stream-sum; Jepsen's set and bank tests.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

from simulator.workload import Violation

T = TypeVar("T", bound=Hashable)
SHOWN = 5


def check_exactly_once(
    *,
    acked: Iterable[T],
    unknown: Iterable[T],
    found: Iterable[T],
    acked_min: int = 0,
) -> str:
    """Check that `found` holds each acknowledged id once, each unknown one at most once, and nothing else.

    Args:
        acked_min: fail where fewer were acknowledged: "none of nothing was lost" proves nothing
        (simulation.4).

    Returns:
        One line with the counts.

    Raises:
        Violation: something was lost, doubled, or came from nowhere.
    """
    sure, maybe, there = dict.fromkeys(acked), dict.fromkeys(unknown), Counter(found)
    lost = [thing for thing in sure if there[thing] == 0]
    doubled = [thing for thing, count in there.items() if count > 1]
    strange = [thing for thing in there if thing not in sure and thing not in maybe]
    landed = sum(1 for thing in maybe if there[thing])
    line = (
        f"acknowledged {len(sure)}, unknown {len(maybe)} of which {landed} took effect, found {there.total()}"
    )
    problems = [
        f"{len(things)} {name}: {[str(thing) for thing in things[:SHOWN]]}"
        for name, things in (("lost", lost), ("doubled", doubled), ("from nowhere", strange))
        if things
    ]
    if len(sure) < acked_min:
        problems.append(f"only {len(sure)} acknowledged, at least {acked_min} are needed to say anything")
    if problems:
        raise Violation(f"not exactly once: {'; '.join(problems)} ({line})")
    return line


def check_sums(sources: dict[str, int], sinks: dict[str, int]) -> None:
    """Check that a quantity is conserved, key by key.

    Raises:
        Violation: the keys whose sums differ.
    """
    keys = sorted({**sources, **sinks})
    wrong = [f"{key}: {sources.get(key, 0)} in, {sinks.get(key, 0)} out" for key in keys]
    wrong = [line for line, key in zip(wrong, keys, strict=True) if sources.get(key, 0) != sinks.get(key, 0)]
    if wrong:
        raise Violation(f"sums differ: {wrong[:SHOWN]} ({len(wrong)} of {len(keys)} keys)")
