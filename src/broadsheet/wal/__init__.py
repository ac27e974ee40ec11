"""Write-ahead log: one physical log per role of a process, with many logical streams (log.1).

Three layers. A *run* is some whole entries of one stream, each with its term; the chain crc that it
carries depends on the entries only, and is the same on every replica. A *frame* wraps one run for this
disk: log id, boot, segment lap, generation, physical chain. A *batch* is one write and one sync: 4
KiB-aligned, with a header that states where each stream that it touches stands.

The encoding (`format`, `batch`), the accounting (`stream`, `pool`) and the reading (`scan`, `recovery`)
are sans-IO; `Log` is the thin shell that does the IO. Invariants: what was acknowledged is durable
(W1); recovery yields per stream a prefix of one branch, at least what was acknowledged (W2), and the
same again when it is repeated (W3); damage is charged to streams, detected always (W4), quarantined
where it was known durable (W6), and never deleted (W7).

Source: log.1-19; `docs/protocols/wal.md`; properties W1-W9 in `docs/guarantees.md`.
"""

from broadsheet.wal.config import WALConfig
from broadsheet.wal.log import Log
from broadsheet.wal.reading import Entry
from broadsheet.wal.record import LogFull, LogStatus, Record, Recovered, Run, StreamQuarantined

__all__ = [
    "Entry", "Log", "LogFull", "LogStatus", "Record", "Recovered", "Run", "StreamQuarantined", "WALConfig",
]  # fmt: skip
