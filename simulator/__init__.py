"""The simulator: whole clusters in one thread, under faults, replayable to the byte (simulation.1-10).

Two tiers share world, faults and checkers. Tier 1 runs machines on a heap (`MachineWorkload`); tier 2 runs
real hosts and coroutines on a virtual-time asyncio loop (`ServiceWorkload`). A seed is turned into a
`Plan`, and a plan is what runs: it alone reproduces a failure. docs/protocols/simulation.md says how to
plug a domain in.

Invariants: nothing here reads a real clock, entropy, disk or socket while a plan runs; nothing iterates a
set; every draw is keyed by (seed, node, boot, purpose, counter), so that removing a fault does not move the
other draws. Source: FoundationDB's simulator, TigerBeetle's VOPR.
"""
