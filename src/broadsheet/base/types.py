"""Types: the typed integers and names that cross module borders.

A position is inclusive (`offset`), an end exclusive (`end`). `Offset` counts entries of a log stream,
`ByteOffset` bytes of a journal: the type checker keeps them apart (code.13).
"""

from typing import NewType

Offset = NewType("Offset", int)
"""Dense position of an entry in a log stream; the first entry is 0."""

ByteOffset = NewType("ByteOffset", int)
"""Position of a byte in a journal; the first byte is 0."""

Term = NewType("Term", int)
"""One leadership of one shard; totally ordered."""

Epoch = NewType("Epoch", int)
"""A journal's pipeline epoch: the revision at which its epoch key was written."""

Revision = NewType("Revision", int)
"""Position in a key space's history; the first revision is 1, and 0 means absent."""

Generation = NewType("Generation", int)
"""A branch of a log stream: each truncation begins a greater generation."""

LogStreamId = NewType("LogStreamId", int)
"""A logical stream of one physical log, unsigned 64 bits."""

NodeId = NewType("NodeId", str)
"""A node's configured name, unique in its cluster."""

ClusterId = NewType("ClusterId", int)
"""Random, non-zero, written once, minted anew by a restore (control.19)."""

Incarnation = NewType("Incarnation", int)
"""One life of a replica's data: a wiped or restored one has another, a restart has the same."""

ConnectionId = NewType("ConnectionId", int)
"""A connection of this process; never used again by it."""

RequestId = NewType("RequestId", int)
"""A request of one connection."""

Token = NewType("Token", int)
"""The number by which a machine names a `Persist` effect; it rises with each one."""

JournalName = NewType("JournalName", str)
"""A validated journal name: relative, clean, at most 512 characters."""

Buffer = bytes | bytearray | memoryview
"""Payload bytes, borrowed: the callee copies what it keeps beyond its return or its await."""
