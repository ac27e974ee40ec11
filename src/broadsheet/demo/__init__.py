"""The demo: real flights through journals and a Spark job, exactly once, while processes are killed.

`flights` finds and words the data, `producers` append it (one journal each, at explicit offsets:
journals.21), `job` cleans and routes it in Spark, `proof` counts what came out and draws it. `cli/demo.py`
runs them in order and does the killing. Invariant: every row of the file is in exactly one message of a
source journal and in exactly one of an output journal.
"""
