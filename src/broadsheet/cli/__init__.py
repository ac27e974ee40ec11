"""The command line: one module for each command, loaded when it is used; `main` has the table.

Whether a node runs is told by the lock of its data directory alone (ADR 0002).
"""
