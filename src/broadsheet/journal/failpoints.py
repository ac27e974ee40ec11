"""Failpoints: every place of the journals role at which a test ends the process (kill -9), in one list.

`tests/journal/test_kill.py` kills a real node at each of them, and a test checks that the list names exactly
the failpoints that the code passes.
"""

from typing import Final

LABELS: Final = (
    "journal.append.before_spool",
    "journal.append.before_log",
    "journal.append.after_log",
    "journal.append.persisted",
    "journal.append.before_advance",
    "journal.append.before_reply",
    "journal.append.after_reply",
    "journal.stream.before_stage",
    "journal.stream.after_stage",
    "journal.stream.before_place",
    "journal.stream.after_place",
    "journal.stream.before_sync",
    "journal.stream.after_sync",
    "journal.stream.after_drop",
    "journal.roll.before_create",
    "journal.roll.after_create",
    "journal.roll.before_put",
    "journal.roll.after_put",
    "journal.roll.after_read_back",
    "journal.roll.before_remove",
    "journal.roll.after_remove",
    "journal.registers.before_put",
    "journal.registers.after_put",
    "journal.registers.after_commit",
    "journal.index.before_add",
    "journal.index.before_write",
    "journal.index.after_write",
    "journal.checkpoint.before_sync",
    "journal.checkpoint.after_sync",
    "journal.checkpoint.after_log",
    "journal.checkpoint.before_trim",
    "journal.open.before_rebuild",
    "journal.open.after_rebuild",
    "journal.epoch.before_put",
    "journal.epoch.after_put",
    "journal.create.before_put",
    "journal.create.after_put",
    "journal.delete.before_mark",
    "journal.delete.after_mark",
    "journal.delete.fragment",
    "journal.delete.after_store",
    "journal.delete.after_spool",
    "journal.delete.after_keys",
)
"""The labels of this role that `BROADSHEET_FAILPOINT=label:count` accepts, beside `REPAIR_LABELS`."""

REPAIR_LABELS: Final = (
    "journal.seal.before_rename",
    "journal.seal.written",
    "journal.seal.in_log",
    "journal.seal.settled",
)
"""Labels that only a repair of damage passes; `tests/journal/test_damage.py` kills at each of them."""
