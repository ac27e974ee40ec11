"""Crash states: every disk that a power cut may leave behind at any point of a recorded history.

A recorded `Tape` is replayed; before each sync, and at the end, the changes not yet synced are split into
atoms (a sector, a truncation, a directory change), and every subset of them that survives is one state.
Crashes at other points lose more of the same atoms, so they are among these. Above `atoms_max` atoms not
all subsets are taken but: all prefixes, each atom alone lost, each alone kept, and seeded ones up to the
same number.
    state = what was synced + a subset of what was not, and the marks made before.
It does not do: lying syncs, bit flips (those are faults of `DiskState`). Source: ALICE, OSDI 2014.
"""

from collections.abc import Container, Iterable, Iterator
from typing import Final

import msgspec

from simulator.disk import SimDisk
from simulator.disk_state import Change, DiskState, Resize, Tape, Write, apply, parent, sectors
from simulator.entropy import Draws

ATOMS_MAX: Final = 12

Entry = tuple[str | None, str | None, int]
"""A directory change: old name, new name, inode number."""
Atom = tuple[int, Change] | Entry


class CrashState(msgspec.Struct, frozen=True):
    """One disk after one power cut."""

    position: int
    """How many steps of the tape had been done."""
    marks: tuple[object, ...]
    """What had been promised by then."""
    image: dict[str, bytes]
    directories: tuple[str, ...]

    def disk(self) -> SimDisk:
        """A disk with this content; changing it does not change the state.

        Set `disk_state.tape` to record on it.
        """
        return SimDisk(DiskState.of(self.image, self.directories))


def record(disk: SimDisk) -> Tape:
    """Record what is done to `disk` from now on. It must be empty: the tape is replayed from nothing."""
    assert not disk.state.files, "recording begins on an empty disk"
    return record_on(disk.state)


def record_on(disk_state: DiskState) -> Tape:
    """Record what is done to `disk_state` from now on; what it has must be durable, and stands first."""
    tape = Tape([("make_dir", name) for name in disk_state.directories if name])
    for name, inode in disk_state.files.items():
        tape.steps += [
            ("create", (name, inode.number)),
            ("change", (inode.number, Write(0, bytes(inode.durable)))),
            ("sync", inode.number),
            ("sync_dir", parent(name)),
        ]
    disk_state.tape = tape
    return tape


def crash_states(
    tape: Tape,
    *,
    atoms_max: int = ATOMS_MAX,
    is_distinct: bool = True,
    first: int = 0,
    each_max: int | None = None,
    at: Container[int] | None = None,
) -> Iterator[CrashState]:
    """Every state, or up to 2**atoms_max of each point where there are more.

    Args:
        atoms_max: the bound on atoms of which all subsets are taken.
        is_distinct: yield equal disks with equal marks once.
        first: no state of a crash before so many steps.
        each_max: of each point no more than so many, drawn by its position.
        at: only crashes at these points.
    """
    replay = _Replay()
    seen: dict[tuple[object, ...], None] = {}
    for position in range(len(tape.steps) + 1):
        is_end = position == len(tape.steps)
        is_asked = position >= first and (at is None or position in at)
        if is_asked and (is_end or tape.steps[position][0] in ("sync", "sync_dir")):
            atoms = replay.atoms()
            subsets: Iterable[int] = _subsets(len(atoms), atoms_max, position)
            if each_max is not None:
                subsets = _some(list(subsets), each_max, position)
            for kept in subsets:
                image = replay.image([atom for index, atom in enumerate(atoms) if kept >> index & 1])
                if is_distinct:
                    key = (len(replay.marks), *((name, hash(content)) for name, content in image.items()))
                    if key in seen:
                        continue
                    seen[key] = None
                yield CrashState(position, tuple(replay.marks), image, tuple(replay.directories))
        if not is_end:
            replay.do(*tape.steps[position])


def _subsets(count: int, atoms_max: int, seed: int) -> Iterator[int]:
    """Subsets of `count` atoms as bit masks, each once."""
    if count <= atoms_max:
        yield from range(1 << count)
        return
    everything = (1 << count) - 1
    chosen = dict.fromkeys((1 << index) - 1 for index in range(count + 1))
    for index in range(count):
        chosen[everything ^ (1 << index)] = None
        chosen[1 << index] = None
    draws = Draws("crash states", seed, count)
    for _ in range(1 << atoms_max):
        if len(chosen) >= 1 << atoms_max:
            break
        mask = 0
        for shift in range(0, count, 64):
            mask |= draws.bits() << shift
        chosen[mask & everything] = None
    yield from chosen


def _some(subsets: list[int], count: int, seed: int) -> list[int]:
    """So many of them, drawn."""
    draws = Draws("some crash states", seed, len(subsets))
    while len(subsets) > count:
        del subsets[draws.below(len(subsets))]
    return subsets


class _Replay:
    """The tape up to some point: what is safe, and what is not yet."""

    def __init__(self) -> None:
        self.marks: list[object] = []
        self.directories: dict[str, None] = {"": None}
        self._content: dict[int, bytearray] = {}
        self._safe: dict[int, bytes] = {}
        """`_content` as states share it: copied, and hashed, once for many states."""
        self._dirty: dict[int, list[Change]] = {}
        self._names: dict[str, int] = {}
        self._durable: dict[str, int] = {}
        self._moves: list[tuple[Entry, list[str]]] = []

    def do(self, step: str, what: object) -> None:
        """Replay one step."""
        match step, what:
            case "mark", _:
                self.marks.append(what)
            case "make_dir", str(name):
                while name:
                    self.directories[name] = None
                    name = parent(name)
            case "create", (str(name), int(number)):
                self._content[number], self._dirty[number] = bytearray(), []
                self._names[name] = number
                self._moves.append(((None, name, number), [parent(name)]))
            case "remove", str(name):
                self._moves.append(((name, None, self._names.pop(name)), [parent(name)]))
            case "rename", (str(old), str(new)):
                number = self._names[new] = self._names.pop(old)
                self._moves.append(((old, new, number), list(dict.fromkeys((parent(old), parent(new))))))
            case "change", (int(number), (Write() | Resize()) as change):
                self._dirty[number].append(change)
            case "damage", (int(number), Write() as change):
                self._safe.pop(number, None)
                apply(self._content[number], change)
            case "sync", int(number):
                self._safe.pop(number, None)
                for change in self._dirty[number]:
                    apply(self._content[number], change)
                self._dirty[number] = []
            case "sync_dir", str(directory):
                self._sync_dir(directory)
            case _:
                raise AssertionError(f"a tape has no step {step!r} of {what!r}")

    def atoms(self) -> list[Atom]:
        """What is not yet safe, split as far as a power cut splits it."""
        found: list[Atom] = [entry for entry, _ in self._moves]
        for number, changes in self._dirty.items():
            found.extend((number, part) for change in changes for part in sectors(change))
        return found

    def image(self, kept: list[Atom]) -> dict[str, bytes]:
        """The disk when of what is not safe only `kept` survives."""
        durable, content = dict(self._durable), {}
        for atom in kept:
            if len(atom) == 2:
                number, change = atom
                if number not in content:
                    content[number] = bytearray(self._content[number])
                apply(content[number], change)
            else:
                _settle(durable, atom)
        return {
            name: bytes(content[number]) if number in content else self._unchanged(number)
            for name, number in sorted(durable.items())
        }

    def _unchanged(self, number: int) -> bytes:
        found = self._safe.get(number)
        if found is None:
            found = self._safe[number] = bytes(self._content[number])
        return found

    def _sync_dir(self, directory: str) -> None:
        waiting = []
        for entry, directories in self._moves:
            left = [name for name in directories if name != directory]
            if left:
                waiting.append((entry, left))
            else:
                _settle(self._durable, entry)
        self._moves = waiting


def _settle(names: dict[str, int], entry: Entry) -> None:
    old, new, number = entry
    if old is not None and names.get(old) == number:
        del names[old]
    if new is not None:
        names[new] = number
