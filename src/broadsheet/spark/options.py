"""Options: the names and values that a user gave by `.option(…)`, checked before any read or append.

An unknown option is a typing error, and a query that ignored it would not do what its author meant.
Therefore the option is refused, and the error lists the known names. Case does not matter in names. Source:
pipelines.5.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from broadsheet.base.time import Duration
from broadsheet.config import duration_of
from broadsheet.errors import ConfigError
from broadsheet.spark.kafka_options import instead

BOOLEANS = {"true": True, "false": False}


class Options:
    """The options of a source or of a sink."""

    def __init__(
        self,
        raw: Mapping[str, str],
        known: Iterable[str],
        whose: str,
        declined: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Check the names of `raw`.

        Args:
            known: every name that may be given, spelt as in the documentation.
            whose: `source` or `sink`, for error messages.
            declined: names that users of Kafka know, and what to give in their place (`kafka_options`).

        Raises:
            ConfigError: a name is not in `known`, or one of `declined`.
        """
        self._raw = {name.lower(): value for name, value in raw.items()}
        self._known = {name.lower(): name for name in known}
        if unlike := [f"option {name}: {text}" for name in self._raw if (text := instead(declined, name))]:
            raise ConfigError("; ".join(unlike))
        if strangers := sorted(name for name in self._raw if name not in self._known):
            names = ", ".join(sorted(self._known.values()))
            raise ConfigError(f"options {strangers} are none of the {whose}'s: {names}")

    def text(self, name: str, default: str = "") -> str:
        """The option's text, or `default` if it is not set."""
        return self._raw.get(name.lower(), default)

    def names(self, name: str) -> list[str]:
        """A list of names separated by commas; repeated names are dropped."""
        return list(dict.fromkeys(each.strip() for each in self.text(name).split(",") if each.strip()))

    def count(self, name: str, default: int) -> int:
        """A whole number of 0 or more.

        Raises:
            ConfigError: the option is something else.
        """
        text = self.text(name, str(default)).strip()
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(f"option {name} is {text!r}, not a whole number of 0 or more")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        """A number of seconds, 0 or more.

        Raises:
            ConfigError: the option is something else.
        """
        text = self.text(name, str(default))
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not 0 <= found < float("inf"):
            raise ConfigError(f"option {name} is {text!r}, not a number of seconds of 0 or more")
        return found

    def duration(self, name: str, default: str) -> Duration:
        """A duration, as `30s` or `15m`.

        Raises:
            ConfigError: the option is something else, or has no unit.
        """
        return duration_of(self.text(name, default), f"option {name}")

    def flag(self, name: str, *, default: bool) -> bool:
        """`true` or `false`.

        Raises:
            ConfigError: the option is something else.
        """
        return BOOLEANS[self.choice(name, [*BOOLEANS], "true" if default else "false")]

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of `choices`.

        Raises:
            ConfigError: the option is none of them.
        """
        text = self.text(name, default).strip().lower()
        if text not in choices:
            raise ConfigError(f"option {name} is {text!r}, not {' or '.join(map(repr, choices))}")
        return text
