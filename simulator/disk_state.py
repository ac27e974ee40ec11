"""Disk state: what a simulated disk holds durably, what only its page cache holds, what a power cut leaves.

Positions and lengths are bytes; a sector has 512. An inode has durable bytes, a view (the page cache), and
the ordered changes that the view has and the medium has not. Directory changes wait for `sync_dir` in the
same way.
    change: DIRTY --sync--> DURABLE; --failed sync--> LOST (the view keeps showing it until reboot); --power
    cut--> any subset of its sectors, of truncations and of directory changes.
A `tape`, where one is set, records every change for `crashstates`. No time passes here; `disk.py` has the
ports. Source: Rebello et al., ATC 2020 (failed fsync marks pages clean); ALICE, OSDI 2014.
"""

import errno
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from simulator.entropy import Draws
from simulator.health import Health

SECTOR: Final = 512


class Write(msgspec.Struct, frozen=True):
    """Bytes put at a position."""

    at: int
    content: bytes


class Resize(msgspec.Struct, frozen=True):
    """The length was set; what is new reads as zeros."""

    length: int


Change = Write | Resize


class Inode:
    """One file's contents, whatever its name."""

    __slots__ = ("dirty", "durable", "number", "sequence", "view")

    def __init__(self, number: int, durable: bytes = b"") -> None:
        self.number = number
        self.durable, self.view = bytearray(durable), bytearray(durable)
        self.dirty: list[tuple[int, Change]] = []
        self.sequence = 0

    def change(self, change: Change) -> None:
        """Change the view; the medium has it after a sync."""
        apply(self.view, change)
        self.sequence += 1
        self.dirty.append((self.sequence, change))


class Move(msgspec.Struct):
    """A directory change: `inode` gets `new` (None: removed) and loses `old` (None: created)."""

    old: str | None
    new: str | None
    inode: Inode
    waits_for: list[str]
    """Directories that must still be synced."""


def apply(content: bytearray, change: Change) -> None:
    """Make one change to `content`."""
    if isinstance(change, Resize):
        if change.length <= len(content):
            del content[change.length :]
        else:
            content.extend(bytes(change.length - len(content)))
        return
    if len(content) < change.at:
        content.extend(bytes(change.at - len(content)))
    content[change.at : change.at + len(change.content)] = change.content


def sectors(change: Change) -> list[Change]:
    """The parts of a change that a power cut keeps or loses one by one."""
    if isinstance(change, Resize) or not change.content:
        return [change]
    cuts = [change.at, *range((change.at // SECTOR + 1) * SECTOR, change.at + len(change.content), SECTOR)]
    ends = [*cuts[1:], change.at + len(change.content)]
    return [
        Write(begin, change.content[begin - change.at : end - change.at])
        for begin, end in zip(cuts, ends, strict=True)
    ]


def parent(name: str) -> str:
    """The directory of a name; the root is the empty name."""
    return name.rpartition("/")[0]


class Tape(msgspec.Struct):
    """Everything that was done to a disk, in order."""

    steps: list[tuple[str, object]] = []

    def mark(self, what: object) -> None:
        """Remember that `what` was promised at this point (an acknowledgement, say)."""
        self.steps.append(("mark", what))


class DiskState:
    """Files and directories of one disk, across reboots."""

    def __init__(self, draws: Draws | None = None, *, quota_bytes: int = 1 << 40) -> None:
        self.draws = draws or Draws(0, "medium")
        self.health = Health()
        self.quota_bytes = quota_bytes
        self.tape: Tape | None = None
        self.note: Callable[..., None] = lambda *_: None
        self.incarnation = 0
        self.locks: dict[str, object] = {}
        self._inode_count = 0
        self._format()

    def _format(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: dict[str, None] = {"": None}
        self.durable_files: dict[str, Inode] = {}
        self.moves: list[Move] = []

    # -- what processes do

    def create(self, name: str) -> Inode:
        """A new, empty file; it survives a power cut after `sync_dir`."""
        inode = Inode(self._inode_count)
        self._inode_count += 1
        self._record("create", (name, inode.number))
        self.files[name] = inode
        self.moves.append(Move(None, name, inode, [parent(name)]))
        return inode

    def remove(self, name: str) -> None:
        """Take a name away."""
        self._record("remove", name)
        self.moves.append(Move(name, None, self.files.pop(name), [parent(name)]))

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it."""
        self._record("rename", (old, new))
        inode = self.files[new] = self.files.pop(old)
        self.moves.append(Move(old, new, inode, list(dict.fromkeys((parent(old), parent(new))))))

    def make_dir(self, name: str) -> None:
        """Make a directory and its parents, durably."""
        self._record("make_dir", name)
        while name:
            self.directories[name] = None
            name = parent(name)

    def remove_dir(self, name: str) -> None:
        """Take an empty directory away. A power cut may bring it back, empty: crash states always do."""
        del self.directories[name]

    def change(self, inode: Inode, change: Change) -> None:
        """Change a file's view."""
        self._record("change", (inode.number, change))
        inode.change(change)

    def sync(self, inode: Inode, through: int | None = None) -> None:
        """Make changes durable: all, or those up to sequence number `through`.

        Raises:
            OSError: EIO. The changes are lost, the view keeps showing them, and the next sync succeeds.
        """
        end = inode.sequence if through is None else through
        synced = [change for sequence, change in inode.dirty if sequence <= end]
        if self.health.took("sync_errors"):
            inode.dirty = [entry for entry in inode.dirty if entry[0] > end]
            raise OSError(errno.EIO, f"fsync failed, {len(synced)} changes lost")
        if self.health.is_lying:
            return
        self._record("sync", inode.number)
        inode.dirty = [entry for entry in inode.dirty if entry[0] > end]
        for change in self._spoil(synced):
            apply(inode.durable, change)

    def sync_dir(self, directory: str) -> None:
        """Make the directory's changes durable, in order."""
        if self.health.took("sync_errors"):
            raise OSError(errno.EIO, f"fsync of directory {directory!r} failed")
        if self.health.is_lying:
            return
        self._record("sync_dir", directory)
        waiting = []
        for move in self.moves:
            if directory in move.waits_for:
                move.waits_for.remove(directory)
            if move.waits_for:
                waiting.append(move)
            else:
                self._settle(move)
        self.moves = waiting

    def used(self) -> int:
        """Bytes taken by files."""
        return sum(len(inode.view) for inode in self.files.values())

    # -- what happens to the machine

    def power_cut(self) -> None:
        """Keep, lose or tear everything that was not synced; then only the medium counts."""
        draws, moves = self.draws, self.moves
        self.moves = []
        mode = draws.below(4)
        keep = draws.below(len(moves) + 1)
        for index, move in enumerate(moves):
            if mode == 0 or (mode == 1 and index < keep) or (mode == 2 and draws.chance(500_000)):
                self._settle(move)
        seen: dict[int, Inode] = {inode.number: inode for inode in self.files.values()}
        seen.update((inode.number, inode) for inode in self.durable_files.values())
        for inode in seen.values():
            self._tear(inode)
        self.files = dict(self.durable_files)
        self.locks.clear()

    def wipe(self) -> None:
        """The disk is another one, and empty."""
        self._format()
        self.locks.clear()
        self.incarnation += 1

    def evict(self) -> None:
        """Drop clean pages: views show what the medium has, under what is still dirty."""
        for inode in self.files.values():
            inode.view = bytearray(inode.durable)
            for _, change in inode.dirty:
                apply(inode.view, change)

    def flip(self, bits: int) -> bool:
        """Flip bits of durable, non-zero content; what is cached shows it too.

        False where there is nothing.
        """
        full = [
            (name, inode) for name, inode in self.files.items() if len(inode.durable) and any(inode.durable)
        ]
        if not full:
            return False
        for _ in range(bits):
            name, inode = full[self.draws.below(len(full))]
            end = len(inode.durable.rstrip(b"\0"))
            at = self.draws.below(end)
            inode.durable[at] ^= 1 << self.draws.below(8)
            if at < len(inode.view):
                inode.view[at] = inode.durable[at]
            self.note("flip", name, at)
        return True

    def damage(self, inode: Inode, content: bytes) -> None:
        """The medium has other bytes, and so has the cache; `content` is as long as the view.

        The kernel has written the file back before. Otherwise a power cut could bring the right bytes back.
        """
        self._record("sync", inode.number)
        for _, written in inode.dirty:
            apply(inode.durable, written)
        inode.dirty = []
        at = next(n for n, pair in enumerate(zip(inode.view, content, strict=True)) if pair[0] != pair[1])
        last = max(n for n, pair in enumerate(zip(inode.view, content, strict=True)) if pair[0] != pair[1])
        change = Write(at, bytes(content[at : last + 1]))
        self._record("damage", (inode.number, change))
        apply(inode.durable, change)
        apply(inode.view, change)

    def fork(self) -> "DiskState":
        """Another disk in the same state, unsynced changes and all; without locks and tape."""
        inodes: dict[int, Inode] = {}

        def copied(inode: Inode) -> Inode:
            if inode.number not in inodes:
                mine = inodes[inode.number] = Inode(inode.number, bytes(inode.durable))
                mine.view, mine.dirty, mine.sequence = inode.view[:], inode.dirty[:], inode.sequence
            return inodes[inode.number]

        other = DiskState(quota_bytes=self.quota_bytes)
        other._inode_count = self._inode_count
        other.directories = dict(self.directories)
        other.files = {name: copied(inode) for name, inode in self.files.items()}
        other.durable_files = {name: copied(inode) for name, inode in self.durable_files.items()}
        other.moves = [Move(m.old, m.new, copied(m.inode), m.waits_for[:]) for m in self.moves]
        return other

    def image(self) -> dict[str, bytes]:
        """What the medium has under each durable name."""
        return {name: bytes(inode.durable) for name, inode in sorted(self.durable_files.items())}

    @classmethod
    def of(cls, image: dict[str, bytes], directories: Sequence[str] = ()) -> "DiskState":
        """A disk_state that has `image` and nothing unsynced."""
        disk_state = cls()
        for name, content in image.items():
            inode = Inode(disk_state._inode_count, content)
            disk_state._inode_count += 1
            disk_state.files[name] = disk_state.durable_files[name] = inode
            disk_state.make_dir(parent(name))
        for name in directories:
            disk_state.make_dir(name)
        return disk_state

    # --

    def _record(self, step: str, what: object) -> None:
        if self.tape is not None:
            self.tape.steps.append((step, what))

    def _settle(self, move: Move) -> None:
        files = self.durable_files
        if move.old is not None and files.get(move.old) is move.inode:
            del files[move.old]
        if move.new is not None:
            files[move.new] = move.inode

    def _tear(self, inode: Inode) -> None:
        """Keep whole, tear or lose each unsynced change; later ones may survive earlier ones."""
        draws = self.draws
        for _, change in inode.dirty:
            fate = draws.below(10)
            if fate < 4:
                apply(inode.durable, change)
            elif fate < 7:
                for part in sectors(change):
                    if draws.chance(500_000):
                        apply(inode.durable, part)
        inode.dirty.clear()
        inode.view = bytearray(inode.durable)

    def _spoil(self, synced: list[Change]) -> list[Change]:
        """What the medium really writes of `synced`: a waiting fault loses or moves one sector."""
        health = self.health
        if not (health.stale_sectors or health.misdirected) or not any(isinstance(c, Write) for c in synced):
            return synced
        parts = [part for change in synced for part in sectors(change)]
        chosen = self.draws.below(len(parts))
        victim = parts.pop(chosen)
        if not isinstance(victim, Write):
            return synced
        if health.took("stale_sectors"):
            self.note("stale", victim.at)
        elif health.took("misdirected"):
            elsewhere = max(
                0, victim.at + SECTOR * (1 + self.draws.below(8)) * (-1 if self.draws.below(2) else 1)
            )
            parts.insert(chosen, Write(elsewhere, victim.content))
            self.note("misdirected", victim.at, elsewhere)
        return parts
