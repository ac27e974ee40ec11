"""The asyncio shell: hosts, scopes, turns, and the production ports (clocks, disk, sockets, stores, entropy).

Invariants: a host steps one machine on one thread, never re-entrantly; no task outlives its scope; no
failed sync is tried again. Source: code.1-10; node.2, node.3; log.16.
"""
