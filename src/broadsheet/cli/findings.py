"""Findings: what a check of `broadsheet doctor` is, and what it says."""

from collections.abc import Callable
from enum import Enum
from pathlib import Path

import msgspec


class Verdict(Enum):
    """The result of a check."""

    GOOD = "good"
    WARNING = "warning"
    """A node works, but not as fast or as safely as it could."""
    BAD = "bad"
    """A node will not start, or will not keep its promises."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check, with its reason and the remedy."""

    check: str
    verdict: Verdict
    text: str
    remedy: str = ""


Check = Callable[[Path], Finding]
"""Takes the data directory of `up`, and returns a finding."""
