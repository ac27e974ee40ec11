"""Node checks: those checks of `broadsheet doctor` that look at each node of a data directory by itself.

They read its files and its settings; a node that runs is asked for `/readyz`, which needs no token.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from broadsheet import __version__
from broadsheet.base.names import PARTIAL_SEGMENT
from broadsheet.cli.findings import Check, Finding, Verdict
from broadsheet.cli.node_faults import faults_of_nodes, settings_of_node
from broadsheet.cli.readyz import asked, reasons
from broadsheet.cli.running import FILE, Running, is_running
from broadsheet.doors.readiness import ReadinessReply
from broadsheet.errors import ConfigError, Corrupt
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.disk_space import fullness
from broadsheet.runtime.data_dir import check_format, node_of
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.objects import local_root
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.system import OWN_STORE, LocalStores, default_of, mark_of
from broadsheet.wal.format import RowFlag
from broadsheet.wal.inspection import inspected
from broadsheet.wal.opening import refuse_foreign

CLOCK_SECONDS_MAX: Final = 60
"""How far the time of a file may lie ahead of the clock."""
INODES_MIN: Final = 1_000
ROOM_BYTES_MIN: Final = 64 << 20
FILES_LOOKED_AT: Final = 20_000
"""Of one node. Ten thousand journals have about as many files."""
LOG_BYTES_LOOKED_AT: Final = 1 << 30
"""A longer log is left to the start of its node: to read it takes as long."""


def format_check(root: Path) -> Finding:
    """Each node's directory has a format that this release opens, and is of that node and this user."""
    good = Finding("format", Verdict.GOOD, "this release opens what is there")
    remedy = "do what that says; nothing in the directory was changed"
    return faults_of_nodes(good, root, _format_fault, remedy)


def files_check(root: Path) -> Finding:
    """No log is missing beside the data that only it explains."""
    good = Finding("files", Verdict.GOOD, "no log is missing")
    remedy = "put it back, or restore the whole data directory from a backup: never a part of it"
    return faults_of_nodes(good, root, _missing_log, remedy)


def clock_check(root: Path) -> Finding:
    """The clock is not behind the files that nodes wrote: tokens and flush intervals go by it."""
    good = Finding("clock", Verdict.GOOD, "not behind the files of the nodes")
    remedy = "set the clock, and keep it right (NTP)"
    return faults_of_nodes(good, root, _clock_fault, remedy, verdict=Verdict.WARNING)


def stores_check(root: Path) -> Finding:
    """The fragment stores that settings name can exist, and those that nodes have used are there."""
    good = Finding("stores", Verdict.GOOD, "those that settings name can be used")
    remedy = "mount or mend it, or change the setting; docs/operations/running.md says how a store moves"
    return faults_of_nodes(good, root, _store_fault, remedy)


def room_check(root: Path) -> Finding:
    """The disks of the nodes and of their stores have room: for appends, for files, and for fragments."""
    good = Finding("room", Verdict.GOOD, "the disks of nodes and stores take appends and fragments")
    remedy = "make room, or mount it so that it can be written: a node goes on by itself when there is some"
    return faults_of_nodes(good, root, _room_fault, remedy)


def owners_check(root: Path) -> Finding:
    """Every file of a node belongs to the owner of its directory: one run as root leaves others."""
    good = Finding("owners", Verdict.GOOD, "the files of a node belong to the owner of its directory")
    return faults_of_nodes(good, root, _owner_fault, "run the node as one user; chown -R to that user")


def logs_check(root: Path) -> Finding:
    """The logs of stopped nodes would be opened, and no record in them is damaged."""
    good = Finding("logs", Verdict.GOOD, "no log of a stopped node has a foreign file or a damaged record")
    remedy = "move foreign files away; a start mends damaged records, or says which journals lost some"
    return faults_of_nodes(good, root, _log_fault, remedy)


def ended_check(root: Path) -> Finding:
    """No node was killed: one that ends by itself removes the file in which its process names itself."""
    good = Finding("processes", Verdict.GOOD, "none was killed")
    remedy = "start it: it recovers by itself; look into the system's log for what killed it"
    return faults_of_nodes(good, root, _killed, remedy, verdict=Verdict.WARNING)


def ready_check(root: Path) -> Finding:
    """Every node that runs can serve."""
    good = Finding("ready", Verdict.GOOD, "every node that runs can serve")
    remedy = "do what the reasons say"
    found = faults_of_nodes(good, root, lambda path, _: _troubles(path, is_warning=False), remedy)
    if found.verdict is not Verdict.GOOD:
        return found
    return faults_of_nodes(
        good, root, lambda path, _: _troubles(path, is_warning=True), remedy, verdict=Verdict.WARNING
    )


def version_check(root: Path) -> Finding:
    """The nodes that run are of the release of this command."""
    good = Finding("version", Verdict.GOOD, f"{__version__}, as are nodes that run")
    remedy = "start the node again with this release, or use the command of the node's"
    return faults_of_nodes(good, root, _other_version, remedy, verdict=Verdict.WARNING)


NODE_CHECKS: Final[tuple[Check, ...]] = (
    format_check,
    files_check,
    clock_check,
    stores_check,
    room_check,
    owners_check,
    logs_check,
    ended_check,
    ready_check,
    version_check,
)


def _format_fault(path: Path, node: str) -> str:
    if (owner := path.stat().st_uid) != os.geteuid():
        return (
            f"{path} belongs to uid {owner}, and this user is {os.geteuid()}: run as its owner, or chown it"
        )
    disk = LocalDisk(path)
    try:
        check_format(disk, str(path), node or node_of(disk, str(path)))
    except ConfigError as error:
        return str(error)
    finally:
        disk.close()
    return ""


def _missing_log(path: Path, _node: str) -> str:
    journals, keyspace = path / "journals" / "log", path / "keyspace" / "log"
    if _is_filled(path / "journals" / "spool") and not _is_filled(journals):
        return f"{journals} is missing, and {path / 'journals' / 'spool'} is not"
    if _is_filled(journals) and not _is_filled(keyspace):
        return f"{keyspace} is missing, and {journals} is not"
    return ""


def _room_fault(path: Path, node: str) -> str:
    journals = settings_of_node(path, node).journals
    disk, places = LocalDisk(path), [path, path / OWN_STORE]
    try:
        full = fullness(journals, disk)
    finally:
        disk.close()
    for url in (journals.store, *journals.stores):
        with suppress(ConfigError):  # `stores_check` says so.
            places += [local_root(url)] if url else []
    wants = [(place, _want_of(place)) for place in dict.fromkeys(places) if place.is_dir()]
    faults = [f"{place}: {want}" for place, want in wants if want]
    return "; ".join([*([f"{path}: appends are refused: {full}"] if full else []), *faults])


def _want_of(place: Path) -> str:
    """What a directory's file system lacks; empty if nothing."""
    found = os.statvfs(place)
    if found.f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only"
    if found.f_files and found.f_favail < INODES_MIN:
        return f"its file system has {found.f_favail} inodes left of {found.f_files}: each fragment takes one"
    if found.f_bavail * found.f_frsize < ROOM_BYTES_MIN:
        return f"its file system has {found.f_bavail * found.f_frsize >> 20} MiB left, less than a fragment"
    return ""


def _owner_fault(path: Path, _node: str) -> str:
    owner = path.stat().st_uid
    for count, file in enumerate(path.rglob("*")):
        if count >= FILES_LOOKED_AT:
            break
        with suppress(FileNotFoundError):  # A node that runs removes some.
            if (uid := file.lstat().st_uid) != owner:
                return f"{file} belongs to uid {uid}, and {path} to {owner}"
    return ""


def _log_fault(path: Path, _node: str) -> str:
    if is_running(path):
        return ""  # It looks at its logs itself, and `/readyz` says what it found.
    disk, faults = LocalDisk(path), []
    try:
        refuse_foreign("keyspace/log", disk.list("keyspace/log"))  # `keyspace_check` reads its records.
        for role in ("journals", "metastore"):
            refuse_foreign(f"{role}/log", disk.list(f"{role}/log"))
            size = sum(file.stat().st_size for file in path.glob(f"{role}/log/*"))
            if 0 < size <= LOG_BYTES_LOOKED_AT:
                with inspected(disk, f"{role}/log") as log:
                    verdicts = [log.verdict(stream) for stream in log.streams()]
                bad = sum(each is not None and bool(each.flags & RowFlag.QUARANTINED) for each in verdicts)
                if bad:
                    faults.append(f"{path / role / 'log'}: {bad} of its streams have damaged records")
    except (ConfigError, Corrupt) as error:
        faults.append(f"{path}: {error}")
    finally:
        disk.close()
    return "; ".join(faults)


def _is_filled(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _clock_fault(path: Path, _node: str) -> str:
    newest = max((file.stat().st_mtime for file in (*path.iterdir(), *path.glob("*/log/*"))), default=0.0)
    ahead = newest - time.time()
    return f"a file below {path} is {ahead:.0f} s ahead of the clock" if ahead > CLOCK_SECONDS_MAX else ""


def _store_fault(path: Path, node: str) -> str:
    journals = settings_of_node(path, node).journals
    if fault := _default_fault(path, journals):
        return fault
    for url in dict.fromkeys(each for each in (journals.store, *journals.stores) if each):
        try:
            store = local_root(url)
        except ConfigError as error:
            return str(error)
        if not store.is_dir():
            above = next(each for each in store.parents if each.exists())
            if not above.is_dir() or not os.access(above, os.W_OK):
                return f"store {url}: {above} is no directory in which this user may make one"
        elif not os.access(store, os.R_OK | os.W_OK | os.X_OK):
            return f"store {url}: this user may not write there"
        if mark_of(store, path).exists() and not (store / PARTIAL_SEGMENT).is_dir():
            return f"store {url}: its directory was removed, or is not mounted"
    return ""


def _default_fault(path: Path, journals: JournalsConfig) -> str:
    try:
        kept, stores = default_of(path), LocalStores(path.absolute() / OWN_STORE, Syncs())
    except ConfigError as error:
        return str(error)
    if kept is None or any(stores.are_one(kept, url) for url in (journals.store, *journals.stores_before)):
        return ""
    return (
        f"journals.store is {journals.store!r}, and was {kept!r} when the node last ran: journals that name"
        " no store have their fragments there, and the node does not start"
    )


def _killed(path: Path, _node: str) -> str:
    if is_running(path) or not (path / FILE).exists():
        return ""
    return f"the process that {path / FILE} names was killed, or the machine went down"


def _asked(path: Path) -> ReadinessReply | None:
    """What the running node of `path` says; None if none runs, or it is not up yet.

    Raises:
        OSError: it does not answer.
    """
    running = Running.read(path)
    if running is None or "http" not in running.addresses:
        return None
    try:
        return asked(running.addresses["http"])
    except ConnectionError as error:
        raise OSError(
            f"node {running.node} {error}; its process {running.pid} is there, and may be stopped or stuck:"
            " read its log, and end it if it stays so"
        ) from error
    except OSError as error:
        raise OSError(f"node {running.node} {error}") from error


def _troubles(path: Path, *, is_warning: bool) -> str:
    try:
        found = _asked(path)
    except OSError as error:
        return "" if is_warning else str(error)
    if found is None:
        return ""
    said = "; ".join(reasons(found, is_warning=is_warning))
    return f"node {found.node}: {said}" if said else ""


def _other_version(path: Path, _node: str) -> str:
    try:
        found = _asked(path)
    except OSError:
        return ""  # `ready_check` says so.
    if found is None or found.version == __version__:
        return ""
    return f"node {found.node} runs {found.version}, and this command is {__version__}"
