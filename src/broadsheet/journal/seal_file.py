"""Seal file: a journal's seal, in a file beside its spools; what it says: `core/seal.py`.

Blocking, for a thread; every function may be cut short by a crash and repeated. Source: ADR 0120.
"""

from typing import Final

from broadsheet.errors import Corrupt
from broadsheet.journal.core.seal import Seal, decode_seal, encode_seal
from broadsheet.ports import Disk
from broadsheet.runtime.failpoints import passed
from broadsheet.wal.segments import read_around

SEAL_NAME: Final = "seal"
SEAL_BYTES_MAX: Final = 16 << 20


def read_seal(disk: Disk, directory: str, *, is_needed: bool = False) -> Seal | None:
    """The seal beside the spools of a journal; None if there is none.

    Args:
        is_needed: the log says that the seal tells of a loss.

    Raises:
        Corrupt: the seal is damaged, of a newer version, or gone although it is needed.
    """
    name = f"{directory}/{SEAL_NAME}"
    if not disk.exists(name):
        if is_needed:
            raise Corrupt(f"seal {name} is gone, which told what the journal lost")
        return None
    file = disk.open(name)
    try:
        return decode_seal(read_around(file, 0, SEAL_BYTES_MAX), name)
    finally:
        file.close()


def write_seal(disk: Disk, directory: str, seal: Seal) -> None:
    """Replace a journal's seal, durably: whole, or not at all."""
    name = f"{directory}/{SEAL_NAME}"
    disk.make_dir(directory)
    file = disk.open(f"{name}.new", create=True)
    try:
        content = encode_seal(seal)
        file.truncate(0)
        file.write_at(0, (content,))
        file.sync()
    finally:
        file.close()
    passed("journal.seal.before_rename")
    disk.rename(f"{name}.new", name)
    disk.sync_dir(directory)
    passed("journal.seal.written")


def remove_seal(disk: Disk, directory: str) -> None:
    """Remove the seal, durably, because the log holds everything that it says."""
    if disk.exists(f"{directory}/{SEAL_NAME}"):
        disk.remove(f"{directory}/{SEAL_NAME}")
        disk.sync_dir(directory)
