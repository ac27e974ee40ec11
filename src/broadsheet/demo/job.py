"""Job: cleans the flights, and routes them to one journal for each carrier, exactly once.

The job is a process of its own, so that the demo can kill it: `python -m broadsheet.demo.job JSON`. Cleaning
turns numbers into numbers, times into ISO 8601 in UTC, and `NA` and the empty text into null. No row is
dropped: a message that does not parse goes to the journal `flights/unparsable`, with its journal and offset.
"""

import sys
from typing import TYPE_CHECKING, Final

import msgspec

from broadsheet.demo.flights import NUMBERS, TEXTS
from broadsheet.demo.producers import PRODUCERS, source_journal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COMMIT_JOURNAL: Final = "flights/commits"
UNPARSABLE: Final = "flights/unparsable"
BY_CARRIER: Final = "flights/carrier/"


class Job(msgspec.Struct, frozen=True):
    """The arguments of the demo's Spark job."""

    address: str
    checkpoint: str
    bytes_per_batch: int


def main() -> None:
    """Route all flights that are in the source journals now."""
    from broadsheet.spark import session, start

    job = msgspec.json.decode(sys.argv[1], type=Job)
    spark = session("flights", conf={"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"})
    raw = (
        spark.readStream.format("broadsheet")
        .option("address", job.address)
        .option("journals", ",".join(source_journal(number) for number in range(PRODUCERS)))
        .option("maxBytesPerTrigger", job.bytes_per_batch)
        .option("malformed", "keep")
        .schema(
            "value binary, journal string, offset bigint, malformed boolean, "
            + ", ".join(f"{name} string" for name in (*NUMBERS, *TEXTS))
        )
        .load()
    )
    query = start(
        routed(raw)
        .writeStream.option("checkpointLocation", job.checkpoint)
        .option("createJournals", "true")
        .trigger(availableNow=True),
        address=job.address,
        commit_journal=COMMIT_JOURNAL,
    )
    query.awaitTermination()
    spark.stop()


def routed(raw: "DataFrame") -> "DataFrame":
    """Turn each row of flights into the columns journal and value."""
    from pyspark.sql import functions as f

    def known(name: str) -> "Column":
        return f.when(~f.col(name).isin("NA", ""), f.col(name))

    numbers = {name: known(name).try_cast("int") for name in NUMBERS}
    time_hour = f.try_to_timestamp(known("time_hour"))
    is_bad = (
        f.col("malformed") | known("carrier").isNull() | (time_hour.isNull() & known("time_hour").isNotNull())
    )
    for name, number in numbers.items():
        is_bad |= number.isNull() & known(name).isNotNull()
    clean = f.struct(
        *(number.alias(name) for name, number in numbers.items()),
        *(known(name).alias(name) for name in TEXTS if name != "time_hour"),
        f.date_format(time_hour, "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("time_hour"),
    )
    strange = f.struct(
        f.col("journal").alias("from_journal"),
        f.col("offset").alias("from_offset"),
        f.base64("value").alias("value"),
    )
    keep_nulls = {"ignoreNullFields": "false"}
    return raw.select(
        f.when(is_bad, f.lit(UNPARSABLE))
        .otherwise(f.concat(f.lit(BY_CARRIER), f.coalesce("carrier", f.lit(""))))
        .alias("journal"),
        f.when(is_bad, f.to_json(strange)).otherwise(f.to_json(clean, keep_nulls)).alias("value"),
    )


if __name__ == "__main__":
    main()
