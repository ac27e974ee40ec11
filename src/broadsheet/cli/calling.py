"""Calling: how a command calls a node, with the token, and what it says if none answers."""

import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
import typer

from broadsheet.base.time import Duration
from broadsheet.cli.contexts import token_for
from broadsheet.client import Client, connect
from broadsheet.doors.status import STATUS_METHOD, StatusReply
from broadsheet.errors import Unreachable
from broadsheet.runtime.caller import CallerPorts
from broadsheet.runtime.loop import run
from broadsheet.runtime.process import end_process
from broadsheet.wire.client import dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY

R = TypeVar("R", bound=msgspec.Struct)

TOKEN_VARIABLE: Final = "BROADSHEET_TOKEN"  # noqa: S105 - the name of a variable.
"""The variable that holds the token. There is no flag for it, because the process list shows flags
(access.5)."""


def address_of(context: typer.Context, address: str | None) -> str | None:
    """The node that is named: by `--address`, or by the variable unless `--data-dir` is given."""
    named, given = (context.get_parameter_source(option) for option in ("address", "data_dir"))
    is_by_variable = named is not None and named.name == "ENVIRONMENT"
    return None if is_by_variable and given is not None and given.name == "COMMANDLINE" else address


def token_of(address: str) -> str:
    """The token for the node at `address`: of the environment, or of the context that names it; or none.

    Raises:
        ConfigError: the context's file of a token cannot be read.
    """
    return os.environ.get(TOKEN_VARIABLE, "") or token_for(address)


async def ask(
    address: str, method: str, request: msgspec.Struct, *, reply: type[R], timeout: Duration | None = None
) -> R:
    """Call one method of the node at `address`, over a connection of its own.

    Raises:
        Unreachable: no node answers at this address.
        Unauthenticated: the node asks for a token, or refuses the given one.
    """
    token = token_of(address)
    connection = await dial(CallerPorts(crash=end_process), address, token=token, limits=WireLimits())
    try:
        answer, _ = await connection.call(method, request, reply=reply, timeout=timeout)
        return answer
    finally:
        await connection.close()


async def ask_status(address: str) -> StatusReply:
    """The status of the node at `address`. Raises as `ask`."""
    return await ask(address, STATUS_METHOD, EMPTY, reply=StatusReply)


def call_node(address: str, work: Callable[[Client], Awaitable[None]]) -> None:
    """Do `work` with a client of the node at `address`.

    Raises:
        Unreachable: no node answers there; the text says how to find one.
    """

    async def main() -> None:
        async with connect(address, token_of(address) or None) as client:
            await work(client)

    try:
        run(main())
    except Unreachable as error:
        raise Unreachable(
            f"{error}; `broadsheet status` shows where your nodes listen: name one with --address or "
            "BROADSHEET_ADDRESS, or start one with `broadsheet up`"
        ) from error
