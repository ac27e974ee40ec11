"""Readyz: asks a node whether it can serve, by its page `/readyz`, which needs no token (ADR 0203)."""

from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import msgspec

from broadsheet.access.exposure import is_loopback
from broadsheet.doors.readiness import ReadinessReply
from broadsheet.runtime.network import split_address

READY_SECONDS_MAX: Final = 5
"""How long the page may take."""
EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound.
PASSING: Final = ("opening", "no_quorum")
"""Causes that end by themselves soon after a start: journals that are opened, peers that are found."""


def asked(address: str) -> ReadinessReply:
    """Ask the node whose HTTP door is at `address` whether it is ready.

    Raises:
        ConnectionError: it does not answer. OSError: it is of a release without the page.
    """
    url = f"http://{address}/readyz?format=json"
    try:
        with urlopen(url, timeout=READY_SECONDS_MAX) as answer:
            body = answer.read()
    except HTTPError as refused:
        with refused:
            body = refused.read()
    except OSError as error:
        why = error.reason if isinstance(error, URLError) else error
        raise ConnectionError(f"does not answer at {url}: {why}") from error
    try:
        return msgspec.json.decode(body, type=ReadinessReply)
    except msgspec.DecodeError as error:
        raise OSError("is of a release without /readyz, or of a newer one") from error


def reasons(found: ReadinessReply, *, is_warning: bool = False) -> list[str]:
    """Why the node cannot serve; or what is wrong with it though it can."""
    stage = [] if found.state == "ready" or is_warning else [f"it is {found.state}"]
    roles = found.roles.items()
    told = [
        f"{name}: {each.text}"
        for name, role in roles
        for each in role.reasons
        if each.is_warning == is_warning
    ]
    return stage + told


def is_passing(found: ReadinessReply) -> bool:
    """Whether all that keeps the node from serving ends by itself soon after a start."""
    causes = [each.cause for role in found.roles.values() for each in role.reasons if not each.is_warning]
    return not found.is_ready and all(cause in PASSING for cause in causes)


def door_beside(http: str, native: str) -> str:
    """The address of a node's HTTP door for a caller who reached its native door at `native`.

    A node tells what it is bound to. If that is every address there, the caller's word for it counts.

    Raises:
        OSError: it can be reached from the node's own machine only, and the caller came from another.
    """
    (host, port), (ours, _) = split_address(http), split_address(native)
    if host in EVERYWHERE:
        return f"[{ours}]:{port}" if ":" in ours else f"{ours}:{port}"
    if is_loopback(host) and not is_loopback(ours):
        raise OSError(f"at {http} answers on its own machine only")
    return http
