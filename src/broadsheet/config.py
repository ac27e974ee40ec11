"""Configuration: a frozen tree of structs, filled from file, environment and flags; each value has an origin.

Later sources win: default, TOML file, `BROADSHEET_SECTION__FIELD` in the environment, flag. A name that the
tree does not have is refused, with the nearest one that it has. Each domain defines its own struct (units in
the field names, bounds in `__post_init__` or `msgspec.Meta`); `node.py` composes them into the tree that is
loaded here. This module knows no domain, keeps no settings, and reads the environment only where it is passed
in. Source: STYLE 8.
"""

import contextlib
import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from broadsheet.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "BROADSHEET_"
ENVIRONMENT_SEPARATOR: Final = "__"
FILE_BYTES_MAX: Final = 1 << 20
SECRET_WORDS: Final = ("secret", "token", "password")

T = TypeVar("T", bound=msgspec.Struct)


class Setting(NamedTuple):
    """One value of the tree, and where it came from."""

    name: str
    """Dotted, as in TOML: `journals.spool_bytes_max`."""
    value: object
    origin: str
    """`default`, `file PATH`, `environment NAME` or `flag`."""


class Loaded(Generic[T]):
    """A configuration and the origin of each of its values."""

    def __init__(self, config: T, origins: Mapping[str, str]) -> None:
        self.config = config
        self._origins = origins

    def origin(self, name: str) -> str:
        """Where the value of a dotted name came from."""
        return self._origins.get(name, "default")

    def settings(self) -> list[Setting]:
        """Every value of the tree in its order; secrets are not shown."""
        found = []
        for name, value in _leaves(self.config, ""):
            is_secret = bool(value) and any(word in name.rpartition(".")[2] for word in SECRET_WORDS)
            shown = "(set)" if is_secret else value
            found.append(Setting(name, shown, self.origin(name)))
        return found


def load(
    tree: type[T],
    *,
    path: Path | None = None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
) -> Loaded[T]:
    """Fill `tree` from every source.

    Args:
        path: a TOML file; None for none.
        flags: dotted names to values; None stands for a flag that was not given.

    Raises:
        ConfigError: a source is unreadable, names something unknown or holds a value out of bounds.
    """
    found = _Found(tree)
    if path is not None:
        found.put_table(_read(path), "", f"file {path}")
    for variable, text in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and ENVIRONMENT_SEPARATOR in variable:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace(ENVIRONMENT_SEPARATOR, ".")
            found.put_text(name, text, f"environment {variable}")
    for name, flag in flags.items():
        if flag is not None:
            found.put(name, flag, "flag")
    try:
        config = msgspec.convert(found.values, tree, strict=False)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise ConfigError(found.explain(error)) from error
    return Loaded(config, found.origins)


class _Found:
    """What the sources said so far."""

    def __init__(self, tree: type[msgspec.Struct]) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self._tree = tree

    def put(self, name: str, value: object, origin: str) -> None:
        """Set one value, after making sure that the tree has it."""
        if _is_struct(self._kind(name, origin)):
            raise ConfigError(f"{origin}: {name} is a section, not a value")
        table = self.values
        *sections, last = name.split(".")
        for section in sections:
            table = table.setdefault(section, {})
        table[last] = value
        self.origins[name] = origin

    def put_table(self, table: Mapping[str, Any], above: str, origin: str) -> None:
        """Set what stands in a TOML table, section by section."""
        for key, value in table.items():
            name = f"{above}{key}"
            if isinstance(value, dict) and _is_struct(self._kind(name, origin)):
                self.put_table(value, f"{name}.", origin)
            else:
                self.put(name, value, origin)

    def put_text(self, name: str, text: str, origin: str) -> None:
        """Set one value from the environment: as it stands for a string, else a TOML value."""
        value: object = text
        if self._kind(name, origin) is not str:
            with contextlib.suppress(tomllib.TOMLDecodeError):  # Then the conversion says what it wanted.
                value = tomllib.loads(f"value = {text}")["value"]
        self.put(name, value, origin)

    def explain(self, error: Exception) -> str:
        """The message of msgspec, with our dotted name and the origin of the value that it complains of."""
        message, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        if not name:
            return message
        return f"{self.origins.get(name, 'default')}: {name}: {message[:1].lower()}{message[1:]}"

    def _kind(self, name: str, origin: str) -> object:
        kind: Any = self._tree
        above = ""
        for part in name.split("."):
            fields = (
                {field.name: field.type for field in msgspec.structs.fields(kind)} if _is_struct(kind) else {}
            )
            if part not in fields:
                near = difflib.get_close_matches(part, fields, n=1)
                hint = f"; did you mean {above}{near[0]}?" if near else ""
                raise ConfigError(f"{origin}: there is no setting {name}{hint}")
            kind = fields[part]
            above += f"{part}."
        return kind


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"configuration file {path} is above {FILE_BYTES_MAX} bytes")
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} is not TOML: {error}") from error


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _leaves(config: msgspec.Struct, above: str) -> Iterator[tuple[str, Any]]:
    for field in config.__struct_fields__:
        value = getattr(config, field)
        if isinstance(value, msgspec.Struct):
            yield from _leaves(value, f"{above}{field}.")
        else:
            yield f"{above}{field}", value
