"""Journal model: decides which contents of journals are right after a restart.

It records each append, and the answer that its client got. Offsets are bytes. No two appends have equal
content, so the bytes of a journal tell which appends it holds. After a restart a journal must hold whole
appends in a row, each at most once: every acknowledged append at its offset, no refused one, and any of the
unknown ones. Each must have met its condition. The registers must be those after these appends, and a client
that asks by its attempt id must get the same answer. The model does not know logs, spools and fragments.
Source: J1-J7, journals.21.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from broadsheet.base.types import JournalName
from broadsheet.journal.core.attempts import KEPT, Attempts
from broadsheet.journal.core.registers import Condition

HEAD_BYTES: Final = 9
"""Of each content: its number, so that it can be found again."""


class Append(msgspec.Struct):
    """An append as it was asked for."""

    number: int
    journal: JournalName
    content: bytes
    condition: Condition | None = None
    is_left: bool = False
    """Its client left in the middle: nothing of it may ever be shown."""

    @property
    def attempt(self) -> bytes:
        """Whose it is; empty where nobody will ask."""
        return self.condition.attempt if self.condition is not None else b""


class Standing(NamedTuple):
    """An append, and where it stands."""

    append: Append
    begin: int

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.begin + len(self.append.content)


class Promised:
    """What clients were told, up to some moment."""

    def __init__(self, marks: Iterable[object]) -> None:
        self.acknowledged: dict[int, int] = {}
        """Where each append begins that was acknowledged, or read."""
        self.shown: dict[int, None] = {}
        """Those of them that a restarted node has shown."""
        self.refused: dict[int, None] = {}
        self.made: dict[JournalName, None] = {}
        self.stored: dict[str, bytes] = {}
        self.accepted: dict[JournalName, int] = {}
        """Journals whose loss an operator has accepted, or was about to, and where they go on."""
        for mark in marks:
            match mark:
                case ("acknowledged", int(number), int(begin)):
                    self.acknowledged[number] = begin
                case ("shown", int(number), int(begin)):
                    self.acknowledged[number] = begin
                    self.shown[number] = None
                case ("refused", int(number)):
                    self.refused[number] = None
                case ("made", str(name)):
                    self.made[JournalName(name)] = None
                case ("accepted", str(name), int(head)):
                    self.accepted[JournalName(name)] = head
                case ("stored", str(name), bytes(content)):
                    self.stored[name] = content


class JournalModel:
    """Every append that was ever asked for."""

    def __init__(self) -> None:
        self.appends: list[Append] = []

    def note(
        self,
        journal: JournalName,
        body: bytes,
        condition: Condition | None = None,
        *,
        is_left: bool = False,
    ) -> Append:
        """An append is about to be made; its content is its number, then `body`."""
        number = len(self.appends)
        content = b"%08x " % number + body
        append = Append(number, journal, content, condition, is_left=is_left)
        self.appends.append(append)
        return append

    def parse(self, journal: JournalName, content: bytes) -> list[Standing] | str:
        """The appends that stand in a journal's bytes; or what is wrong with those."""
        found: list[Standing] = []
        seen: dict[int, int] = {}
        at = 0
        while at < len(content):
            try:
                append = self.appends[int(content[at : at + HEAD_BYTES], 16)]
            except (ValueError, IndexError):
                return f"J4: nobody appended what stands at {at}: {content[at : at + 40]!r}"
            end = at + len(append.content)
            if append.journal != journal or content[at:end] != append.content:
                return f"J5: append {append.number} of {append.journal} stands at {at} in part, or elsewhere"
            if append.number in seen:
                return f"J5: append {append.number} stands at {seen[append.number]} and at {at}"
            seen[append.number] = at
            found.append(Standing(append, at))
            at = end
        return found

    def judge(
        self,
        journal: JournalName,
        found: Sequence[Standing],
        promised: Promised,
        *,
        may_lack: Callable[[Append], bool] = lambda _: False,
    ) -> str | None:
        """What is wrong with the appends that a journal shows; None where nothing is.

        Args:
            may_lack: whether damage may have taken one of the last ones; what was shown already it has not.
        """
        begins = {each.append.number: each.begin for each in found}
        for append in self.appends:
            if append.journal != journal:
                continue
            number, begin = append.number, begins.get(append.number)
            if begin is not None and (append.is_left or number in promised.refused):
                return f"J3: append {number}, which was refused, stands at {begin}"
            told = promised.acknowledged.get(number)
            if told is None or told == begin:
                continue
            if begin is None and number not in promised.shown and may_lack(append):
                continue
            return f"J2: append {number} was acknowledged at {told}, and stands at {begin}"
        return _conditions(found)


def _conditions(found: Sequence[Standing]) -> str | None:
    """Whether each append met its own condition where it stands."""
    registers: dict[str, str] = {}
    for append, begin in found:
        condition = append.condition
        if condition is None:
            continue
        if condition.offset not in (None, begin):
            return f"J7: append {append.number} for offset {condition.offset} stands at {begin}"
        for name, value in (condition.check or {}).items():
            if registers.get(name) != value:
                return f"J6: append {append.number} at {begin} checked for {value!r}: {registers}"
        registers |= condition.union or {}
    return None


def registers_behind(found: Sequence[Standing]) -> dict[str, str]:
    """The registers that the appends have set."""
    registers: dict[str, str] = {}
    for append, _ in found:
        registers |= (append.condition and append.condition.union) or {}
    return registers


def judge_attempts(
    attempts: Attempts, found: Sequence[Standing], asked: Iterable[Append], *, is_whole: bool
) -> str | None:
    """What is wrong with what clients are told of their attempts; None where nothing is.

    Args:
        asked: the appends that were made.
        is_whole: nothing was damaged, so that the newest ones are known.
    """
    begins = {each.append.attempt: each for each in found if each.append.attempt}
    newest = {each.append.attempt: None for each in [*begins.values()][-KEPT:]}
    for append in asked:
        if not append.attempt:
            continue
        told, stands = attempts.find(append.attempt), begins.get(append.attempt)
        if told is not None:
            if stands is None or (told.begin, told.end) != (stands.begin, stands.end):
                return f"C2: the attempt of append {append.number} is told of {told}, and it is at {stands}"
        elif stands is not None and (
            stands.begin >= attempts.known_from or (is_whole and append.attempt in newest)
        ):
            return (
                f"C2: append {append.number} stands at {stands.begin}, and who asks is told that it does not:"
                f" attempts are known from {attempts.known_from}"
            )
    return None
