"""Failpoints: every place of the key space's role at which a test ends the process (kill -9), in one list.

`tests/keyspace/test_kill.py` kills a process at each of them, and holds that the list is what the code
passes.
"""

from typing import Final

LABELS: Final = (
    "keyspace.append",
    "keyspace.durable",
    "keyspace.snapshot",
    "keyspace.trim",
)
"""What `BROADSHEET_FAILPOINT=label:count` may name of this role."""
