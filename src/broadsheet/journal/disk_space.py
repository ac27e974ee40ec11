"""Disk space: how much of the disk is kept free, and why appends are refused when there is less.

Sizes are in bytes. Source: journals.20; ADR 0062.
"""

from broadsheet.journal.config import JournalsConfig
from broadsheet.ports import Disk


def free_bytes_wanted(config: JournalsConfig, size: int) -> int:
    """Appends are refused while a disk of `size` has fewer free bytes."""
    by_percent = size * (100 - config.used_percent_max) // 100
    return max(config.free_bytes_min, min(by_percent, config.free_bytes_enough))


def fullness(config: JournalsConfig, disk: Disk) -> str:
    """Why appends are refused on `disk`; empty if they are accepted. Blocking."""
    free, size = disk.free(), disk.size()
    wanted = free_bytes_wanted(config, size)
    if free >= wanted:
        return ""
    return (
        f"the disk has {free >> 20} MiB free of {size >> 20}, and appends need {wanted >> 20}: free some,"
        " or change journals.used_percent_max or journals.free_bytes_min"
    )
