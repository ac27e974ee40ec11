"""HTTP: the door with `/`, `/metrics`, `/healthz` and `/readyz` for people, Prometheus and supervisors.

`exchange` parses one HTTP/1.1 request without IO. `door` binds it to the network and makes the pages.
Journals cannot be read over HTTP yet (ADR 0004). Source: node.9, access.8.
"""
