"""Labels: (name, value) pairs on journals, and selectors over them.

Names have 2 to 64 characters of `A-Z a-z 0-9 - _ + / .`, values 0 to 1,024 of these and `= %`.

A selector includes and excludes. It rejects whatever has an excluded label; of the rest it takes those
that have, for each included *name*, one of the values listed with it. A name may have many values. The empty
value selects any value; `name:prefix` selects by the beginning of the value.

Does not know which labels a journal must have, nor the meta-label `name`: its caller adds that for matching
(`LabelSelector.takes`). Source: journals.23; access.5.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from broadsheet.errors import InvalidArgument

NAME_MIN: Final = 2
NAME_MAX: Final = 64
VALUE_MAX: Final = 1024
LABELS_MAX: Final = 256
"""Labels of one journal, and terms of one selector."""
SELECTOR_TEXT_MAX: Final = 64 << 10

META_NAME: Final = "name"
"""The journal's own name, as selectors see it."""
LEGACY_PREFIX: Final = "prefix"
"""`prefix=a/` in a selector is an older way to write `name:prefix=a/`."""
PREFIX_SUFFIX: Final = ":prefix"

_NAME = re.compile(r"[A-Za-z0-9\-_+/.]+")
_VALUE = re.compile(r"[A-Za-z0-9\-_+/.=%]*")


def check_labels(labels: Mapping[str, str]) -> None:
    """Make sure that each label is well-formed, and that there are not too many.

    Raises:
        InvalidArgument: the message says which label, and why.
    """
    if len(labels) > LABELS_MAX:
        raise InvalidArgument(f"{len(labels)} labels are above the limit of {LABELS_MAX}")
    for name, value in labels.items():
        _check_label(name, value)


class Term(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One label that a selector asks for."""

    name: str
    is_prefix: bool = False
    value: str = ""
    """Empty for any value."""

    def matches(self, value: str) -> bool:
        """Whether a label of this name with `value` is meant."""
        return value.startswith(self.value) if self.is_prefix else self.value in ("", value)


class LabelSelector(msgspec.Struct, frozen=True, array_like=True):
    """The labels to include and those to exclude; the empty selector takes everything."""

    include: tuple[Term, ...] = ()
    exclude: tuple[Term, ...] = ()

    def takes(self, values: Mapping[str, Sequence[str]]) -> bool:
        """Whether it takes labels with these values of each name, which nobody checks again."""
        if any(_has(values, term) for term in self.exclude):
            return False
        found: dict[str, bool] = {}
        for term in self.include:
            found[term.name] = found.get(term.name, False) or _has(values, term)
        return all(found.values())

    def __str__(self) -> str:
        """The selector's canonical text, which parses to the same selector."""
        clauses = [(term.name, True, term) for term in self.include]
        clauses += [(term.name, False, term) for term in self.exclude]
        key = _clause_key
        parts = []
        for (name, is_include, is_prefix, is_any), group in groupby(sorted(clauses, key=key), key=key):
            values = list(dict.fromkeys(term.value for _, _, term in group))
            shown = f"{name}{PREFIX_SUFFIX}" if is_prefix else name
            parts.append(_clause(shown, values, is_include=is_include, is_any=is_any))
        return ",".join(parts)


def _clause_key(clause: tuple[str, bool, Term]) -> tuple[str, bool, bool, bool]:
    name, is_include, term = clause
    return name, is_include, term.is_prefix, not term.value


def _clause(name: str, values: list[str], *, is_include: bool, is_any: bool) -> str:
    if is_any:
        return name if is_include else f"!{name}"
    if len(values) == 1 and not values[0].startswith("="):
        return f"{name}{'=' if is_include else '!='}{values[0]}"
    return f"{name} {'in' if is_include else 'notin'} ({','.join(values)})"


_CLAUSE = re.compile(
    r"""\s*+(?:
        (?P<absent>!)\s*+(?P<without>[\w\-+/.]++(?::prefix)?)
      | (?P<name>[\w\-+/.]++(?::prefix)?)
        (?: \s++(?P<list>in|notin|not\s++in)\s*+\((?P<values>[^()]*+)\)
          | \s*+(?P<compare>!=|==|=)\s*+(?P<value>[\w\-+/.=%]*+)
        )?
    )\s*+(?:,|$)""",
    re.VERBOSE | re.ASCII,
)
"""Possessive throughout: a run of spaces that two parts could share held the node's loop for 30 seconds."""


def parse_selector(text: str) -> LabelSelector:
    """The label selector that `text` writes.

    Clauses are separated by commas: `a`, `!a`, `a=b`, `a==b`, `a!=b`, `a in (b, c)`, `a notin (b, c)`; a
    name may end in `:prefix`.

    Raises:
        InvalidArgument: it writes none; the message says where it goes wrong.
    """
    if len(text) > SELECTOR_TEXT_MAX:
        raise InvalidArgument(f"selector has {len(text)} characters, above {SELECTOR_TEXT_MAX}")
    include: list[Term] = []
    exclude: list[Term] = []
    at = 0
    if text.strip().endswith(","):
        raise InvalidArgument("selector ends in a comma")
    while at < len(text) and text[at:].strip():
        found = _CLAUSE.match(text, at)
        if found is None:
            raise InvalidArgument(f"selector is malformed from character {at} on: {text[at : at + 40]!a}")
        at = found.end()
        terms, is_include = _terms(found)
        (include if is_include else exclude).extend(terms)
        if len(include) + len(exclude) > LABELS_MAX:
            raise InvalidArgument(f"selector has more than {LABELS_MAX} terms")
    return LabelSelector(tuple(sorted(dict.fromkeys(include))), tuple(sorted(dict.fromkeys(exclude))))


def _terms(found: re.Match[str]) -> tuple[list[Term], bool]:
    written = found["without"] if found["absent"] else found["name"]
    operator = found["compare"] or "".join((found["list"] or "").split())
    values = [found["value"] or ""]
    if found["list"]:  # With more than these it is refused.
        values = [value.strip() for value in found["values"].split(",", LABELS_MAX + 1)[: LABELS_MAX + 1]]
    if found["list"] and "" in values:
        raise InvalidArgument(
            f"selector lists an empty value for {written!r}; write {written!r} alone for any value"
        )
    name, is_prefix = written.removesuffix(PREFIX_SUFFIX), written.endswith(PREFIX_SUFFIX)
    if name == LEGACY_PREFIX:
        if not all(value.endswith("/") for value in values):
            raise InvalidArgument("selector: a value of `prefix` must end in /")
        name, is_prefix = META_NAME, True
    terms = [Term(name, is_prefix, value) for value in values]
    for term in terms:
        _check_label(term.name, term.value)
    return terms, not (found["absent"] or operator in ("!=", "notin"))


def _has(values: Mapping[str, Sequence[str]], term: Term) -> bool:
    found = values.get(term.name)
    return found is not None and any(term.matches(value) for value in found)


def _check_label(name: str, value: str) -> None:
    if not NAME_MIN <= len(name) <= NAME_MAX or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"label name {name[:80]!a} is not {NAME_MIN} to {NAME_MAX} characters of A-Z a-z 0-9 - _ + / ."
        )
    if len(value) > VALUE_MAX or not _VALUE.fullmatch(value):
        raise InvalidArgument(
            f"label {name!r} has a value that is not 0 to {VALUE_MAX} characters of "
            f"A-Z a-z 0-9 - _ + / . = %: {value[:80]!a}"
        )
