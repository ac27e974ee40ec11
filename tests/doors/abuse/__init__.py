"""Clients that do their worst, and what a node's other callers notice of it.

`shapes` has one function for each behaviour, `site` a node to attack and what is measured beside it, and
`python -m tests.doors.abuse` prints the table of docs/operations/abuse.md.
"""
