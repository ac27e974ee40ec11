"""Control: the metastore, one compare-and-set document that holds the cluster's status.

The provider `majority` has the machines `core.acceptor.AcceptorMachine` and `core.proposer.ProposerMachine`;
the provider `file` needs none. Invariants: versions rise by one; every later value descends from each chosen
value; no ballot carries two values. Source: design/control.md control.1-7; CASPaxos (Rystsov 2018) for the
register, joint sets for its members.
"""
