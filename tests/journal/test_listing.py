"""A listing shows what a caller may see, and costs what it shows."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.access.capability import Capability
from broadsheet.access.principal import Principal
from broadsheet.base.labels import parse_selector
from broadsheet.base.types import JournalName, Revision
from broadsheet.journal.core.spec import JournalSpec, spec_key
from broadsheet.journal.listing import (
    CHUNK_COUNT,
    COMPARED_MAX,
    LOOKED_AT_MAX,
    PAGE_BYTES_MAX,
    Listing,
    list_page,
    view_of,
)
from broadsheet.keyspace.core.map import OrderedMap
from broadsheet.keyspace.core.transaction import KeyValue


class Counted(OrderedMap):
    """Counts the pairs that a listing looks at."""

    looked_at = 0

    def page(self, prefix: str, *, after: str, count_max: int) -> list[KeyValue]:
        found = super().page(prefix, after=after, count_max=count_max)
        self.looked_at += len(found)
        return found


def journals(*names: str, labels: dict[str, str] | None = None) -> Counted:
    space = Counted()
    for name in names:
        spec = JournalSpec(JournalName(name), labels=labels or {})
        pair = KeyValue(spec_key(spec.name), msgspec.json.encode(spec), Revision(1), Revision(1))
        space.apply([(pair.key, pair)])
    space.apply([("item", None), ("registers/x", KeyValue("registers/x", b"", Revision(1), Revision(1)))])
    return space


def bearer(
    prefixes: tuple[str, ...] = (), names: tuple[str, ...] = (), *, without: tuple[str, ...] = ()
) -> Principal:
    return Principal(
        Capability.LIST, names, prefixes, None, excluded_names=without, excluded_prefixes=without
    )


def whole(space: OrderedMap, prefix: str, principal: Principal, count: int) -> list[str]:
    """All pages behind one another."""
    found: list[str] = []
    after, more = "", True
    while more:
        page, more, after = list_page(space, Listing(prefix, after, count_max=count, view=view_of(principal)))
        assert 1 <= len(page) <= count or not more
        found += [info.name for info in page]
    return found


words = st.text("ab/", max_size=4)


@given(
    st.sets(words.filter(bool), max_size=20), words, st.builds(lambda *parts: bearer(*map(tuple, parts[:2]),
    without=tuple(parts[2])), st.lists(words, max_size=3), st.lists(words, max_size=3),
    st.lists(words.filter(bool), max_size=2)), st.integers(1, 4),
)  # fmt: skip
def test_pages_hold_what_the_grant_covers_in_order(
    names: set[str], prefix: str, principal: Principal, count: int
) -> None:
    """Oracle: ask of each name whether the grant covers it."""
    space = journals(*names)

    assert whole(space, prefix, principal, count) == sorted(
        name for name in names if name.startswith(prefix) and principal.covers(name)
    )


def test_a_narrow_grant_looks_at_its_own() -> None:
    """Reproduced before: 500 lists of nothing beside 10,000 journals held the node up for 20 seconds."""
    space = journals(*[f"many/{number:04d}" for number in range(3000)], "mine/a", "mine/b")

    assert whole(space, "", bearer(("mine/",), ("many/0007",)), 100) == ["many/0007", "mine/a", "mine/b"]
    assert space.looked_at == 2
    assert whole(space, "", bearer(("",), without=("many/",)), 100) == ["mine/a", "mine/b"]
    assert space.looked_at <= 2 + 2 * CHUNK_COUNT


def test_a_page_of_everything_costs_its_own_length() -> None:
    """The first page of ten thousand journals must not cost what the whole list does."""
    space = journals(*[f"many/{number:04d}" for number in range(3000)])
    page, more, _ = list_page(space, Listing("many/", "many/1999", count_max=10, view=view_of(bearer(("",)))))

    assert ([page[0].name, page[-1].name], more) == (["many/2000", "many/2009"], True)
    assert space.looked_at == CHUNK_COUNT


def test_a_page_fits_into_a_frame_whatever_the_labels_are() -> None:
    """Reproduced before: a hundred journals with long labels made every list above them fail as too large."""
    labels = {f"label-{number}": "v" * 1000 for number in range(250)}
    space = journals(*[f"bomb/{number}" for number in range(5)], labels=labels)
    page, more, _ = list_page(space, Listing("", "", count_max=100, view=view_of(bearer(("",)))))

    assert (len(page), more) == (1, True)
    assert 2 * len(msgspec.json.encode(page[0].spec)) > PAGE_BYTES_MAX
    assert len(whole(space, "", bearer(("",)), 100)) == 5


def test_a_selector_takes_by_labels_and_name_and_a_page_looks_at_no_more_than_its_bound() -> None:
    """One that takes nothing must not hold the loop for ten thousand journals; the next page goes on."""
    space = journals(*[f"j/{number:05d}" for number in range(LOOKED_AT_MAX)], labels={"topic": "clicks"})
    tail = JournalSpec(JournalName("j/99999"), labels={"topic": "views"})
    pair = KeyValue(spec_key(tail.name), msgspec.json.encode(tail), Revision(1), Revision(1))
    space.apply([(pair.key, pair)])

    def pages(text: str) -> list[tuple[list[str], bool]]:
        selector = parse_selector(text)
        found, more, after = list[tuple[list[str], bool]](), True, ""
        while more:
            page, more, after = list_page(space, Listing("j/", after, count_max=5, selector=selector))
            found.append(([str(info.name) for info in page], more))
        return found

    assert pages("topic=views") == [([], True), (["j/99999"], False)]
    assert pages("topic=clicks,name:prefix=j/0000")[0] == ([f"j/{n:05d}" for n in range(5)], True)
    assert pages("!topic") == [([], True), ([], False)]


def test_a_page_compares_a_bounded_number_of_labels_and_terms() -> None:
    """Anybody who may list chooses the selector: 256 terms over 2,000 journals held a node for 0.3 to 3 s."""
    labels = {f"label{number}": "x" for number in range(100)}
    space = journals(*[f"j/{number:05d}" for number in range(500)], labels=labels)
    terms = ",".join(f"!other{number}" for number in range(255))
    listing = Listing("j/", count_max=1_000, selector=parse_selector(f"{terms},name=j/00499"))

    pages, page = 1, list_page(space, listing)
    assert not page.journals
    assert space.looked_at <= COMPARED_MAX // 300 + CHUNK_COUNT
    while page.has_more:
        pages, page = pages + 1, list_page(space, msgspec.structs.replace(listing, after=page.after))
    assert [info.name for info in page.journals] == ["j/00499"]
    assert pages <= 500 * 400 // COMPARED_MAX + 1
