"""Door checks: those checks of `broadsheet doctor` that look at addresses, and at descriptors.

They bind an address for a moment to see whether it is free, and ask no node but the one of the variable.
"""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broadsheet.access.exposure import check_exposure
from broadsheet.cli.calling import ask_status
from broadsheet.cli.cluster import CLUSTER_FILE, Cluster, data_dirs
from broadsheet.cli.contexts import ADDRESS_VARIABLE
from broadsheet.cli.findings import Check, Finding, Verdict
from broadsheet.cli.running import Running, is_running
from broadsheet.config import load
from broadsheet.errors import BroadsheetError, ConfigError, Unauthenticated
from broadsheet.node import Settings
from broadsheet.runtime.loop import run
from broadsheet.runtime.network import split_address

OPEN_FILES_MIN: Final = 4096
OPEN_FILES_SHARE: Final = 0.9
"""With more of its descriptors than this in use, a node soon lacks some."""
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound.
WHY_NOT: Final = {
    errno.EADDRINUSE: "is taken by another process",
    errno.EADDRNOTAVAIL: "is no address of this machine",
    errno.EACCES: "may not be bound by this user",
}


def limits_check(root: Path) -> Finding:
    """A node may open enough files, and those that run have some left.

    Journals, segments and connections each need one. A node raises its soft limit to the hard one.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        found = [running for path in data_dirs(root) if (running := Running.read(path)) is not None]
        short = [text for each in found if (text := _few_left(each))]
    except (ConfigError, OSError) as error:
        return Finding("open files", Verdict.WARNING, f"unknown: {error}", "mend the directory first")
    remedy = "raise the limit (LimitNOFILE= of the unit, or `ulimit -Hn` as root), and start the node again"
    if short:
        return Finding("open files", Verdict.BAD, "; ".join(short), remedy)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES_MIN:
        text = f"a node started here may open {hard} files at most"
        return Finding("open files", Verdict.WARNING, text, f"set it to {OPEN_FILES_MIN} or more: {remedy}")
    return Finding("open files", Verdict.GOOD, f"a node started here may open {hard}")


def ports_check(root: Path) -> Finding:
    """Nodes that do not run could listen where their settings say."""
    taken: list[str] = []
    exposed: list[str] = []
    seen: dict[str, str] = {}
    try:
        for node, settings in _stopped(root):
            for door, address in (("native", settings.native.address), ("http", settings.http.address)):
                name = f"{door} door of {node}"
                if (why := _why_not(address)) or (why := seen.get(address, "")):
                    taken.append(f"{address} ({name}) {why}")
                if split_address(address)[1]:
                    seen[address] = f"is that of the {name} as well"
                try:
                    check_exposure(door, address, is_insecure=settings.node.is_insecure)
                except ConfigError as error:
                    exposed.append(str(error))
    except (ConfigError, OSError):
        return Finding("ports", Verdict.WARNING, "unknown: see above", "mend the directory first")
    if taken:
        remedy = "end the process that listens there, or change the address in the node's toml file"
        return Finding("ports", Verdict.BAD, "; ".join(taken), remedy)
    if exposed:
        remedy = "listen on 127.0.0.1, or set node.is_insecure in a network that you trust"
        return Finding("ports", Verdict.WARNING, "; ".join(exposed), remedy)
    return Finding("ports", Verdict.GOOD, "free, or ours")


def peers_check(root: Path) -> Finding:
    """The nodes of one directory name each other as peers, where each of them listens."""
    good = Finding("peers", Verdict.GOOD, "the nodes know each other, or there is one")
    try:
        if not (root / CLUSTER_FILE).exists():
            return good
        found = {node: _settings_of(root, node) for node in Cluster.open(root).nodes}
    except (ConfigError, OSError):
        return Finding("peers", Verdict.WARNING, "unknown: see above", "mend the directory first")
    faults = []
    for node, settings in found.items():
        if len(found) > 1 and settings.node.peers.keys() != found.keys():
            named = ", ".join(settings.node.peers) or "nobody"
            faults.append(f"node.peers of {node} names {named}, and the nodes are {', '.join(found)}")
        for peer, address in settings.node.peers.items():
            if peer in found and not _leads_to(address, found[peer].native.address):
                listens = found[peer].native.address
                faults.append(f"node.peers of {node} has {peer} at {address}, and it listens at {listens}")
    if not faults:
        return good
    remedy = "give node.peers the same content in each toml file: without a majority nothing is decided"
    return Finding("peers", Verdict.BAD, "; ".join(faults), remedy)


def address_check(_root: Path) -> Finding:
    """The address in the environment, if there is one, is that of a node that answers."""
    address = os.environ.get(ADDRESS_VARIABLE, "")
    if not address:
        return Finding("address", Verdict.GOOD, f"{ADDRESS_VARIABLE} is not set")
    remedy = f"`broadsheet status` shows where nodes listen: set {ADDRESS_VARIABLE} to that, or unset it"
    try:
        split_address(address)
        run(ask_status(address))
    except Unauthenticated:
        return Finding("address", Verdict.GOOD, f"a node listens at {address}, and asks for a token")
    except (BroadsheetError, OSError) as error:
        return Finding("address", Verdict.BAD, f"{ADDRESS_VARIABLE} is {address!r}: {error}", remedy)
    return Finding("address", Verdict.GOOD, f"a node answers at {address}")


DOOR_CHECKS: Final[tuple[Check, ...]] = (limits_check, ports_check, peers_check, address_check)


def _few_left(running: Running) -> str:
    """What a running node lacks of descriptors; empty if it has enough, or is not ours to look at."""
    process = Path(f"/proc/{running.pid}")
    try:
        count = len([*(process / "fd").iterdir()])
        limit = next(
            int(line.split()[3])
            for line in (process / "limits").read_text().splitlines()
            if line.startswith("Max open files")
        )
    except (OSError, ValueError):
        return ""
    if count <= OPEN_FILES_SHARE * limit:
        return ""
    return f"node {running.node} has {count} files open, and may have {limit}: appends and reads wait for one"


def _stopped(root: Path) -> Iterator[tuple[str, Settings]]:
    """The nodes of `up` that do not run, with their settings. Where others listen, only their start knows."""
    if (root / CLUSTER_FILE).exists():
        cluster = Cluster.open(root)
        for node in cluster.nodes:
            if not is_running(cluster.data_dir(node)):
                yield node, _settings_of(root, node)


def _settings_of(root: Path, node: str) -> Settings:
    return load(Settings, path=root / f"{node}.toml", environment={}, flags={}).config


def _why_not(address: str) -> str:
    """Why nobody can listen at `address` now; empty if somebody could."""
    host, port = split_address(address)
    try:
        family, kind, _, _, bound = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(bound)
    except socket.gaierror as error:
        return f"cannot be resolved: {error.strerror}"
    except OSError as error:
        return WHY_NOT.get(error.errno or 0, f"cannot be bound: {error.strerror}")
    return ""


def _leads_to(address: str, listens: str) -> bool:
    """Whether who dials `address` reaches a node that listens at `listens`."""
    (host, port), (bound, at) = split_address(address), split_address(listens)
    return port == at and (host == bound or bound in WILDCARDS)
