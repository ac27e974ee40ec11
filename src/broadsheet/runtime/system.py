"""The production ports, gathered: the real clocks, files, sockets and entropy behind one node."""

import asyncio
import errno
import resource
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from broadsheet.base.checksum import crc32c
from broadsheet.errors import ConfigError
from broadsheet.ports import ObjectStore
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.entropy import Entropy
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.objects import LocalObjects, local_root
from broadsheet.runtime.role import Ports, StoreNotes
from broadsheet.runtime.scope import Crash
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.time import LoopTimers, SystemTime

OWN_STORE: Final = "fragments"
"""Where a node keeps objects that no URL sends elsewhere: below its data directory."""

MARKS: Final = "stores"
"""Where a node notes which stores it has opened: an empty file for each, below its data directory."""

DEFAULT: Final = "default"
"""The file beside these with the URL of the node's default store, as its settings name it, and a checksum."""


def system_ports(disk: LocalDisk, *, crash: Crash) -> Ports:
    """The ports of a process whose data directory is `disk`.

    Call it on the loop that the node will run on.
    """
    open_files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    stores = LocalStores(disk.tree.root / OWN_STORE, disk.tree.syncs)
    return Ports(
        time=SystemTime(),
        timers=LoopTimers(asyncio.get_running_loop()),
        disk=disk,
        network=TCPNetwork(open_files_max=open_files_max),
        objects=stores,
        random=Entropy(),
        crash=crash,
        open_files_max=open_files_max,
        store_notes=stores,
    )


class LocalStores(StoreNotes):
    """Object stores by URL; those of one directory are one store."""

    def __init__(self, own: Path, syncs: Syncs) -> None:
        """Make object stores on demand.

        Args:
            own: the directory of the node's own store, whose URL is empty. Beside it is noted which stores
                there are: one that is missing at a later start is down, and is not made anew.
            syncs: what the process knows of failed syncs.
        """
        self._own, self._syncs = own, syncs
        self._stores: dict[Path, LocalObjects] = {}

    def __call__(self, url: str) -> ObjectStore:
        """The object store of a `file:///directory/` URL, or the node's own where it is empty.

        Raises:
            ConfigError: the URL is of another kind; its adapter is not part of this release.
        """
        root = self._root(url)
        if root not in self._stores:
            mark = mark_of(root, self._own.parent)
            self._stores[root] = LocalObjects(root, syncs=self._syncs, mark=mark)
        return self._stores[root]

    def is_known(self, url: str) -> bool:
        """See `StoreNotes`; raises as `__call__`."""
        return mark_of(self._root(url), self._own.parent).exists()

    def are_one(self, url: str, other: str) -> bool:
        """See `StoreNotes`; a URL that this release cannot reach is another store."""
        if url == other:
            return True
        with suppress(ConfigError):
            return self._root(url) == self._root(other)
        return False

    def default(self) -> str | None:
        """See `StoreNotes`."""
        return default_of(self._own.parent)

    def keep_default(self, url: str) -> None:
        """See `StoreNotes`.

        Raises:
            OSError: the data directory takes no file now; what was kept before still is.
        """
        with closing(LocalDisk(self._own.parent / MARKS, syncs=self._syncs, pool_threads=1)) as disk:
            file = disk.open(f"{DEFAULT}.new", create=True)
            try:
                file.truncate(0)
                file.write_at(0, (url.encode(), b" ", _crc(url.encode())))
                file.sync()
            finally:
                file.close()
            disk.rename(f"{DEFAULT}.new", DEFAULT)
            disk.sync_dir("")

    def _root(self, url: str) -> Path:
        return local_root(url) if url else self._own


def default_of(data_dir: Path) -> str | None:
    """The URL of the default store of the node of `data_dir`, as its last start kept it; None if none has.

    Raises:
        ConfigError: what it kept is damaged. Nothing was changed.
    """
    file = data_dir / MARKS / DEFAULT
    try:
        url, _, crc = file.read_bytes().rpartition(b" ")
        if crc != _crc(url):
            raise OSError(errno.EBADMSG, "its checksum does not match")
        return url.decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}. It has the journals.store of the last start: set that setting"
            " as it was then, and remove the file"
        ) from error


def _crc(content: bytes) -> bytes:
    return b"%08x" % crc32c(content)


def mark_of(store: Path, data_dir: Path) -> Path:
    """The file that is there once the node of `data_dir` has opened the store in the directory `store`."""
    return data_dir / MARKS / sha256(bytes(store)).hexdigest()
