"""Orders: a data set of nested rows, in journals whose writers commit, roll back, repeat and mistype.

What a job over them must give is told beside them, made from the same numbers in plain Python.
"""

import json
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

from tests.spark.recount import ACK, CONTINUE, OUTSIDE, uuid_of

COUNTRIES = ("it", "fr", "de", "pl", "\u00e9s", "")
HOURS = 8
SCHEMA = (
    "id long, hour int, country string, placed timestamp, "
    "lines array<struct<sku: string, count: int, price: decimal(9,2)>>"
)
CLOCK = 2_205_855_587_517_004_112
TICK = 160


class Orders(NamedTuple):
    """Journals by name, and the rows that a job must make of them."""

    content: dict[str, bytes]
    rows: list[dict[str, Any]]


class _Writer:
    """One producer of one journal."""

    def __init__(self, producer: int) -> None:
        self.producer, self.clock = producer, CLOCK

    def line(self, flags: int, body: dict[str, Any]) -> bytes:
        self.clock += TICK
        named = {"_meta": {"uuid": uuid_of(self.producer, self.clock, flags)}, **body}
        return json.dumps(named, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def orders(name: str, count: int, seed: int) -> Orders:
    """`count` orders in three journals, of which nine in ten are committed and whole."""
    random = Random(seed)
    content = {f"{name}-{part}": b"" for part in range(3)}
    found: list[dict[str, Any]] = []
    writers = {
        journal: [_Writer(0x010000000001 + at * 16 + one) for one in range(3)]
        for at, journal in enumerate(content)
    }
    number = 0
    while number < count:
        journal = random.choice([*content])
        writer = random.choice(writers[journal])
        size = min(random.choice((1, 1, 1, 5, 40)), count - number)
        some = [order(number + at, random) for at in range(size)]
        number += size
        kind = random.random()
        if kind < 0.05:  # A writer of an older version: its ids are text, and rows of it are dropped.
            content[journal] += writer.line(OUTSIDE, some[0] | {"id": f"no-{some[0]['id']}"})
            some = []
        elif kind < 0.5:
            for each in some:
                one = writer.line(OUTSIDE, each)
                content[journal] += one * random.choice((1, 1, 2))  # Whoever did not hear an answer repeats.
        else:
            before = writer.clock
            content[journal] += b"".join(writer.line(CONTINUE, each) for each in some)
            if kind < 0.6:  # Rolled back: acknowledged up to where it began.
                end, writer.clock = writer.clock, before - TICK
                content[journal] += writer.line(ACK, {})
                writer.clock = end
                some = []
            else:
                content[journal] += writer.line(ACK, {})
        found += [row for each in some for row in rows_of(each)]
    return Orders(content, found)


def order(number: int, random: Random) -> dict[str, Any]:
    """One order of one to four lines."""
    lines = [
        {"sku": f"s-{random.randrange(500)}\u20ac", "count": random.randrange(1, 9), "price": price(random)}
        for _ in range(random.randrange(1, 5))
    ]
    placed = f"20{random.randrange(10, 30)}-0{random.randrange(1, 10)}-28T23:59:{random.randrange(10, 60)}Z"
    country = random.choice(COUNTRIES)
    return {"id": number, "hour": number % HOURS, "country": country, "placed": placed, "lines": lines}


def price(random: Random) -> str:
    """A price, as decimals are written."""
    return str(Decimal(random.randrange(1, 1_000_000)) / 100)


def rows_of(order: dict[str, Any]) -> list[dict[str, Any]]:
    """What the job makes of an order: a row for each line."""
    return [
        {
            "id": order["id"],
            "line": at,
            "country": order["country"],
            "placed": order["placed"].removesuffix("Z") + "Z",
            "sku": line["sku"],
            "amount": str((Decimal(line["price"]) * line["count"]).quantize(Decimal("0.01"))),
        }
        for at, line in enumerate(order["lines"])
    ]
