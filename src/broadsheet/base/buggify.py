"""Buggify: places where a simulation may do the unlikely but legal thing (FoundationDB's word).

Only hosts, services and simulated ports ask; machines never do. The sites: the simulated store (which
refuses, fails, is slow, or loses its answer), the simulated disk and clock (a thread, a timer, the end of a
turn that is late), and where key space, metastore and journals append to their logs (no room). A production
process never installs a chooser, and then the question costs one comparison.
"""

from collections.abc import Callable

_chooser: Callable[[str], bool] | None = None


def install(chooser: Callable[[str], bool] | None) -> None:
    """Let `chooser` decide from now on; None turns it off."""
    global _chooser  # noqa: PLW0603 - one per simulated world, and worlds do not overlap.
    _chooser = chooser


def buggify(site: str) -> bool:
    """Whether the unlikely thing shall happen at `site` this time."""
    return _chooser is not None and _chooser(site)
