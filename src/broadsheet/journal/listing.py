"""Listing: one page of the journals that a caller may see, at a cost that depends on the page only.

A grant is a few names and prefixes, without a few excluded ones. Only these parts of the key space are read,
and excluded prefixes are skipped as a whole, so that a narrow grant costs little beside ten thousand
journals. A page ends after `count_max` journals, `PAGE_BYTES_MAX` bytes of specs, `LOOKED_AT_MAX` journals
looked at or `COMPARED_MAX` comparisons for the selector, always at a name that the caller may see. Names are
compared as plain strings, in code-point order.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from broadsheet.access.principal import Principal
from broadsheet.base.labels import META_NAME, LabelSelector
from broadsheet.journal.core.spec import SPEC_PREFIX, JournalSpec
from broadsheet.journal.keys import decode_info
from broadsheet.journal.messages import JournalInfo
from broadsheet.keyspace.core.transaction import KeyValue


class Pairs(Protocol):
    """The part of a key space that a listing uses."""

    def get(self, key: str) -> KeyValue | None:
        """The pair of `key`, or None."""
        ...

    def page(self, prefix: str, *, after: str, count_max: int) -> list[KeyValue]:
        """The first pairs whose keys start with `prefix` and are above `after`."""
        ...


PAGE_BYTES_MAX: Final = 256 << 10
"""Bytes of the specs of one page, so that a reply fits into a frame; the first spec is sent in any case."""
LOOKED_AT_MAX: Final = 2_000
"""Journals that are looked at for one page, whether the selector matches them or not."""
COMPARED_MAX: Final = 20_000
"""Labels and terms compared for one page: 256 terms over 2,000 journals held the loop for 0.3 to 3 s."""
CHUNK_COUNT: Final = 64
"""Keys that are read at once."""
LAST: Final = "\U0010ffff"
"""A prefix followed by this is above every name that begins with the prefix."""


class View(msgspec.Struct, frozen=True):
    """The names of journals that a caller may see."""

    within: tuple[str, ...] = ("",)
    """Prefixes, sorted; none begins with another."""
    names: tuple[str, ...] = ()
    """Single names outside the prefixes, sorted."""
    excluded_names: tuple[str, ...] = ()
    excluded_prefixes: tuple[str, ...] = ()

    def spans(self, prefix: str) -> list[tuple[str, bool]]:
        """The prefixes (False) and names (True) among which journals that start with `prefix` can be."""
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
        """If `name` is excluded, the name above which the listing goes on; otherwise None."""
        for prefix in self.excluded_prefixes:
            if name.startswith(prefix):
                return prefix + LAST
        return name if name in self.excluded_names else None


def view_of(principal: Principal) -> View:
    """The view of journals of `principal`."""
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


class Page(NamedTuple):
    """One page of a listing of journals."""

    journals: Sequence[JournalInfo]
    has_more: bool
    """Whether there may be more above `after`."""
    after: str
    """The last name that was looked at; the next page begins above it. Empty if there was none."""


class Listing(msgspec.Struct, frozen=True):
    """The arguments of a listing of journals."""

    prefix: str = ""
    after: str = ""
    """Only names above it."""
    count_max: int = 1_000
    view: View = View()
    """The names that the caller may see."""
    selector: LabelSelector = LabelSelector()


def list_page(keyspace: Pairs, listing: Listing) -> Page:
    """One page of journals, in order of name.

    If the selector matches few journals, a page may be short or even empty though more pages follow.
    """
    found: list[JournalInfo] = []
    size, after = 0, listing.after
    selector, compared = listing.selector, 0
    term_count = len(selector.include) + len(selector.exclude)
    for looked_at, pair in enumerate(_visible(keyspace, listing.prefix, after, listing.view), 1):
        info = decode_info(pair)
        compared += term_count and term_count + len(info.spec.labels)
        if not info.spec.is_deleting and _takes(selector, info.spec):
            size += len(pair.value)
            if found and (len(found) == listing.count_max or size > PAGE_BYTES_MAX):
                return Page(found, has_more=True, after=after)
            found.append(info)
        after = info.name
        if looked_at == LOOKED_AT_MAX or compared >= COMPARED_MAX:
            return Page(found, has_more=True, after=after)
    return Page(found, has_more=False, after=found[-1].name if found else "")


def _takes(selector: LabelSelector, spec: JournalSpec) -> bool:
    if not (selector.include or selector.exclude):
        return True
    values = {name: (value,) for name, value in spec.labels.items()}
    values[META_NAME] = (spec.name,)
    return selector.takes(values)


def _visible(keyspace: Pairs, prefix: str, after: str, view: View) -> Iterator[KeyValue]:
    """The pairs of journals above `after` that `view` shows, in order of name."""
    for span, is_name in view.spans(prefix):
        if is_name:
            pair = keyspace.get(SPEC_PREFIX + span) if span > after else None
            if pair is not None and view.exclusion(span) is None:
                yield pair
            continue
        above = after
        while pairs := keyspace.page(SPEC_PREFIX + span, after=SPEC_PREFIX + above, count_max=CHUNK_COUNT):
            for pair in pairs:
                above = pair.key.removeprefix(SPEC_PREFIX)
                leap = view.exclusion(above)
                if leap is None:
                    yield pair
                elif leap != above:
                    above = leap
                    break
