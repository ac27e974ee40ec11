"""The HTTP door: `/`, `/metrics` and `/healthz` for people, Prometheus and supervisors.

`exchange` is the sans-IO HTTP/1.1 of one request, `door` binds it to the network and holds the pages.
Journals over HTTP come with a later part (ADR 0004). Source: node.9, access.8.
"""
