"""Simulator: runs whole clusters in one thread, under faults, and repeats a run to the byte.

Two tiers share world, faults and checkers. Tier 1 runs machines on a heap (`MachineWorkload`). Tier 2 runs
real hosts and coroutines on a virtual-time asyncio loop (`ServiceWorkload`). Tier 3 judges the disks that
crashes of one process leave (`CrashWorkload`). A seed gives a `Plan`, and the plan alone determines the run,
so it reproduces a failure. docs/protocols/simulation.md says how to write a workload.

Invariants: nothing here reads a real clock, entropy, disk or socket while a plan runs; nothing iterates a
set; every draw is keyed by (seed, node, boot, purpose, counter), so that removing a fault does not move the
other draws. Source: FoundationDB's simulator, TigerBeetle's VOPR.
"""
