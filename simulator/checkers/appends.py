"""Appends: whether what clients saw of journals is one sequence of whole appends, and nothing else.

Offsets are bytes. Contents are self-describing: a header line says who appended, which check the append
made and what it set, so that a journal's bytes alone replay its registers. Reads nothing but the history.
Source: J1, J3-J7, journals.7, journals.11.
"""

from collections.abc import Sequence

import msgspec

from simulator.history import Operation, Outcome
from simulator.workload import Violation


class Wanted(msgspec.Struct, frozen=True):
    """What a client asked to append; its header line is unique in a run."""

    content: bytes
    offset: int | None = None
    check: str | None = None
    """The value that register `v` must have; None: no check. An empty one: it must be absent."""
    sets: str | None = None


class Seen(msgspec.Struct, frozen=True):
    """What a client read: bytes from `offset` on, up to what was the committed end."""

    offset: int
    content: bytes


def content_of(client: str, serial: int, *, check: str | None, sets: str | None, length: int) -> bytes:
    """Content that says what it is; at least its header line."""
    head = f"{client} {serial} {'-' if check is None else check or '.'} {sets or '-'} {length}\n".encode()
    pad = max(0, length - len(head))
    return head + (b"%d " % serial * (pad // 2 + 1))[: max(0, pad - 1)] + (b"\n" if pad else b"")


def content_with(client: str, serial: int, *, check: str | None, sets: str | None, body: bytes) -> bytes:
    """As `content_of`, with a body of the caller's."""
    head = content_of(client, serial, check=check, sets=sets, length=0)
    return head + body


def check_appends(operations: Sequence[Operation]) -> None:
    """Check every journal of a history.

    Raises:
        Violation: says which property, with offsets.
    """
    for journal in dict.fromkeys(each.key for each in operations):
        _Journal(journal, [each for each in operations if each.key == journal]).check()


class _Journal:
    """One journal's operations."""

    def __init__(self, name: str, operations: Sequence[Operation]) -> None:
        self.name, self.operations = name, operations
        self.appends = [each for each in operations if each.name == "append"]
        self.reads = [each for each in operations if each.name == "read" and each.outcome is Outcome.OK]
        self.acked = [each for each in self.appends if each.outcome is Outcome.OK]
        self.content = b""

    def check(self) -> None:
        """All properties, the most basic first."""
        self._one_sequence()
        self._acked_stand_there()
        self._whole_appends_once()
        self._order_of_time()
        self._explicit_offsets()
        self._registers()

    def _one_sequence(self) -> None:
        """J1: every read of an offset ever returns the same byte."""
        whole = [each for each in self.reads if _seen(each).offset == 0]
        self.content = max((_seen(each).content for each in whole), key=len, default=b"")
        for read in self.reads:
            seen = _seen(read)
            known = self.content[seen.offset : seen.offset + len(seen.content)]
            if seen.content[: len(known)] != known:
                at = next(
                    i for i, pair in enumerate(zip(seen.content, known, strict=False)) if pair[0] != pair[1]
                )
                raise Violation(f"J1 {self.name}: two reads disagree about offset {seen.offset + at}")

    def _acked_stand_there(self) -> None:
        """J2: an acknowledged append is read by everybody who asks later; its span is its own."""
        end = 0
        for append in sorted(self.acked, key=lambda each: _span(each)[0]):
            begin, stop = _span(append)
            if begin < end:
                raise Violation(f"J4 {self.name}: two acknowledged appends hold offset {begin}")
            end = stop
            known = self.content[begin:stop]
            if known and known != _wanted(append).content[: len(known)]:
                raise Violation(f"J1 {self.name}: [{begin}, {stop}) was acknowledged with other bytes")
        for read in self.reads:
            seen = _seen(read)
            end = seen.offset + len(seen.content)
            for append in self.acked:
                begin, stop = _span(append)
                if append.returned_at is not None and append.returned_at < read.invoked_at and stop > end:
                    raise Violation(
                        f"J2 {self.name}: [{begin}, {stop}) was acknowledged, and a later read ended at {end}"
                    )

    def _whole_appends_once(self) -> None:
        """J3, J5, J6: the journal is a sequence of whole appends, each once, and each met its own check."""
        by_head = {_wanted(each).content.partition(b"\n")[0]: each for each in self.appends}
        at, register, found = 0, "", dict[bytes, int]()
        while at < len(self.content):
            head = self.content[at:].partition(b"\n")[0]
            append = by_head.get(head)
            if append is None:
                raise Violation(f"J4 {self.name}: nobody appended what stands at {at}: {head[:60]!r}")
            wanted = _wanted(append)
            if self.content[at : at + len(wanted.content)] != wanted.content:
                raise Violation(f"J5 {self.name}: an append stands at {at} in part")
            if head in found:
                raise Violation(f"J5 {self.name}: an append stands at {found[head]} and at {at}")
            if append.outcome is Outcome.REJECTED:
                raise Violation(f"J3 {self.name}: an append that was refused stands at {at}")
            if wanted.check is not None and wanted.check != register:
                raise Violation(
                    f"J6 {self.name}: at {at} an append checked for {wanted.check!r}, and it was {register!r}"
                )
            if wanted.offset is not None and wanted.offset != at:
                raise Violation(f"J7 {self.name}: an append for offset {wanted.offset} stands at {at}")
            register = wanted.sets if wanted.sets is not None else register
            found[head] = at
            at += len(wanted.content)

    def _order_of_time(self) -> None:
        """An append that was acknowledged before another began stands before it."""
        by_return = sorted(self.acked, key=lambda each: each.returned_at or 0)
        by_begin = sorted(self.acked, key=lambda each: each.invoked_at)
        highest, at = -1, 0
        for append in by_begin:
            while at < len(by_return) and (by_return[at].returned_at or 0) < append.invoked_at:
                highest = max(highest, _span(by_return[at])[0])
                at += 1
            if _span(append)[0] < highest:
                raise Violation(
                    f"J4 {self.name}: [{_span(append)[0]}, ...) began after [{highest}, ...) was acknowledged"
                )

    def _registers(self) -> None:
        """J6: registers that are shown are those behind all that was acknowledged before, or later ones."""
        asked = [each for each in self.operations if each.name == "registers" and each.outcome is Outcome.OK]
        setters = [each for each in self.appends if _wanted(each).sets is not None]
        at = {_wanted(each).sets: self.content.find(_wanted(each).content) for each in setters}
        for ask in asked:
            before = [
                _span(each)[0]
                for each in setters
                if each.outcome is Outcome.OK and (each.returned_at or 0) < ask.invoked_at
            ]
            shown = at.get(str(ask.result), -1) if ask.result else -1
            if ask.result and shown < 0:
                raise Violation(f"J6 {self.name}: {ask.result!r} is shown, and nothing committed sets it")
            if before and shown < max(before):
                raise Violation(
                    f"J6 {self.name}: {ask.result!r} is shown, set at {shown}; one set at {max(before)} "
                    "had been acknowledged"
                )

    def _explicit_offsets(self) -> None:
        """J7: two successful appends never carry the same expected offset."""
        taken: dict[int, Operation] = {}
        for append in self.acked:
            offset = _wanted(append).offset
            if offset is None:
                continue
            if offset in taken:
                raise Violation(f"J7 {self.name}: two appends were acknowledged at expected offset {offset}")
            if _span(append)[0] != offset:
                raise Violation(
                    f"J7 {self.name}: an append for {offset} was acknowledged at {_span(append)[0]}"
                )
            taken[offset] = append


def _wanted(operation: Operation) -> Wanted:
    assert isinstance(operation.argument, Wanted)
    return operation.argument


def _seen(operation: Operation) -> Seen:
    assert isinstance(operation.result, Seen)
    return operation.result


def _span(operation: Operation) -> tuple[int, int]:
    assert isinstance(operation.result, tuple)
    return operation.result
