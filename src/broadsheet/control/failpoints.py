"""Failpoints: every place of the metastore role at which a test ends the process (kill -9), in one list.

`tests/control/test_kill.py` kills a real node at each of them, and holds that the list is what the code
passes.
"""

from typing import Final

LABELS: Final = (
    "metastore.file.written",
    "metastore.file.synced",
    "metastore.file.renamed",
    "metastore.acceptor.append",
    "metastore.acceptor.durable",
)
"""What `BROADSHEET_FAILPOINT=label:count` may name of this role."""
