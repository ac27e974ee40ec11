"""Configuration: a frozen tree of structs, filled from file, environment and flags; each value has an origin.

Later sources win: default, TOML file, `BROADSHEET_SECTION__FIELD` in the environment, flag. A name that the
tree does not have is refused, with the nearest name that it has. Each domain defines its own struct (units in
the field names, bounds in `__post_init__` or `msgspec.Meta`); `node.py` composes them into the tree that is
loaded here. A `Duration` is written with its unit, as in `"30s"` or `"1.5ms"`; without one it is refused. A
`Place` in a file is relative to that file. No integer is negative, or has more than 63 bits. This module has
no settings of a domain, and uses only the environment that is passed in.
Source: code.17, ADR 0001.
"""

import contextlib
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from broadsheet.base.time import Duration
from broadsheet.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "BROADSHEET_"
ENVIRONMENT_SEPARATOR: Final = "__"
FILE_BYTES_MAX: Final = 1 << 20
SECRET_WORDS: Final = ("secret", "token", "password")
INTEGER_END: Final = 1 << 63
NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
"""The units of durations, in nanoseconds."""

Place = Annotated[str, msgspec.Meta(extra={"is_place": True})]
"""A path. In a file, it is relative to that file, so that both may be moved together. From another source, it
is relative to the process's working directory."""

T = TypeVar("T", bound=msgspec.Struct)


class Setting(NamedTuple):
    """One value of the configuration, and where it came from."""

    name: str
    """Dotted, as in TOML: `journals.inline_bytes_max`."""
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
        """Every value of the configuration in its order; secrets are not shown."""
        found = []
        for name, value in _leaves(self.config, ""):
            last = name.rpartition(".")[2]
            is_bound = last.endswith(("_file", "_max"))  # Not the secret itself: where it stands, how long.
            is_secret = bool(value) and any(word in last for word in SECRET_WORDS) and not is_bound
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
    """Fill the configuration `tree` from every source.

    Args:
        path: a TOML file; None for none.
        flags: dotted names to values; None stands for a flag that was not given.

    Raises:
        ConfigError: a source is unreadable, names something unknown or holds a value out of bounds.
    """
    found = _Found(tree)
    if path is not None:
        found.put_table(read_table(path), "", f"file {path}", path.parent)
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
    """The values that the sources of the configuration gave so far, with their origins."""

    def __init__(self, tree: type[msgspec.Struct]) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self._tree = tree

    def put(self, name: str, value: object, origin: str) -> None:
        """Set one value of the configuration, as the type that the tree has for `name`, with its origin."""
        kind = self._kind(name, origin)
        if _is_struct(kind):
            raise ConfigError(f"{origin}: {name} is a section, not a value")
        if kind is Duration:
            value = duration_of(value, f"{origin}: {name}")
        if isinstance(value, int) and not 0 <= value < INTEGER_END:
            raise ConfigError(f"{origin}: {name} must be in 0..2**63 - 1, not {value}")
        table = self.values
        *sections, last = name.split(".")
        for section in sections:
            table = table.setdefault(section, {})
        table[last] = value
        self.origins[name] = origin

    def put_table(self, table: Mapping[str, Any], above: str, origin: str, beside: Path) -> None:
        """Set the values of a TOML table, section by section; places in it are relative to `beside`."""
        for key, value in table.items():
            name = f"{above}{key}"
            kind = self._kind(name, origin)
            if isinstance(value, dict) and _is_struct(kind):
                self.put_table(value, f"{name}.", origin, beside)
            elif kind == Place and isinstance(value, str) and value:
                self.put(name, str(beside / value), origin)
            else:
                self.put(name, value, origin)

    def put_text(self, name: str, text: str, origin: str) -> None:
        """Set one value from the environment: the text itself for a string, otherwise a TOML value."""
        value: object = text
        if self._kind(name, origin) not in (str, Place):
            with contextlib.suppress(tomllib.TOMLDecodeError):  # The conversion will name the right type.
                value = tomllib.loads(f"value = {text}")["value"]
        self.put(name, value, origin)

    def explain(self, error: Exception) -> str:
        """The message of msgspec, with our dotted name and the origin of the setting that it complains of.

        If a section's own check fails, its message names fields: the origin is that of the named fields.
        """
        message, _, where = str(error).partition(" - at `$")
        name = where.strip(".`")
        if name in self.origins:
            return f"{self.origins[name]}: {name}: {message[:1].lower()}{message[1:]}"
        inside = {
            each: origin
            for each, origin in self.origins.items()
            if each.startswith(f"{name}." if name else "")
        }
        named = [origin for each, origin in inside.items() if _is_named(each.rpartition(".")[2], message)]
        origins = " and ".join(dict.fromkeys(named or inside.values())) or "default"
        return f"{origins}: {message}" if message.startswith(name) else f"{origins}: {name}: {message}"

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


def read_table(path: Path) -> dict[str, Any]:
    """The table of a configuration file in TOML, as it stands there.

    Raises:
        ConfigError: the file cannot be read, or is not TOML.
    """
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


def duration_of(value: object, where: str) -> Duration:
    """The duration that a setting writes as `value`: a number with its unit, as in "30s", or 0.

    Args:
        where: what was written, for the error.

    Raises:
        ConfigError: `value` is no duration, or has no unit.
    """
    units = f"a number and one of {', '.join(NANOSECONDS)}, as in '30s'"
    text = str(value).strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        if Decimal(text) == 0:
            return Duration(0)
        raise ConfigError(f"{where}: {text} has no unit: write {units}")
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", text)
    if found is None or found[2] not in NANOSECONDS:
        raise ConfigError(f"{where}: {value!r} is no duration: {units}")
    return Duration(int(Decimal(found[1]) * NANOSECONDS[found[2]]))


def _duration(nanoseconds: int) -> str:
    """A duration as `duration_of` reads it, in the largest unit up to seconds that it is a multiple of."""
    unit = max(
        (unit for unit in ("ns", "us", "ms", "s") if nanoseconds % NANOSECONDS[unit] == 0),
        key=NANOSECONDS.__getitem__,
    )
    return f"{nanoseconds // NANOSECONDS[unit]}{unit}"


def _is_named(field: str, message: str) -> bool:
    return re.search(rf"\b{re.escape(field)}\b", message) is not None


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _leaves(config: msgspec.Struct, above: str) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            yield from _leaves(value, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}", _duration(value) if field.type is Duration else value
