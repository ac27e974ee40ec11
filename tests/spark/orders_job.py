"""A job over orders, to be killed: `python orders_job.py '{"way": "stream", "address": …, …}'`.

A row for each line of an order goes to the journal of its country. Ways: `stream`, the sink of a query;
`function`, a function of batches; `batch`, a write for each hour under its number, as a scheduler runs it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[2])
ROWS = (
    "id",
    "line",
    "country",
    "placed",
    "line_of.sku as sku",
    "cast(line_of.price * line_of.count as decimal(20,2)) as amount",
)


def outputs(plan: dict[str, Any]) -> list[str]:
    return [f"{plan['way']}/out-{part}" for part in range(3)]


def rows_of(orders: Any) -> Any:
    """A row for each line of each order."""
    exploded = orders.selectExpr("id", "country", "placed", "posexplode(lines) as (line, line_of)")
    return exploded.selectExpr(*ROWS)


def run_query(spark: Any, plan: dict[str, Any], options: dict[str, str], to: dict[str, str]) -> None:
    from broadsheet.spark import start
    from tests.spark.orders import SCHEMA

    orders = spark.readStream.format("broadsheet").options(**options).schema(SCHEMA).load()
    writer = rows_of(orders).writeStream.options(**to).option("checkpointLocation", plan["checkpoint"])

    def write(frame: Any, _batch: int, more: dict[str, str]) -> None:
        frame.write.format("broadsheet").mode("append").options(**more).save()

    query = start(
        writer.trigger(availableNow=True),
        address=plan["address"],
        commit_journal=f"{plan['way']}/commits",
        foreach_batch=write if plan["way"] == "function" else None,
    )
    query.awaitTermination()


def run_hours(spark: Any, plan: dict[str, Any], options: dict[str, str], to: dict[str, str]) -> None:
    """Each hour once, beginning with the one that may not have been written."""
    from tests.spark.orders import HOURS, SCHEMA

    state = Path(plan["checkpoint"] + ".hour")
    begin = int(state.read_text()) if state.exists() else 0
    del options["maxBytesPerTrigger"]
    for hour in range(begin, HOURS):
        orders = spark.read.format("broadsheet").options(**options).schema(SCHEMA).load()
        rows = rows_of(orders.where(f"hour = {hour}")).repartition(2)
        numbered = rows.write.format("broadsheet").mode("append").options(**to, address=plan["address"])
        numbered.options(commitJournal="batch/commits", batchId=str(hour)).save()
        draft = state.with_suffix(".new")
        draft.write_text(str(hour + 1))
        draft.replace(state)


def main() -> None:
    plan = json.loads(sys.argv[1])
    sys.path.insert(0, ROOT)
    from broadsheet.spark import session
    from tests.spark.driver import CONF

    spark = session("orders", master="local[2,4]", conf=CONF)
    options = {
        "address": plan["address"],
        "subscribePattern": "orders/in-.*",
        "malformed": "drop",
        "maxBytesPerTrigger": plan["bytes_max"],
    }
    to = {"toJournals": ",".join(outputs(plan)), "keyColumn": "country"}
    try:
        (run_hours if plan["way"] == "batch" else run_query)(spark, plan, options, to)
    except Exception as error:  # noqa: BLE001 - whoever restarts it reads why.
        print("FAILED", str(error)[:2000], flush=True)
        os._exit(3)
    print("DONE", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
