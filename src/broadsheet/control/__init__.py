"""Control: the metastore, one compare-and-set document that holds the cluster's status.

Machines: `core.acceptor.Acceptor` and `core.proposer.Proposer` (the `majority` provider). `file` needs
none. Invariants: versions rise by one; a value once chosen is the ancestor of every later one; no ballot
carries two values. Source: design/control.md control.1-7; CASPaxos (Rystsov 2018) for the register, joint
sets for its members.
"""
