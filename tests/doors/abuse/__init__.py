"""Clients that do their worst, and what a node's other callers notice of it.

`shapes` and `corners` have one function for each behaviour, `site` a node to attack and what is measured
beside it, and `python -m tests.doors.abuse` prints a table as in docs/operations/abuse.md.
"""
