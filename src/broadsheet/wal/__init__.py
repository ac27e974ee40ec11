"""Write-ahead log: one physical log per role of a process, with many logical streams (log.1).

A log has three layers. A *run* is some whole entries of one stream, each with its term. Its chain crc depends
on the entries only, and is the same on every replica. A *frame* wraps one run for this disk: it adds log id,
boot, segment lap, generation and physical chain. A *batch* is one write and one sync. It is aligned to 4 KiB,
and the rows in its head say at which offset, generation and chain each stream is that the batch changes.

The encoding (`format`, `batch`), the accounting (`stream`, `pool`) and the reading (`scan`, `recovery`)
are sans-IO; `Log` is the thin shell that does the IO. Invariants: an acknowledged record is durable (W1).
Recovery returns a prefix of one branch for each stream, with all acknowledged records (W2), and returns the
same when it is repeated (W3). Damage is always detected and charged to streams (W4). A stream whose damaged
records were known durable is quarantined (W6). Damaged bytes are never deleted (W7).

Source: log.1-20; `docs/protocols/wal.md`; properties W1-W9 in `docs/guarantees.md`.
"""

from broadsheet.wal.config import WALConfig
from broadsheet.wal.log import Log
from broadsheet.wal.reading import EntryChain
from broadsheet.wal.record import LogFull, LogStatus, Record, Recovered, Run, StreamQuarantined

__all__ = [
    "EntryChain", "Log", "LogFull", "LogStatus", "Record", "Recovered", "Run", "StreamQuarantined",
    "WALConfig",
]  # fmt: skip
