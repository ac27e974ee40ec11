"""Life model: decides what may become of journals that are made, altered, trimmed, deleted and made again.

It knows what clients asked and were told, and not how a node keeps it: no logs, spools or seals. Every make
of a journal is an incarnation with a number, which its spec carries as a label, and every append is of one.
So a spec tells which incarnation is shown, and a byte tells whose it is. What was promised up to some moment
is a row of marks, which the tape of a disk keeps, so that each crash state has its own.
    incarnation: ASKED --told, or shown--> MADE --its end was asked--> DOOMED --told--> GONE; an unknown make
    or deletion has happened or not, until a start shows which.
The store's objects are marks, too: they are durable at once. Offsets are bytes, times those of the store.
Source: J1-J7, J10, J11, journals.32, control.16; W7.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from broadsheet.base.types import JournalName
from broadsheet.errors import InvalidArgument
from broadsheet.journal.alteration import altered
from broadsheet.journal.core.fragment import Fragment, parse_name
from broadsheet.journal.core.spec import JournalSpec
from broadsheet.journal.messages import SpecChange
from simulator.journalmodel import HEAD_BYTES, JournalModel, Standing

MADE_LABEL: Final = "sim/made"
"""The number of the incarnation, in its spec."""
ENDLESS: Final = 1 << 63
Span = tuple[int, int]
"""A range of bytes or revisions, `[begin, end)`."""


class Kept(NamedTuple):
    """What a retention keeps: for so many nanoseconds, so many bytes; 0: all."""

    age: int
    bytes: int


def kept_of(spec: JournalSpec) -> Kept:
    """The retention of a spec."""
    return Kept(spec.fragment.retention, spec.fragment.retained_bytes)


class Stored(NamedTuple):
    """An object of the store."""

    content: bytes
    at: int
    """When the store got it."""


class Incarnation:
    """One make of a journal, and what was promised of it."""

    def __init__(self, number: int, name: JournalName, spec: JournalSpec) -> None:
        self.number, self.name = number, name
        self.revision = 0
        """Which created it; 0 while it is not known."""
        self.is_made = self.is_doomed = self.is_gone = self.is_orphan = self.is_muddled = False
        """`is_gone`: nothing of it may be shown any more. `is_orphan`: the key space lost its key, and nobody
        has adopted it. `is_muddled`: what the store has of its name is not all of it, since the key space
        lost what told it from another one: nothing is promised of its content."""
        self.deleted: Span | None = None
        """The revisions between which its deletion was answered."""
        self.specs = [spec]
        """Those that it may have: one, unless an alteration is not known."""
        self.puts: list[tuple[int, JournalSpec]] = []
        """Specs that were told, by revision."""
        self.kept = [kept_of(spec)]
        """The retentions that it may act by: the newest that was told, and later ones that are not known."""
        self.before = self.specs, self.kept
        """Both, before the last alteration was asked for."""
        self.trim_asked = self.trimmed = self.began = 0
        """Up to where a trim was asked for; where it began at least, as a trim was told; and at all."""
        self.acknowledged: dict[int, int] = {}
        """Where each append begins that was acknowledged, or read."""
        self.shown: dict[int, None] = {}
        """Those of them that a restarted node has shown."""
        self.refused: dict[int, None] = {}
        self.removed: list[Span] = []
        """What was removed from the store, and might be."""
        self.lost: list[Span] = []
        """What was told as lost, and accepted."""

    @property
    def key(self) -> JournalName:
        """Under which the journals' model knows its appends."""
        return JournalName(f"{self.name}#{self.number}")

    def is_released(self, begin: int, end: int) -> bool:
        """Whether nothing is promised of these bytes any more."""
        return any(a < end and begin < b for a, b in (*self.removed, *self.lost)) or end <= self.began

    def note(self, what: str, *told: Any) -> None:  # noqa: ANN401 - as each mark has it.
        """Take in what happened to it."""
        self._noted[what](self, *told)

    def _made(self, revision: int, spec: JournalSpec) -> None:
        self.is_made, self.revision = True, revision
        if not self.puts:
            self.puts.append((revision, spec))

    def _doomed(self) -> None:
        self.is_doomed = True

    def _spared(self) -> None:
        self.is_doomed = False

    def _deleted(self, begin: int, end: int) -> None:
        self.is_gone, self.deleted = True, (begin, end)

    def _never(self) -> None:
        self.is_gone = True

    def _orphaned(self) -> None:
        self.is_orphan = True

    def _adopted(self, revision: int) -> None:
        self.specs, self.is_made, self.is_orphan = [JournalSpec(self.name)], True, False
        self.puts = [(revision, self.specs[0])]

    def _muddled(self) -> None:
        self.is_muddled = True

    def _altering(self, change: SpecChange) -> None:
        self.before = self.specs, self.kept
        self.specs = _with(self.specs, change)
        self.kept = list(dict.fromkeys([*self.kept, *(_kept_after(each, change) for each in self.kept)]))

    def _altered(self, change: SpecChange, spec: JournalSpec, revision: int) -> None:
        self.specs = [spec]
        self.puts.append((revision, spec))
        if change.retention is not None or change.retained_bytes is not None:
            self.kept = [kept_of(spec)]  # Who says it is shown all of it.
        else:
            self.kept = self.before[1]

    def _unaltered(self) -> None:
        self.specs, self.kept = self.before

    def _shown_as(self, spec: JournalSpec) -> None:
        self.specs = [spec]

    def _keeps(self, spec: JournalSpec) -> None:
        self.kept = [kept_of(spec)]

    def _trimming(self, below: int) -> None:
        self.trim_asked = max(self.trim_asked, below)

    def _trimmed(self, begin: int) -> None:
        self.trimmed, self.began = max(self.trimmed, begin), max(self.began, begin)

    def _begins(self, begin: int) -> None:
        self.began = max(self.began, begin)

    def _lost(self, _head: int, spans: Sequence[Span]) -> None:
        self.lost += spans

    _noted: ClassVar[dict[str, Callable[..., None]]] = {
        "made": _made,
        "doomed": _doomed,
        "spared": _spared,
        "deleted": _deleted,
        "never": _never,
        "orphan": _orphaned,
        "adopted": _adopted,
        "muddled": _muddled,
        "altering": _altering,
        "altered": _altered,
        "unaltered": _unaltered,
        "spec": _shown_as,
        "keeps": _keeps,
        "trimming": _trimming,
        "trimmed": _trimmed,
        "begins": _begins,
        "lost": _lost,
    }


class Account:
    """What was promised, up to some moment."""

    def __init__(self, model: JournalModel, marks: Iterable[object] = ()) -> None:
        self.model = model
        self.marks: list[object] = []
        self.incarnations: dict[int, Incarnation] = {}
        self.stored: dict[str, Stored] = {}
        self.is_map_lost = self.is_map_ever_lost = False
        """The key space has lost records, and that was accepted; `is_map_lost`: orphans may be left."""
        for mark in marks:
            self.note(mark)

    def note(self, mark: object) -> None:
        """Take in what happened."""
        self.marks.append(mark)
        match mark:
            case ("asked", int(number), str(name), JournalSpec() as spec):
                self.incarnations[number] = Incarnation(number, JournalName(name), spec)
            case ("acknowledged" | "shown" as how, int(number), int(begin)):
                it = self.of_append(number)
                it.acknowledged[number] = begin
                if how == "shown":
                    it.shown[number] = None
            case ("refused", int(number)):
                self.of_append(number).refused[number] = None
            case ("stored", str(name), bytes(content), int(at)):
                self.stored[name] = Stored(content, at)
            case ("removed", str(name)):
                self._removed(name)
            case ("gone", str(name)):
                self.stored.pop(name, None)
            case ("map lost", tuple(spans)):
                self._map_lost(spans)
            case ("map kept",):
                self.is_map_lost = False
            case (str(what), int(number), *rest):
                self._note_of(self.incarnations[number], what, rest)

    def _note_of(self, it: Incarnation, what: str, rest: Sequence[object]) -> None:
        it.note(what, *rest)
        match what, rest:
            case "made", _:
                for other in self.of_name(it.name):
                    other.is_gone = other.is_gone or other.number < it.number
            case "spec", [JournalSpec() as spec] if not self.is_map_lost:
                it.note("keeps", spec)
            case "lost", [int(head), tuple(spans)]:
                self._released(it, [*spans, (head, ENDLESS)])
            case _:
                pass

    def _released(self, it: Incarnation, spans: Sequence[Span]) -> None:
        """Nothing is promised of these bytes, some of which others may take."""
        for number, begin in list(it.acknowledged.items()):
            end = begin + len(self.model.appends[number].content)
            if any(a < end and begin < b for a, b in spans):
                del it.acknowledged[number]
                it.shown.pop(number, None)

    def _removed(self, name: str) -> None:
        content = self.stored.pop(name, None)
        fragment = fragment_of(name)
        if content is not None and fragment is not None and (it := self.of_object(name, content)) is not None:
            it.removed.append((fragment.begin, fragment.end))

    def _map_lost(self, spans: Sequence[Span]) -> None:
        """Makes, alterations and deletions of these revisions may be undone."""
        self.is_map_lost = self.is_map_ever_lost = True

        def is_lost(begin: int, end: int) -> bool:
            return any(a < end and begin < b for a, b in spans)

        for it in self.incarnations.values():
            told = sorted(it.puts, key=lambda put: put[0])
            while told and is_lost(told[-1][0], told[-1][0] + 1):
                it.specs.append(told.pop()[1])
            if told:
                it.specs.append(told[-1][1])
            else:
                it.is_made = False
            if it.deleted is not None and is_lost(*it.deleted):
                it.is_gone, it.is_doomed, it.is_muddled, it.deleted = False, True, True, None

    # --- what it is asked

    def of_name(self, name: str) -> list[Incarnation]:
        """All incarnations of a journal, in order."""
        return [it for it in self.incarnations.values() if it.name == name]

    def names(self) -> list[JournalName]:
        """Every name that was ever asked for."""
        return list(dict.fromkeys(it.name for it in self.incarnations.values()))

    def of_append(self, number: int) -> Incarnation:
        """Whose append that is."""
        return self.incarnations[int(self.model.appends[number].journal.rpartition("#")[2])]

    def of_object(self, name: str, stored: Stored) -> Incarnation | None:
        """Whose fragment that is, by its first append; None: it is no fragment."""
        if fragment_of(name) is None:
            return None
        try:
            return self.of_append(int(stored.content[:HEAD_BYTES], 16))
        except (ValueError, IndexError):
            here = self.of_name(name.rpartition("/")[0])
            return next((it for it in reversed(here) if not it.is_gone), None)

    def shown(self, spec: JournalSpec, revision: int) -> Incarnation | None:
        """Which incarnation a spec of the map is."""
        told = spec.labels.get(MADE_LABEL)
        if told is not None:
            return self.incarnations.get(int(told))
        return next((it for it in self.of_name(spec.name) if it.revision == revision), None)

    def must_be(self, name: str) -> Incarnation | None:
        """The incarnation that a start must show under a name; None where it need not show one."""
        made = [it for it in self.of_name(name) if it.is_made and not it.is_gone]
        return made[-1] if made and not made[-1].is_doomed else None

    def may_remove(self, it: Incarnation, span: Span, *, at: int, now: int, end: int) -> bool:
        """Whether bytes may be removed `now` that the store got `at` a time; the journal ends at `end`.

        By the deletion of their journal, by a trim, or by a retention that is set, or may be (journals.32).
        """
        if it.is_doomed or it.is_gone or it.is_muddled or span[1] <= max(it.trim_asked, it.began):
            return True
        return any(
            (kept.age and at + kept.age <= now) or (kept.bytes and span[1] <= end - kept.bytes)
            for kept in it.kept
        )

    def parse(self, it: Incarnation, begin: int, content: bytes, *, is_cut: bool) -> Iterator[Standing | str]:
        """The appends that stand in bytes of an incarnation from `begin` on, or what is wrong with those.

        Args:
            is_cut: what follows was refused, so that the last one may be shown in part.
        """
        at = 0
        while at < len(content):
            here = begin + at
            if is_cut and len(content) - at < HEAD_BYTES:
                return
            try:
                append = self.model.appends[int(content[at : at + HEAD_BYTES], 16)]
            except (ValueError, IndexError):
                yield f"J4: nobody appended what stands at {here}: {content[at : at + 40]!r}"
                return
            there = content[at : at + len(append.content)]
            owner = self.of_append(append.number)
            if owner is not it and not (it.is_muddled or owner.is_muddled):
                yield f"J1: append {append.number} at {here} is of {append.journal}, and {it.key} is shown"
                return
            if not append.content.startswith(there) or (len(there) < len(append.content) and not is_cut):
                yield f"J5: append {append.number} stands at {here} in part, or with other bytes"
                return
            if len(there) == len(append.content):
                yield Standing(append, here)
            at += len(append.content)


def judged(it: Incarnation, found: Sequence[Standing]) -> str | None:
    """What is wrong with the appends that an incarnation shows, but for those that it does not."""
    seen: dict[int, int] = {}
    for append, begin in found:
        number = append.number
        if number in seen:
            return f"J5: append {number} stands at {seen[number]} and at {begin}"
        seen[number] = begin
        if append.is_left or number in it.refused:
            return f"J3: append {number}, which was refused, stands at {begin}"
        told = it.acknowledged.get(number, begin)
        if told != begin:
            return f"J2: append {number} was acknowledged at {told}, and stands at {begin}"
        if append.condition is not None and append.condition.offset not in (None, begin):
            return f"J7: append {number} for offset {append.condition.offset} stands at {begin}"
    return None


def missing(it: Incarnation, found: Sequence[Standing], model: JournalModel) -> list[Standing]:
    """The acknowledged appends that an incarnation does not show, and of which something is promised."""
    begins = {each.append.number: None for each in found}
    gone = [Standing(model.appends[n], at) for n, at in it.acknowledged.items() if n not in begins]
    return sorted((each for each in gone if not it.is_released(each.begin, each.end)), key=_begin)


def _begin(standing: Standing) -> int:
    return standing.begin


def fragment_of(name: str) -> Fragment | None:
    """The fragment that an object of the store is; None: it is none."""
    return parse_name(name.rpartition("/")[2])


def _with(specs: Sequence[JournalSpec], change: SpecChange) -> list[JournalSpec]:
    found = list(specs)
    for spec in specs:
        try:
            found.append(altered(spec, change))
        except InvalidArgument:
            continue
    return found


def _kept_after(kept: Kept, change: SpecChange) -> Kept:
    age = kept.age if change.retention is None else int(change.retention)
    return Kept(age, kept.bytes if change.retained_bytes is None else change.retained_bytes)
