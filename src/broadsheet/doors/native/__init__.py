"""The native door: the method table of a node behind the wire's server.

Every method that a role offered is served, each behind the capability that its row names; a method without
a row cannot be reached. It starts last, when every role has offered, and closes first. Source: access.2,
node.1.
"""
