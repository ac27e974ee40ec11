"""The doors of a node: `native` for our clients and peers, `http` for people and Prometheus, and `status`.

Invariant: no method is served without a row that names its capability. Source: access.2, node.9.
"""
