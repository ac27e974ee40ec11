"""Observe: what a node shows of itself: structured logs, metrics, and the story of each machine.

Nothing here is global: a node makes its own and hands them on. Source: code.18.
"""
