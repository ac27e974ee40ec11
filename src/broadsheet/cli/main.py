"""Main: the command `broadsheet`, as a table of commands that are imported when they are used.

Only `COMMANDS` lists all commands. `broadsheet serve` must not wait for imports that only `broadsheet bench`
needs, so a command's module is imported only for that command. An error of this package is printed as one
line with its remedy. The exit status distinguishes a failure from an unknown outcome.
"""

import gc
import os
import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from broadsheet import __version__
from broadsheet.cli.contexts import use
from broadsheet.errors import BroadsheetError, ConfigError, LocalProtocolError, Unknown

COMMANDS: Final = {
    "up": "broadsheet.cli.up",
    "down": "broadsheet.cli.down",
    "serve": "broadsheet.cli.serve",
    "status": "broadsheet.cli.status",
    "demo": "broadsheet.cli.demo",
    "metastore": "broadsheet.cli.metastore",
    "journals": "broadsheet.cli.journals",
    "messages": "broadsheet.cli.messages",
    "keyspace": "broadsheet.cli.keyspace",
    "token": "broadsheet.cli.token",
    "context": "broadsheet.cli.context",
    "config": "broadsheet.cli.config",
    "doctor": "broadsheet.cli.doctor",
    "bench": "broadsheet.cli.bench",
}
"""Each module offers a Typer application `app`.

It is a group, or, with one command and no callback, that command.
"""

CALLING: Final = ("status", "metastore", "journals", "messages")
"""Those that ask a node, which a context may name."""

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNKNOWN: Final = 3
"""The command may have taken effect: find out before you repeat it."""


class Commands(TyperGroup):
    """The commands of the table."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - Typer's own context is private.
        """Names in the order of the table."""
        return [name for name, module in COMMANDS.items() if find_spec(module) is not None]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Import one command; None if there is no such command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = get_command(_loaded(COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command


def _loaded(module: str) -> Any:  # noqa: ANN401 - a module.
    """Import a command's module without garbage collection, which makes an import an eighth longer."""
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.enable()


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A durable, transactional streaming store: journals, and exactly-once PySpark pipelines over them.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"broadsheet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    called: typer.Context,
    *,
    context: Annotated[
        str | None, typer.Option(help="Ask the node of this context, whatever else names one.")
    ] = None,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show it and exit."
    ),
) -> None:
    """Options before the command."""
    del version  # Its callback has acted.
    if context is not None or called.invoked_subcommand in CALLING:
        use(context)


def main(commands: typer.Typer = app) -> None:
    """Run the command line and exit."""
    _hold_standard_streams()
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # As `__main__` left it, for the imports.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        commands()
    except BroadsheetError as error:
        print(f"broadsheet: {_kind(error)}: {error}", file=sys.stderr)
        sys.exit(_exit_status(error))
    except OSError as error:
        file = f": {error.filename}" if error.filename else ""
        print(f"broadsheet: {error.strerror or error}{file}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(130)


def _hold_standard_streams() -> None:
    """Open the null device for standard streams that are closed.

    Otherwise the next file that is opened would get the number of standard output, and be written to. uvloop
    ends the process if one of them is closed.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_WRONLY)  # `open` takes the lowest free number, which is this one.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for the life of the process.


def _kind(error: BroadsheetError) -> str:
    return type(error).status.name.lower().replace("_", " ")


def _exit_status(error: BroadsheetError) -> int:
    match error:
        case ConfigError() | LocalProtocolError():
            return EXIT_USAGE
        case Unknown():
            return EXIT_UNKNOWN
        case _:
            return EXIT_FAILED
