"""Failpoints: every place of the key space's role at which a test ends the process (kill -9), in one list.

`tests/keyspace/test_kill.py` kills a process at each of them, and checks that the list names exactly the
failpoints that the code passes.
"""

from typing import Final

LABELS: Final = (
    "keyspace.append",
    "keyspace.durable",
    "keyspace.snapshot",
    "keyspace.trim",
)
"""The labels of this role that `BROADSHEET_FAILPOINT=label:count` accepts."""
