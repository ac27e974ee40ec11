"""Sink: the decisions of the exactly-once sink, without Spark. `broadsheet.spark` and the simulator run them.

`core.records` defines the content of a commit journal and of its registers. `core.driver` is the machine of
START, PLAN, COMMIT and ABORT; `core.history` refuses a checkpoint that does not fit. `core.producers` decides
which producer id a worker may use. Invariants: one append commits a batch, and the batch is acknowledged only
after it. A producer whose acknowledgement may arrive twice is never used again. Source: pipelines.6-11;
docs/concepts/exactly-once.md.
"""
