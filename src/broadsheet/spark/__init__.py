"""Exactly-once PySpark pipelines over journals.

`format("broadsheet")` is a source and a sink. `start` starts a query whose sink is exactly once: it fences
the commit journal in the user's driver before Spark plans anything. `session` makes a Spark session in
which small batches are cheap, with a JVM from a wheel where the machine has none.

    spark = broadsheet.spark.session("clicks")
    rows = spark.readStream.format("broadsheet").options(address=A, journals="clicks").schema(S).load()
    out = rows.writeStream.option("checkpointLocation", C)
    query = broadsheet.spark.start(out, address=A, commit_journal="commits/clicks")

Invariants: a message of a source is in exactly one micro-batch, the one whose span holds the last byte of
its acknowledgement; a batch's output is committed by one append to the commit journal, and by nothing else.
Source: pipelines.1-13. The only importer of pyspark.
"""

from broadsheet.spark.application import read_stream_options, start
from broadsheet.spark.session import register, session

__all__ = ["read_stream_options", "register", "session", "start"]
