"""Numbers in, squares out, exactly once: run it twice, kill it in between, and each square is there once.

broadsheet up --detach
python examples/pipeline.py 127.0.0.1:6640 [CHECKPOINT]
"""

import os
import sys
import time

from broadsheet.base.time import WallTime
from broadsheet.client_sync import connect_sync
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import producer_from
from broadsheet.spark import session, start

SOURCE, SQUARES, COMMITS = "example/numbers", "example/squares", "example/squares-commits"
CHECKPOINT = "/tmp/broadsheet-example-checkpoint"


def main(address: str, checkpoint: str = CHECKPOINT) -> None:
    with connect_sync(address) as client:
        labels = {"broadsheet.dev/framing": "json-lines"}  # so that a batch reads only its own bytes
        client.journals.create(SOURCE, labels=labels, if_absent=True)
        client.journals.create(SQUARES, if_absent=True)
        stamper = Stamper(producer_from(os.urandom(6)))
        wall = WallTime(time.time_ns())
        content = b"".join(stamper.committed(JSON_LINES, b'{"n":%d}' % n, wall) for n in range(1000))
        client.journals.append(SOURCE, content)

    spark = session("squares", master="local[2]")
    numbers = (
        spark.readStream.format("broadsheet")
        .options(address=address, journals=SOURCE)
        .schema("n long")
        .load()
    )
    squares = numbers.selectExpr(f"'{SQUARES}' as journal", "n", "n * n as square")
    writer = squares.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    start(writer, address=address, commit_journal=COMMITS).awaitTermination()

    read = spark.read.format("broadsheet").options(address=address, journals=SQUARES)
    found = read.schema("n long, square long, offset long").load()
    found.orderBy("offset").show(5)
    print(f"{numbers_in(address)} numbers, {found.count()} squares")
    spark.stop()


def numbers_in(address: str) -> int:
    with connect_sync(address) as client:
        return b"".join(chunk.data for chunk in client.journals.read(SOURCE)).count(b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
