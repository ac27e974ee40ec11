"""Listing: a page of the journals that a caller may see, which costs what it returns.

A grant is a few names and prefixes, minus a few. The pages of the key space are read below those only, and
excluded prefixes are leapt over, so that a narrow grant beside ten thousand journals looks at its own. A page
ends at `count_max` journals or `PAGE_BYTES_MAX` bytes of specs, at a name that the caller may see. Names are
compared as plain strings, in code-point order.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from broadsheet.access.claims import Principal
from broadsheet.base.types import JournalName
from broadsheet.journal.core.spec import spec_key
from broadsheet.journal.keys import decode_info
from broadsheet.journal.messages import JournalInfo
from broadsheet.keyspace.core.transaction import KeyValue


class Pairs(Protocol):
    """What a listing needs of a key space."""

    def get(self, key: str) -> KeyValue | None:
        """The pair of `key`, or None."""
        ...

    def page(self, prefix: str, *, after: str, count_max: int) -> list[KeyValue]:
        """The first pairs whose keys start with `prefix` and are above `after`."""
        ...


PREFIX: Final = spec_key(JournalName(""))
PAGE_BYTES_MAX: Final = 256 << 10
"""Of one page's specs, so that a reply fits into a frame whatever the labels are; one spec always goes."""
CHUNK_COUNT: Final = 64
"""Keys that are read at once."""
LAST: Final = "\U0010ffff"
"""Behind a prefix: above every name that begins with it."""


class View(msgspec.Struct, frozen=True):
    """What a listing may show."""

    within: tuple[str, ...] = ("",)
    """Prefixes, sorted, none of which begins with another."""
    names: tuple[str, ...] = ()
    """Names besides, sorted."""
    excluded_names: tuple[str, ...] = ()
    excluded_prefixes: tuple[str, ...] = ()

    def spans(self, prefix: str) -> list[tuple[str, bool]]:
        """Where to look for names that start with `prefix`, in order: prefixes, and (true) whole names."""
        found: list[tuple[str, bool]] = []
        for each in self.within:
            if each.startswith(prefix):
                found.append((each, False))
            elif prefix.startswith(each):
                return [(prefix, False)]
        names = [name for name in self.names if name.startswith(prefix)]
        found += [(name, True) for name in names if not any(name.startswith(each) for each in self.within)]
        return sorted(found)

    def exclusion(self, name: str) -> str | None:
        """Above which name to go on where `name` is excluded; None where it is not."""
        for prefix in self.excluded_prefixes:
            if name.startswith(prefix):
                return prefix + LAST
        return name if name in self.excluded_names else None


EVERYTHING_SEEN: Final = View()


def view_of(principal: Principal) -> View:
    """What `principal` may be shown."""
    within: list[str] = []
    for prefix in sorted(principal.prefixes):
        if not within or not prefix.startswith(within[-1]):
            within.append(prefix)
    return View(
        within=tuple(within),
        names=tuple(sorted(dict.fromkeys(principal.names))),
        excluded_names=principal.excluded_names,
        excluded_prefixes=principal.excluded_prefixes,
    )


def list_page(
    keyspace: Pairs, prefix: str, *, after: str, count_max: int, view: View
) -> tuple[Sequence[JournalInfo], bool]:
    """A page, by name, of the journals above `after`, and whether there are more."""
    found: list[JournalInfo] = []
    size = 0
    for pair in _visible(keyspace, prefix, after, view):
        if (info := decode_info(pair)).spec.is_deleting:
            continue
        size += len(pair.value)
        if found and (len(found) == count_max or size > PAGE_BYTES_MAX):
            return found, True
        found.append(info)
    return found, False


def _visible(keyspace: Pairs, prefix: str, after: str, view: View) -> Iterator[KeyValue]:
    """The pairs of names above `after` that `view` shows, in order."""
    for span, is_name in view.spans(prefix):
        if is_name:
            pair = keyspace.get(PREFIX + span) if span > after else None
            if pair is not None and view.exclusion(span) is None:
                yield pair
            continue
        above = after
        while pairs := keyspace.page(PREFIX + span, after=PREFIX + above, count_max=CHUNK_COUNT):
            for pair in pairs:
                above = pair.key.removeprefix(PREFIX)
                leap = view.exclusion(above)
                if leap is None:
                    yield pair
                elif leap != above:
                    above = leap
                    break
