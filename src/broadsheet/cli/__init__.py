"""Command line: a module for each group of commands, imported when it is used. `main` has the table.

Only the lock of a data directory tells whether its node runs (ADR 0002).
"""
