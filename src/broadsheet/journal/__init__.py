"""Journals: append-only byte sequences, appended to atomically, read as committed bytes.

`core` has the machine and its values. `broker` and `replica` drive it over the log, the spool files and the
fragment store. `service` has the methods, `client` the calls of users; `role` starts all of it in a node.
Invariants: J1-J8, J11. Source: docs/design/journals.md.
"""
