"""Doors: where callers come in: `native` for clients and peers, `http` for people and Prometheus; `status`.

Invariant: no method is served without a row that names its capability. Source: access.2, node.9.
"""
