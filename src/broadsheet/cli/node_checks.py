"""Node checks: those checks of `broadsheet doctor` that look at each node of a data directory by itself.

They read its files and its settings; a node that runs is asked for `/readyz`, which needs no token.
"""

import base64
import binascii
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import msgspec

from broadsheet import __version__
from broadsheet.access.tokens import parse_keys
from broadsheet.base.names import PARTIAL_SEGMENT
from broadsheet.cli.calling import TOKEN_VARIABLE
from broadsheet.cli.cluster import CLUSTER_FILE, Cluster, data_dirs
from broadsheet.cli.findings import Check, Finding, Verdict
from broadsheet.cli.running import FILE, Running, is_running
from broadsheet.config import load
from broadsheet.doors.readiness import ReadinessReply
from broadsheet.errors import ConfigError
from broadsheet.journal.config import JournalsConfig
from broadsheet.node import Settings
from broadsheet.runtime.data_dir import check_format, node_of
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.objects import local_root
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.system import OWN_STORE, LocalStores, default_of, mark_of

CLOCK_SECONDS_MAX: Final = 60
"""How far the time of a file may lie ahead of the clock."""
READY_SECONDS_MAX: Final = 5
TOKEN_BYTES_MAX: Final = 64 << 10


class _Claims(msgspec.Struct):
    exp: float | None = None


def format_check(root: Path) -> Finding:
    """Each node's directory has a format that this release opens, and is of that node and this user."""
    good = Finding("format", Verdict.GOOD, "this release opens what is there")
    return _first(good, root, _format_fault, "do what that says; nothing in the directory was changed")


def files_check(root: Path) -> Finding:
    """No log is missing beside the data that only it explains."""
    good = Finding("files", Verdict.GOOD, "no log is missing")
    remedy = "put it back, or restore the whole data directory from a backup: never a part of it"
    return _first(good, root, _missing_log, remedy)


def clock_check(root: Path) -> Finding:
    """The clock is not behind the files that nodes wrote: tokens and flush intervals go by it."""
    good = Finding("clock", Verdict.GOOD, "not behind the files of the nodes")
    return _first(good, root, _clock_fault, "set the clock, and keep it right (NTP)", verdict=Verdict.WARNING)


def secrets_check(root: Path) -> Finding:
    """The files of keys and tokens that settings name can be read and used."""
    good = Finding("keys", Verdict.GOOD, "those that settings name can be used")
    return _first(
        good, root, _secret_fault, "put the file there (docs/operations/tokens.md), or change the setting"
    )


def stores_check(root: Path) -> Finding:
    """The fragment stores that settings name can exist, and those that nodes have used are there."""
    good = Finding("stores", Verdict.GOOD, "those that settings name can be used")
    remedy = "mount or mend it, or change the setting; docs/operations/running.md says how a store moves"
    return _first(good, root, _store_fault, remedy)


def ended_check(root: Path) -> Finding:
    """No node was killed: one that ends by itself removes the file in which its process names itself."""
    good = Finding("processes", Verdict.GOOD, "none was killed")
    remedy = "start it: it recovers by itself; look into the system's log for what killed it"
    return _first(good, root, _killed, remedy, verdict=Verdict.WARNING)


def ready_check(root: Path) -> Finding:
    """Every node that runs can serve."""
    good = Finding("ready", Verdict.GOOD, "every node that runs can serve")
    found = _first(good, root, lambda path, _: _troubles(path, is_warning=False), "do what the reasons say")
    if found.verdict is not Verdict.GOOD:
        return found
    return _first(
        good,
        root,
        lambda path, _: _troubles(path, is_warning=True),
        "do what the reasons say",
        verdict=Verdict.WARNING,
    )


def version_check(root: Path) -> Finding:
    """The nodes that run are of the release of this command."""
    good = Finding("version", Verdict.GOOD, f"{__version__}, as are nodes that run")
    remedy = "start the node again with this release, or use the command of the node's"
    return _first(good, root, _other_version, remedy, verdict=Verdict.WARNING)


def token_check(_root: Path) -> Finding:
    """The token in the environment, if there is one, has the form of a token and has not expired."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        return Finding("token", Verdict.GOOD, f"{TOKEN_VARIABLE} is not set")
    remedy = f"mint another one (`broadsheet token mint`), or unset {TOKEN_VARIABLE}"
    try:
        _, body, _ = token[:TOKEN_BYTES_MAX].split(".")
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Claims)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        return Finding("token", Verdict.BAD, f"what {TOKEN_VARIABLE} holds is no token", remedy)
    if claims.exp is not None and claims.exp <= time.time():
        ago = time.time() - claims.exp
        return Finding("token", Verdict.BAD, f"{TOKEN_VARIABLE} expired {ago:.0f} s ago", remedy)
    return Finding("token", Verdict.GOOD, "it has the form of a token, and has not expired")


NODE_CHECKS: Final[tuple[Check, ...]] = (
    format_check,
    files_check,
    clock_check,
    secrets_check,
    stores_check,
    ended_check,
    ready_check,
    version_check,
    token_check,
)


def _first(
    good: Finding,
    root: Path,
    fault: Callable[[Path, str], str],
    remedy: str,
    *,
    verdict: Verdict = Verdict.BAD,
) -> Finding:
    """`good`, or a finding with the faults that `fault` tells of each node's directory and name."""
    try:
        faults = [found for path, node in _nodes(root) if (found := fault(path, node))]
    except (ConfigError, OSError) as error:
        return Finding(good.check, Verdict.WARNING, f"unknown: {error}", "mend the directory first")
    return Finding(good.check, verdict, "; ".join(faults), remedy) if faults else good


def _nodes(root: Path) -> Iterator[tuple[Path, str]]:
    """The directory of each node below `root` that was started once, and its name, empty where not known."""
    if (root / CLUSTER_FILE).exists():
        cluster = Cluster.open(root)
        yield from ((path, node) for node in cluster.nodes if (path := cluster.data_dir(node)).is_dir())
    else:
        yield from ((path, "") for path in data_dirs(root))


def _settings(path: Path, node: str) -> Settings:
    """The settings of a node: of the file that `up` made, or else of the environment."""
    if node:
        return load(Settings, path=path.parent / f"{node}.toml", environment={}, flags={}).config
    return load(Settings, path=None, environment=os.environ, flags={}).config


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


def _is_filled(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _clock_fault(path: Path, _node: str) -> str:
    newest = max((file.stat().st_mtime for file in (*path.iterdir(), *path.glob("*/log/*"))), default=0.0)
    ahead = newest - time.time()
    return f"a file below {path} is {ahead:.0f} s ahead of the clock" if ahead > CLOCK_SECONDS_MAX else ""


def _secret_fault(path: Path, node: str) -> str:
    settings = _settings(path, node)
    faults = []
    for name, place in (
        ("native.keys_file", settings.native.keys_file),
        ("metastore.token_file", settings.metastore.token_file),
    ):
        if not place:
            continue
        try:
            text = Path(place).read_text(encoding="ascii")
            if name == "native.keys_file" and not parse_keys(text):
                faults.append(f"{name} {place} holds no key")
            elif not text.strip():
                faults.append(f"{name} {place} is empty")
            elif Path(place).stat().st_mode & 0o077:
                faults.append(f"{name} {place} can be read by others: chmod 600 {place}")
        except (OSError, ValueError, ConfigError) as error:
            faults.append(f"{name} {place} cannot be used: {error}")
    return "; ".join(faults)


def _store_fault(path: Path, node: str) -> str:
    journals = _settings(path, node).journals
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
    kept, stores = default_of(path), LocalStores(path.absolute() / OWN_STORE, Syncs())
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
    url = f"http://{running.addresses['http']}/readyz?format=json"
    try:
        with urlopen(url, timeout=READY_SECONDS_MAX) as answer:
            body = answer.read()
    except HTTPError as refused:
        with refused:
            body = refused.read()
    except URLError as error:
        raise OSError(f"node {running.node} does not answer at {url}: {error.reason}") from error
    try:
        return msgspec.json.decode(body, type=ReadinessReply)
    except msgspec.DecodeError as error:
        raise OSError(f"node {running.node} is of a release without /readyz, or of a newer one") from error


def _troubles(path: Path, *, is_warning: bool) -> str:
    found = _asked(path)
    if found is None:
        return ""
    stage = "" if found.state == "ready" or is_warning else f"it is {found.state}"
    texts = [
        each.text for role in found.roles.values() for each in role.reasons if each.is_warning == is_warning
    ]
    said = "; ".join([*([stage] if stage else []), *texts])
    return f"node {found.node}: {said}" if said else ""


def _other_version(path: Path, _node: str) -> str:
    found = _asked(path)
    if found is None or found.version == __version__:
        return ""
    return f"node {found.node} runs {found.version}, and this command is {__version__}"
