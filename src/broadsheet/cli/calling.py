"""Calling: how a command calls a node."""

import os
from typing import Final

from broadsheet.doors.status import STATUS_METHOD, StatusReply
from broadsheet.runtime.caller import CallerPorts
from broadsheet.runtime.process import end_process
from broadsheet.wire.client import dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY

TOKEN_VARIABLE: Final = "BROADSHEET_TOKEN"  # noqa: S105 - the name of a variable.
"""The variable that holds the token. There is no flag for it, because the process list shows flags
(access.5)."""


async def ask_status(address: str) -> StatusReply:
    """The status of the node at `address`.

    Raises:
        Unreachable: no node answers at this address.
        Unauthenticated: the node asks for a token, or refuses the given one.
    """
    connection = await dial(
        CallerPorts(crash=end_process), address, token=os.environ.get(TOKEN_VARIABLE, ""), limits=WireLimits()
    )
    try:
        reply, _ = await connection.call(STATUS_METHOD, EMPTY, reply=StatusReply)
        return reply
    finally:
        await connection.close()
