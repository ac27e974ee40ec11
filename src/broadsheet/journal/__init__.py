"""Journals: append-only byte sequences, appended to atomically, read as committed bytes.

`core` has the machines and their values; `broker` and `replica` drive them over the log, the spool and the
fragment store; `service` has the methods, `client` what users call, `role` starts it all in a node.
Invariants: J1-J8, J11. Source: docs/design/journals.md.
"""
