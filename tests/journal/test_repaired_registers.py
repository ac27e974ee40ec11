"""Whichever record of a journal is damaged: a repair shows content with its registers, or says they are lost.

The oracle knows each append and the registers behind it. A history of a few appends and checkpoints is cut
where the power fails: some of the newest registers were never put. Then one record is damaged (J2, J6).
"""

from hashlib import sha1
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.base.types import ByteOffset, Epoch
from broadsheet.journal.core.fragment import EMPTY_SUM
from broadsheet.journal.core.records import (
    CHECKPOINT,
    Checkpoint,
    ClosedSpool,
    Proposal,
    decode,
    encode_checkpoint,
    encode_proposal,
)
from broadsheet.journal.core.recovery import replay
from broadsheet.journal.core.registers import NO_REGISTERS, RegisterState
from broadsheet.journal.core.spool_claims import claims_of
from broadsheet.journal.spool_file import spool_name
from broadsheet.journal.spool_repair import Witnesses, repair
from simulator.disk import SimDisk

REGISTER_WORDS = b'{"values": {}, "version": 1}'
FLIPPED_BYTES = 200


class History:
    """Appends to one journal, and its records in the order of the log."""

    def __init__(self, random: Random) -> None:
        self.random, self.content, self.begin = random, b"", 0
        self.closed: list[tuple[int, int]] = []
        self.records: list[bytes] = []
        self.behind = {0: NO_REGISTERS}
        """The registers behind each append, by its end."""
        for _ in range(random.randrange(2, 7)):
            self._append()
            if random.random() < 0.25:
                self._checkpoint(random.choice([*self.behind][-2:]))

    def sum_to(self, begin: int, end: int) -> bytes:
        return sha1(self.content[begin:end], usedforsecurity=False).digest() if end > begin else EMPTY_SUM

    def _append(self) -> None:
        random, begin = self.random, len(self.content)
        if random.random() < 0.2 and begin > self.begin:
            self.closed.append((self.begin, begin))
            self.begin = begin
        content = random.randbytes(random.randrange(1, 40)) if random.random() < 0.7 else REGISTER_WORDS
        self.content += content
        end, now = len(self.content), self.behind[begin]
        changed: RegisterState | None = None
        if random.random() < 0.4:
            values = {"author": "x" * random.randrange(40)}
            changed = now = RegisterState(values=values, version=now.version + 1, at=ByteOffset(end))
        self.behind[end] = now
        is_spooled = random.random() < 0.2
        head = encode_proposal(
            epoch=Epoch(1),
            fragment_begin=ByteOffset(self.begin),
            begin=ByteOffset(begin),
            end=ByteOffset(end),
            first_append=1,
            digest=self.sum_to(self.begin, end),
            registers=changed,
            is_spooled=is_spooled,
            attempt=random.randbytes(16) if random.random() < 0.3 else b"",
        )
        self.records.append(head if is_spooled else head + content)

    def _checkpoint(self, end: int) -> None:
        """One that was begun when the journal ended there; the last append may have come meanwhile."""
        if end >= self.begin:
            closed = (ClosedSpool(ByteOffset(a), ByteOffset(b), self.sum_to(a, b)) for a, b in self.closed)
            at, begin, digest = ByteOffset(end), ByteOffset(self.begin), self.sum_to(self.begin, end)
            found = Checkpoint(Epoch(1), begin, at, digest, 1, self.behind[end], tuple(closed))
            self.records.append(encode_checkpoint(found))

    def disk(self) -> SimDisk:
        """The spool files; all bytes are there."""
        disk = SimDisk()
        disk.make_dir("spool")
        for begin, end in (*self.closed, (self.begin, len(self.content))):
            file = disk.open(spool_name("spool", ByteOffset(begin)), create=True)
            file.write_at(0, [self.content[begin:end]])
        return disk


class Repaired(NamedTuple):
    """What a repair came to."""

    is_whole: bool
    end: int
    registers: RegisterState | None
    """None: they are lost."""


def damaged(random: Random, record: bytes) -> bytes:
    """With one bit flipped, all zeros, or gone."""
    chance = random.random()
    if chance < 0.5:
        place = random.randrange(8 * min(len(record), FLIPPED_BYTES))
        return record[: place // 8] + bytes((record[place // 8] ^ 1 << place % 8,)) + record[place // 8 + 1 :]
    return bytes(len(record)) if chance < 0.75 else b""


def repaired(history: History, known: RegisterState, *, is_tail: bool) -> Repaired:
    random, records = history.random, [*history.records]
    count = random.randrange(len(records))
    at = random.randrange(count, len(records))
    records[at] = damaged(random, records[at])
    sound = records[:count]
    plan = replay(decode(each) for each in sound)
    is_first = any(isinstance(found := decode(each), Proposal) and not found.begin for each in sound)
    is_based = is_first or any(each[0] == CHECKPOINT for each in sound)
    claims = claims_of(records[count:] if is_based else records, is_complete=not is_tail, is_tail=is_tail)
    is_whole = repair(history.disk(), "spool", plan, Witnesses(claims, known, is_based=is_based))
    registers = plan.registers
    if registers is not None and registers.version < known.version:
        registers = known  # As the opening takes the newer ones.
    return Repaired(is_whole, plan.end, registers)


@settings(max_examples=600)
@given(st.integers(0, 1 << 32), st.booleans())
def test_what_is_repaired_has_the_registers_behind_it_or_none(seed: int, is_tail: bool) -> None:
    """A journal that is not whole says so, and one that ends below a register's offset, too (journals.15)."""
    history = History(Random(seed))
    states = [*history.behind.values()]
    known = states[-1] if history.random.random() < 0.5 else history.random.choice(states)
    acknowledged = max(end for end, each in history.behind.items() if each.version <= known.version)

    found = repaired(history, known, is_tail=is_tail)
    assert found.end in history.behind, "appends are whole"
    if not is_tail and not found.is_whole:
        return
    assert is_tail or found.end >= acknowledged
    if known.at <= found.end:
        assert found.registers in (None, history.behind[found.end])
    assert not is_tail or found.registers is not None, "a torn batch needs no operator"
