"""Mixed appends against a real node that dies, and a checker of its own: what each append became.

Every append carries a serial number, its length and a checksum, so that the content of a journal can be cut
into appends again without asking the node where they begin.
"""

import asyncio
import contextlib
import random
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from broadsheet.client import Client
from broadsheet.errors import BroadsheetError, Refused, Unknown

MARK: Final = b"\xabBS1"
HEAD: Final = struct.Struct("<4sQII")
"""Mark, serial number, bytes of the body, crc32 of the body."""

SMALL_BYTES_MAX: Final = 600
STREAM_BYTES_MAX: Final = 300_000
PIECE_BYTES: Final = 40_000
MANY_COUNT: Final = 25
FRAGMENT_BYTES: Final = 1 << 20


@dataclass
class Tally:
    """What became of all appends, by kind of append and outcome."""

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    deaths: int = 0

    def add(self, kind: str, outcome: str, count: int = 1) -> None:
        """Count `count` appends of `kind`."""
        of_kind = self.counts.setdefault(kind, {})
        of_kind[outcome] = of_kind.get(outcome, 0) + count

    def total(self, outcome: str) -> int:
        """Appends of all kinds with that outcome."""
        return sum(each.get(outcome, 0) for each in self.counts.values())

    def __str__(self) -> str:
        """One line for the total and one for each kind."""
        words = ("acknowledged", "unknown", "refused", "aborted")
        lines = [
            f"{self.deaths} deaths: "
            + ", ".join(f"{self.total(word)} {word}" for word in words)
            + f"; {len(self.problems)} lost, changed, doubled or revived"
        ]
        lines += [f"  {kind}: {of_kind}" for kind, of_kind in sorted(self.counts.items())]
        return "\n".join(lines + self.problems[:20])


class Sent(NamedTuple):
    """Content that was sent, without its bytes: a hundred lives of a node send gigabytes."""

    length: int
    digest: bytes

    @classmethod
    def of(cls, content: bytes) -> "Sent":
        """What is kept of `content`."""
        return cls(len(content), blake2b(content, digest_size=16).digest())


class Ledger:
    """One journal's appends as its clients were told."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, tuple[int, Sent]] = {}
        """By serial number: begin and content."""
        self.unknown: dict[int, None] = {}
        self.absent: dict[int, None] = {}
        """Refused, or broken off by their client: they never stand in the journal."""
        self.standing: dict[int, int] = {}
        """What was read so far: where each append stands, by serial number."""
        self.read = 0
        """How far the journal was read."""
        self.register = 0
        """Highest value whose setting was acknowledged."""
        self.register_tried = 0


class Mix:
    """Clients of several journals, and what they were told over all lives of the node."""

    def __init__(self, seed: int, *, journals: int = 6) -> None:
        self.tally = Tally()
        self.ledgers = {f"mixed/{number:02}": Ledger() for number in range(journals)}
        self._random = random.Random(seed)
        self._serial = 0

    async def create(self, client: Client) -> None:
        """Make the journals."""
        for name in self.ledgers:
            await client.journals.create(name, fragment_length=FRAGMENT_BYTES, if_absent=True)

    async def work(self, client: Client) -> None:
        """Append in every way, with two tasks for each journal, until cancelled or the node is gone."""
        async with asyncio.TaskGroup() as group:
            for name in self.ledgers:
                for _ in range(2):
                    group.create_task(self._writer(client, name))

    async def check(self, client: Client, *, is_whole: bool = False) -> None:
        """Read what is new, or everything, and compare it with what the clients were told."""
        for name, ledger in self.ledgers.items():
            at = 0 if is_whole else ledger.read
            content = b"".join([bytes(chunk.data) async for chunk in client.journals.read(name, at)])
            status = await client.journals.status(name)
            if status.end != at + len(content):
                self._problem(f"{name}: status says {status.end}, {at + len(content)} bytes were read")
            self.compare(name, content, at)
            values = (await client.journals.registers(name)).values
            value = int(values.get("n", "0"))
            if not ledger.register <= value <= ledger.register_tried:
                self._problem(
                    f"{name}: register {value}, acknowledged {ledger.register}, tried {ledger.register_tried}"
                )
            ledger.register = ledger.register_tried = value

    def compare(self, name: str, content: bytes, base: int = 0) -> None:
        """Enter as a problem whatever differs from what the clients of a journal were told.

        Args:
            content: all of the journal from `base` on; what stands below was compared before.
        """
        ledger = self.ledgers[name]
        standing = {serial: begin for serial, begin in ledger.standing.items() if begin < base}
        at = 0
        while at < len(content):
            if content[at : at + 4] != MARK or at + HEAD.size > len(content):
                self._problem(f"{name}: no append begins at {base + at}")
                return
            _, serial, length, crc = HEAD.unpack_from(content, at)
            body = content[at + HEAD.size : at + HEAD.size + length]
            if len(body) != length or zlib.crc32(body) != crc:
                self._problem(f"{name}: append {serial} stands in part at {base + at}")
                return
            if serial in standing:
                self._problem(
                    f"{name}: append {serial} stands at {standing[serial]} and again at {base + at}"
                )
            standing[serial] = base + at
            at += HEAD.size + length
        for serial, (begin, sent) in ledger.acknowledged.items():
            at = begin - base
            is_there = standing.get(serial) == begin
            if not is_there or (at >= 0 and Sent.of(content[at : at + sent.length]) != sent):
                self._problem(f"{name}: append {serial}, acknowledged at {begin}, is lost or changed")
        for serial in ledger.absent:
            if serial in standing:
                self._problem(f"{name}: append {serial} was refused or broken off, and stands there")
        known = ledger.acknowledged.keys() | ledger.unknown.keys() | ledger.absent.keys()
        for serial in standing.keys() - known:
            self._problem(f"{name}: nobody sent append {serial}")
        ledger.standing, ledger.read = standing, base + len(content)

    def _problem(self, text: str) -> None:
        self.tally.problems.append(f"after death {self.tally.deaths}: {text}")

    def content(self, bytes_max: int) -> tuple[int, bytes]:
        """A serial number never used before, and content that carries it."""
        self._serial += 1
        body = self._random.randbytes(self._random.randrange(bytes_max))
        return self._serial, HEAD.pack(MARK, self._serial, len(body), zlib.crc32(body)) + body

    async def _writer(self, client: Client, name: str) -> None:
        ways = (
            self._single,
            self._many,
            self._streamed,
            self._at_offset,
            self._with_register,
            self._broken_off,
        )
        while True:
            way = ways[self._random.randrange(len(ways))]
            try:
                await way(client, name)
            except Unknown:
                return  # The node is gone, or as good as.
            except Refused:
                await asyncio.sleep(0.005)

    @contextlib.contextmanager
    def _told(self, kind: str, name: str, sent: dict[int, bytes]) -> Iterator[dict[int, int]]:
        """Enter into the ledger what became of `sent`; the body fills in each acknowledged begin."""
        ledger = self.ledgers[name]
        ledger.unknown.update(dict.fromkeys(sent))  # Also where the task is cancelled.
        begins: dict[int, int] = {}
        outcome = "unknown"
        try:
            yield begins
            outcome = "acknowledged"
        except Refused:
            outcome = "refused"
            raise
        except ZeroDivisionError:
            outcome = "aborted"
        finally:
            for serial, content in sent.items():
                if outcome != "unknown":
                    del ledger.unknown[serial]
                if outcome == "acknowledged":
                    ledger.acknowledged[serial] = begins[serial], Sent.of(content)
                elif outcome != "unknown":
                    ledger.absent[serial] = None
            self.tally.add(kind, outcome, len(sent))

    async def _single(self, client: Client, name: str) -> None:
        serial, content = self.content(SMALL_BYTES_MAX)
        with self._told("single", name, {serial: content}) as begins:
            begins[serial] = (await client.journals.append(name, content)).begin

    async def _many(self, client: Client, name: str) -> None:
        sent = dict(self.content(SMALL_BYTES_MAX) for _ in range(MANY_COUNT))
        with self._told("many", name, sent) as begins:
            commits = await client.journals.append_many(name, list(sent.values()))
            begins.update({serial: commit.begin for serial, commit in zip(sent, commits, strict=True)})

    async def _streamed(self, client: Client, name: str) -> None:
        serial, content = self.content(STREAM_BYTES_MAX)
        with self._told("streamed", name, {serial: content}) as begins:
            begins[serial] = (await client.journals.append(name, _pieces(content))).begin

    async def _broken_off(self, client: Client, name: str) -> None:
        serial, content = self.content(STREAM_BYTES_MAX)

        async def pieces() -> AsyncIterator[bytes]:
            yield content[: len(content) // 2 or 1]
            raise ZeroDivisionError

        with self._told("broken off", name, {serial: content}) as begins:
            begins[serial] = (await client.journals.append(name, pieces())).begin

    async def _at_offset(self, client: Client, name: str) -> None:
        offset = (await client.journals.status(name)).end
        serial, content = self.content(SMALL_BYTES_MAX)
        with self._told("at offset", name, {serial: content}) as begins:
            begins[serial] = (await client.journals.append(name, content, offset=offset)).begin

    async def _with_register(self, client: Client, name: str) -> None:
        ledger = self.ledgers[name]
        values = (await client.journals.registers(name)).values
        serial, content = self.content(SMALL_BYTES_MAX)
        value = int(values.get("n", "0"))
        ledger.register_tried = max(ledger.register_tried, value + 1)
        with self._told("with register", name, {serial: content}) as begins:
            begins[serial] = (
                await client.journals.append(
                    name, content, check={"n": values.get("n")}, union={"n": str(value + 1)}
                )
            ).begin
        ledger.register = max(ledger.register, value + 1)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), PIECE_BYTES):
        yield content[at : at + PIECE_BYTES]
        await asyncio.sleep(0)


async def give_up(work: "asyncio.Task[None]", *, after: float) -> None:
    """Cancel what goes on asking a dead node after `after` seconds; its appends are unknown."""
    await asyncio.wait((work,), timeout=after)
    work.cancel()
    with contextlib.suppress(BroadsheetError, asyncio.CancelledError):
        await work
