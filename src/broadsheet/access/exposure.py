"""Exposure: a door beyond loopback without TLS is refused, unless asked for by name (DESIGN 10)."""

import ipaddress
from typing import Final

from broadsheet.errors import ConfigError

LOOPBACK_NAMES: Final = ("localhost",)


def check_exposure(door: str, address: str, *, is_insecure: bool) -> None:
    """Let a door listen at `address` (`host:port`).

    Raises:
        ConfigError: it is reachable from outside of this machine, and `is_insecure` is false.
    """
    host = address.rpartition(":")[0].strip("[]")
    if is_insecure or host in LOOPBACK_NAMES:
        return
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False  # A name: it may mean anything tomorrow.
    if not is_loopback:
        raise ConfigError(
            f"the {door} door at {address} would be open to the network without TLS: "
            "bind 127.0.0.1, or start with --insecure if the network is trusted"
        )
