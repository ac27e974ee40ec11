"""Pure vocabulary: the machine contract, time, typed integers, names, checksums, marks.

Invariant: nothing here reads a clock, draws entropy, or knows a loop, a disk or a socket. Source: code.2,
code.13.
"""
