"""Marks: proof that a test went where it says (STYLE 4).

`hit("limbo.late_answer")` is one dictionary increment, so it stays in production code. A test reads the count
before and after; the long simulations fail if a mark was never hit.
"""

_counts: dict[str, int] = {}


def hit(mark: str) -> None:
    """Count one passage through the place that `mark` names."""
    _counts[mark] = _counts.get(mark, 0) + 1


def count(mark: str) -> int:
    """How often this process hit `mark`."""
    return _counts.get(mark, 0)


def counts() -> dict[str, int]:
    """Every mark that was hit, sorted by name."""
    return dict(sorted(_counts.items()))
