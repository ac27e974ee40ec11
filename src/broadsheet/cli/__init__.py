"""Command line: one module for each command, imported when the command is used. `main` has the table.

Only the lock of a data directory tells whether its node runs (ADR 0002).
"""
