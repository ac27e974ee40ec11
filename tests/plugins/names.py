"""Names: a test has the same name in every process.

Parallel workers compare what they collected, and end the whole run where two names differ: an address in the
name of a parameter does that.
"""

import re

import pytest

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that another process would not repeat."""
    wrong = [item.nodeid for item in items if ADDRESS.search(item.nodeid)]
    if wrong:
        raise pytest.UsageError(f"an address is part of a test's name; give it ids: {wrong[:5]}")
