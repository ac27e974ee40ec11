"""Marks: names of code paths that tests count, as proof that a test went there (simulation.8).

`hit("limbo.late_answer")` is one dictionary increment, so it stays in production code. A test reads the count
before and after; the long simulations fail if a mark was never hit, and strike when one is.
"""

from collections.abc import Callable

_counts: dict[str, int] = {}
_listener: Callable[[str], None] | None = None


def install(listener: Callable[[str], None] | None) -> None:
    """Tell `listener` of each mark from now on; None ends it. Only a simulation listens."""
    global _listener  # noqa: PLW0603 - one per simulated world, and worlds do not overlap.
    _listener = listener


def hit(mark: str) -> None:
    """Count one passage through the place that `mark` names."""
    _counts[mark] = _counts.get(mark, 0) + 1
    if _listener is not None:
        _listener(mark)


def count(mark: str) -> int:
    """How often this process hit `mark`."""
    return _counts.get(mark, 0)


def counts() -> dict[str, int]:
    """Every mark that was hit, sorted by name."""
    return dict(sorted(_counts.items()))
