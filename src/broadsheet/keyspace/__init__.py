"""Keyspace: an ordered map of metadata with a revision, the same on every node that mirrors it.

Machines: `core.store.Store` (the map behind `keyspace/local`). Invariants: revisions begin at 1 and rise by
one per committed transaction; readers see only durable state; they see a transaction whole or not at all.
Source: design/control.md, control.15-17.
"""
