"""Foreign systems, one folder for each, and no import of them anywhere else.

None is used yet: engines, object stores and etcd come with later parts. Source: node.9.
"""
