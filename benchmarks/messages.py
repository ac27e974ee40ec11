"""Messages of the public publisher and reader, beside appends and reads of the same bytes.

One node, and one client in this process. *publish_many*: small JSON objects; its peer appends the same
frames, rendered beforehand, 256 KiB at a time. *transactions*: so many messages in each; the same peer.
*read*: `client.messages`; its peer is `client.journals.read` with each line decoded. Ratios are of messages
per second, medians over rounds of the ratio within a round; sides alternate. What a ratio lacks is the price
of UUIDs, order, sequencing, and of an object for each message.

    python -m benchmarks.messages [--rounds 3] [--messages 50000] [--json]
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

import broadsheet
from broadsheet.client import Client
from broadsheet.runtime.loop import loop_factory

LABELS: Final = {"broadsheet.dev/framing": "json-lines"}
PIECE_BYTES: Final = 256 << 10
TRANSACTIONS: Final = (1, 100, 10_000)
"""Messages in one transaction."""
SMALL_MAX: Final = 100
"""Transactions of one message are measured with so many of them."""

Side = Callable[[], Awaitable[int]]
"""Does its work, and tells how many messages that were."""


class Bench:
    """The sides of each case over one client."""

    def __init__(self, client: Client, messages: int) -> None:
        self.client = client
        self.bodies = [
            {"n": n, "user": f"user-{n % 997}", "page": "/index.html", "ms": 12.5} for n in range(messages)
        ]
        self.lines: list[bytes] = []
        self.rounds = 0

    async def prepare(self) -> None:
        """A journal to read from, and its lines."""
        await self.client.journals.create("bench/read", labels=LABELS)
        async with self.client.publisher() as publisher:
            await publisher.publish_many("bench/read", self.bodies)
        content = b"".join([chunk.data async for chunk in self.client.journals.read("bench/read")])
        self.lines = content.splitlines(keepends=True)

    async def new_journal(self) -> str:
        """One that nobody has written to."""
        self.rounds += 1
        name = f"bench/out-{self.rounds}"
        await self.client.journals.create(name, labels=LABELS)
        return name

    async def publish(self) -> int:
        """All messages, each committed by itself."""
        name = await self.new_journal()
        async with self.client.publisher() as publisher:
            await publisher.publish_many(name, self.bodies)
        return len(self.bodies)

    async def append(self) -> int:
        """The same bytes, rendered beforehand."""
        name = await self.new_journal()
        piece: list[bytes] = []
        size = 0
        for line in [*self.lines, b""]:
            if size + len(line) > PIECE_BYTES or not line:
                await self.client.journals.append(name, b"".join(piece))
                piece, size = [], 0
            piece.append(line)
            size += len(line)
        return len(self.lines)

    def transact(self, count: int) -> Side:
        """Transactions of `count` messages."""

        async def transact() -> int:
            name = await self.new_journal()
            bodies = self.bodies[: min(len(self.bodies), count * SMALL_MAX)]
            async with self.client.publisher(f"bench/commits-{self.rounds}") as publisher:
                for at in range(0, len(bodies), count):
                    async with publisher.transaction() as transaction:
                        await transaction.publish_many(name, bodies[at : at + count])
            return len(bodies)

        return transact

    async def read_messages(self) -> int:
        """The reader, each message decoded."""
        count = 0
        async for message in self.client.messages("bench/read"):
            message.json()
            count += 1
        return count

    async def read_bytes(self) -> int:
        """The bytes, each line decoded."""
        rest, count = b"", 0
        async for chunk in self.client.journals.read("bench/read"):
            *lines, rest = (rest + chunk.data).split(b"\n")
            for line in lines:
                msgspec.json.decode(line)
                count += 1
        return count


@contextmanager
def node(data_dir: Path) -> Iterator[str]:
    """The address of a node in a process of its own."""
    command = [sys.executable, "-m", "broadsheet"]
    up = [*command, "up", "--data-dir", str(data_dir), "--any-port", "--detach", "--json"]
    told = json.loads(subprocess.run(up, check=True, capture_output=True, text=True).stdout)
    try:
        yield told["nodes"][0]["addresses"]["native"]
    finally:
        subprocess.run([*command, "down", "--data-dir", str(data_dir)], check=True, capture_output=True)


async def timed(side: Side) -> float:
    """Messages per second."""
    began = time.perf_counter()
    count = await side()
    return count / (time.perf_counter() - began)


async def measure(address: str, messages: int, rounds: int) -> list[dict[str, Any]]:
    """Each case beside its peer."""
    async with broadsheet.connect(address) as client:
        bench = Bench(client, messages)
        await bench.prepare()
        cases: list[tuple[str, Side, Side]] = [
            ("publish_many", bench.publish, bench.append),
            *((f"transactions of {n}", bench.transact(n), bench.append) for n in TRANSACTIONS),
            ("read", bench.read_messages, bench.read_bytes),
        ]
        found: dict[str, list[tuple[float, float]]] = {title: [] for title, _, _ in cases}
        for number in range(rounds):
            for title, ours, peer in cases:
                if number % 2:
                    theirs = await timed(peer)
                    found[title].append((await timed(ours), theirs))
                else:
                    mine = await timed(ours)
                    found[title].append((mine, await timed(peer)))
    return [
        {
            "case": title,
            "messages_per_s": round(statistics.median(mine for mine, _ in pairs)),
            "peer_per_s": round(statistics.median(theirs for _, theirs in pairs)),
            "ratio": round(statistics.median(mine / theirs for mine, theirs in pairs), 3),
        }
        for title, pairs in found.items()
    ]


def main() -> None:
    """Start a node, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as root,
        node(Path(root) / "data") as address,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        rows = runner.run(measure(address, options.messages, options.rounds))
    if options.json:
        print(json.dumps({"rows": rows}))
        return
    print(f"{'':24}{'messages/s':>12}{'peer/s':>12}{'ratio':>8}")
    for row in rows:
        print(f"{row['case']:24}{row['messages_per_s']:>12,}{row['peer_per_s']:>12,}{row['ratio']:>8.3f}")


if __name__ == "__main__":
    main()
