"""Options: what a user writes at `.option(…)`, judged by name and value before anything is read or appended.

An option that nobody knows is a slip of the pen, and to ignore it would run another query than the one that
was meant: it is refused, with the names that there are. Names do not differ by case. Source: pipelines.5.
"""

from collections.abc import Iterable, Mapping, Sequence

from broadsheet.errors import ConfigError

BOOLEANS = {"true": True, "false": False}


class Options:
    """The options of a source or of a sink."""

    def __init__(self, raw: Mapping[str, str], known: Iterable[str], whose: str) -> None:
        """Take `raw`.

        Args:
            known: the names that there are, as users read them.
            whose: who takes them, for messages.

        Raises:
            ConfigError: a name is none of `known`.
        """
        self._raw = {name.lower(): value for name, value in raw.items()}
        self._known = {name.lower(): name for name in known}
        if strangers := sorted(name for name in self._raw if name not in self._known):
            names = ", ".join(sorted(self._known.values()))
            raise ConfigError(f"options {strangers} are none of the {whose}'s: {names}")

    def text(self, name: str, default: str = "") -> str:
        """Any text."""
        return self._raw.get(name.lower(), default)

    def names(self, name: str) -> list[str]:
        """Names by comma, each once."""
        return list(dict.fromkeys(each.strip() for each in self.text(name).split(",") if each.strip()))

    def count(self, name: str, default: int) -> int:
        """A number that is not below 0.

        Raises:
            ConfigError: it is something else.
        """
        text = self.text(name, str(default)).strip()
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(f"option {name} is {text!r}, not a whole number of 0 or more")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        """A time that is not below 0.

        Raises:
            ConfigError: it is something else.
        """
        text = self.text(name, str(default))
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not 0 <= found < float("inf"):
            raise ConfigError(f"option {name} is {text!r}, not a number of seconds of 0 or more")
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """`true` or `false`.

        Raises:
            ConfigError: it is something else.
        """
        return BOOLEANS[self.choice(name, [*BOOLEANS], "true" if default else "false")]

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of `choices`.

        Raises:
            ConfigError: it is none of them.
        """
        text = self.text(name, default).strip().lower()
        if text not in choices:
            raise ConfigError(f"option {name} is {text!r}, not {' or '.join(map(repr, choices))}")
        return text
