"""Demo: real flights pass through journals and a Spark job exactly once, while processes are killed.

`flights` reads the data. `producers` append it, each to a journal of its own at explicit offsets
(journals.21). `job` cleans the rows and routes them in Spark. `proof` counts the rows that came out, and
draws them. `cli/demo.py` runs the four in order, and kills the node and the driver. Invariant: every row of
the file is in exactly one message of a source journal, and in exactly one message of an output journal.
"""
