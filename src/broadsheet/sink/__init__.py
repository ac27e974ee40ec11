"""What the exactly-once sink decides, without Spark: driven by `broadsheet.spark` and by the simulator.

`core.records` is what stands in a commit journal and in its registers; `core.driver` is the machine of
START, PLAN and COMMIT; `core.producers` says which producer id a worker may use. Invariants: a batch is
committed by one append, and acknowledged after it; a producer whose acknowledgement may arrive twice is
never used again. Source: pipelines.6-11; docs/concepts/exactly-once.md.
"""
