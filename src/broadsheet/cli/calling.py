"""Calling a node from the command line."""

import os
from typing import Final

from broadsheet.doors.status import STATUS_METHOD, StatusReply
from broadsheet.runtime.caller import CallerPorts
from broadsheet.runtime.process import end_process
from broadsheet.wire.client import dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY

TOKEN_VARIABLE: Final = "BROADSHEET_TOKEN"  # noqa: S105 - the name of a variable.
"""Where a token comes from: never a flag, for the process list shows those (access.5)."""


async def ask_status(address: str) -> StatusReply:
    """What the node at `address` says of itself.

    Raises:
        Unreachable: nobody answers there.
        Unauthenticated: it wants a token, or another one.
    """
    connection = await dial(
        CallerPorts(crash=end_process), address, token=os.environ.get(TOKEN_VARIABLE, ""), limits=WireLimits()
    )
    try:
        reply, _ = await connection.call(STATUS_METHOD, EMPTY, reply=StatusReply)
        return reply
    finally:
        await connection.close()
