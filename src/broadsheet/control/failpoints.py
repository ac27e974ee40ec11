"""Failpoints: every place of the metastore role at which a test ends the process (kill -9), in one list.

`tests/control/test_kill.py` kills a real node at each of them, and checks that the code passes all of them
and no others.
"""

from typing import Final

LABELS: Final = (
    "metastore.file.written",
    "metastore.file.synced",
    "metastore.file.renamed",
    "metastore.acceptor.append",
    "metastore.acceptor.durable",
)
"""The labels of this role for `BROADSHEET_FAILPOINT=label:count`."""
