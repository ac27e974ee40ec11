"""Contexts: the nodes that a user calls by a name, each with its address and the file of its token.

They are in one file below the user's configuration directory, which nobody else can read. It holds no
token, only where each is. A command that calls a node asks the one that `--context` names; otherwise that of
`BROADSHEET_ADDRESS`, then the context of `BROADSHEET_CONTEXT`, then the one in use. A context's token goes to
the address of that context and to no other.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from broadsheet.errors import ConfigError

CONTEXT_VARIABLE: Final = "BROADSHEET_CONTEXT"
ADDRESS_VARIABLE: Final = "BROADSHEET_ADDRESS"
"""The variable that holds the address of the node that a command asks."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TOKEN_BYTES_MAX: Final = 64 << 10


class Named(msgspec.Struct, frozen=True, omit_defaults=True):
    """A context: a node, and the file of the token for it."""

    address: str
    token_file: str = ""
    """Empty: the node needs none."""


class Contexts(msgspec.Struct, frozen=True):
    """The file of contexts."""

    current: str = ""
    """The one in use; empty: none."""
    contexts: dict[str, Named] = {}

    def named(self, name: str) -> Named:
        """The context of that name.

        Raises:
            ConfigError: there is none.
        """
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise ConfigError(f"there is no context {name!r} in {path()}, which has: {known}")
        return self.contexts[name]

    def write(self) -> None:
        """Write the file, whole or not at all, for its owner alone.

        Raises:
            ConfigError: it cannot be written. The former file is as it was.
        """
        file, new = path(), path().with_suffix(f".{os.getpid()}.new")
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as out:
                os.fchmod(out.fileno(), 0o600)
                out.write(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
            new.replace(file)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error


def path() -> Path:
    """The file of contexts: `broadsheet/contexts.json` below `XDG_CONFIG_HOME`, or below `~/.config`."""
    below = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        root = Path(below) if below.startswith("/") else Path.home() / ".config"
    except RuntimeError:  # As in a container that runs under a number that has no name.
        root = Path("/.config")
    return root / "broadsheet" / "contexts.json"


def read() -> Contexts:
    """The contexts of this user; none if there is no file, or it lies where this user may not look.

    Raises:
        ConfigError: the file cannot be read, or is not of this form.
    """
    try:
        return msgspec.json.decode(path().read_bytes(), type=Contexts)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return Contexts()  # As with another user's HOME: a command that names no context needs none.
    except OSError as error:
        raise ConfigError(f"{path()} cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path()} holds no contexts: {error}; mend or remove it") from error


def chosen(name: str | None) -> Named | None:
    """The context that a command uses; None if it uses none.

    Args:
        name: what `--context` names; None: it was not given.

    Raises:
        ConfigError: there is no such context, or the file cannot be read.
    """
    if name is not None:
        return read().named(name)
    if os.environ.get(ADDRESS_VARIABLE):
        return None
    found = read()
    wanted = os.environ.get(CONTEXT_VARIABLE) or found.current
    return found.named(wanted) if wanted else None


def use(name: str | None) -> None:
    """Have this process ask the node of the context that `chosen` gives, if it gives one."""
    found = chosen(name)
    if name is not None:
        os.environ[CONTEXT_VARIABLE] = name
    if found is not None:
        os.environ[ADDRESS_VARIABLE] = found.address


def token_for(address: str) -> str:
    """The token of the context that `use` meant, if that is of the node at `address`; empty otherwise.

    Raises:
        ConfigError: the context's file of the token cannot be read, or holds none.
    """
    known = read()
    found = known.contexts.get(os.environ.get(CONTEXT_VARIABLE) or known.current)
    if found is None or found.address != address or not found.token_file:
        return ""
    file = Path(found.token_file)
    try:
        with file.open("rb") as content:
            token = content.read(TOKEN_BYTES_MAX).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}, the context's file of a token, cannot be read: {error}") from error
    if not token:
        raise ConfigError(f"{file}, the context's file of a token, is empty")
    return token
