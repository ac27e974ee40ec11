"""Exposure: a door beyond loopback without TLS is refused, unless the operator asks for it (access.1)."""

import ipaddress
from typing import Final

from broadsheet.errors import ConfigError

LOOPBACK_NAMES: Final = ("localhost",)


def check_exposure(door: str, address: str, *, is_insecure: bool) -> None:
    """Let a door listen at `address` (`host:port`).

    Raises:
        ConfigError: the address can be reached from outside of this machine, and `is_insecure` is false.
    """
    if not is_insecure and not is_loopback(address.rpartition(":")[0].strip("[]")):
        raise ConfigError(
            f"the {door} door at {address} would be open to the network without TLS: "
            "bind 127.0.0.1, or start with --insecure if the network is trusted"
        )


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only.

    Names other than localhost count as reachable from outside: they may resolve to any address later.
    """
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
