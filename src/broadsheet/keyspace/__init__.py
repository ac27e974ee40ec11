"""Keyspace: an ordered map of metadata with a revision, the same on every node that mirrors it.

Machines: `core.store.Store` (the map behind `keyspace/local`). Invariants: revisions rise by one per
committed transaction and begin at 1; what is shown is durable; a transaction is shown whole or not at all.
Source: design/control.md, control.15-17.
"""
