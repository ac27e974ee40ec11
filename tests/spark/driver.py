"""A driver of one query, to be killed: `python driver.py '{"address": …, "name": …, "checkpoint": …}'`.

Reads the numbers of `<name>/in-*` and writes them to `<name>/out-0` and `<name>/out-1`, three batches of
two tasks.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[2])
FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
CONF = {
    "spark.driver.extraJavaOptions": FAST_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.ui.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
}


def make_session(master: str = "local[2]") -> Any:
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)
    paths = [ROOT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    from broadsheet.spark import session
    from tests.spark.crashing import CrashingDataSource, NaiveDataSource

    spark = session("windows", master=master, conf=CONF)
    spark.dataSource.register(CrashingDataSource)
    spark.dataSource.register(NaiveDataSource)
    return spark


def start_query(spark: Any, plan: dict[str, Any]) -> Any:
    from broadsheet.spark import start

    crash = {"crashdir": plan["crashdir"]} if plan.get("crashdir") else {}
    name, address = plan["name"], plan["address"]
    rows = (
        spark.readStream.format("broadsheet")
        .options(address=address, journals=f"{name}/in-0,{name}/in-1", tasks="2", **crash)
        .options(maxBytesPerTrigger=plan["bytes_max"], **plan.get("source", {}))
        .schema("x long")
        .load()
    )
    if plan.get("distinct"):
        rows = rows.dropDuplicates(["x"])
    routed = rows.selectExpr("x", f"concat('{name}/out-', cast(x % 2 as string)) as journal")
    writer = (
        routed.writeStream.option("checkpointLocation", plan["checkpoint"])
        .options(**crash)
        .trigger(availableNow=True)
    )
    if plan.get("sink") == "naive":
        return writer.format("naive").options(address=address, fence="none", commitJournal="none").start()
    fenced: Any = {"address": address, "commit_journal": f"{name}/commits", "patience_s": 30}
    if plan.get("sink") == "foreach":

        def write(frame: Any, _batch: int, options: dict[str, str]) -> None:
            frame.write.format("broadsheet").mode("append").options(**options, **crash).save()

        return start(writer, foreach_batch=write, **fenced)
    return start(writer, **fenced)


def finish(spark: Any, plan: dict[str, Any]) -> None:
    """Run the query to its end; again where Spark lost patience with a Python process on a busy machine.

    Spark's ten seconds are no setting; `broadsheet.spark.launchers` is why they are enough.
    """
    for tries_left in (2, 1, 0):
        try:
            start_query(spark, plan).awaitTermination()
        except Exception as error:
            if "failed to connect back" not in str(error) or not tries_left:
                raise
        else:
            return


def main() -> None:
    plan = json.loads(sys.argv[1])
    spark = make_session(plan.get("master", "local[2]"))
    try:
        start_query(spark, plan).awaitTermination()
    except Exception as error:  # noqa: BLE001
        print("FAILED", error, flush=True)
        os._exit(3)
    print("DONE", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
