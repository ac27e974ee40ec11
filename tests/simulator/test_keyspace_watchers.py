"""Watchers of the simulated key space: a mirror that an update does not follow from is told."""

import pytest

from broadsheet.base.types import Revision
from broadsheet.keyspace.core.transaction import KeyValue
from broadsheet.keyspace.port import Change, Update
from simulator.workload import Violation
from simulator.workloads.keyspace_watchers import Mirror


def pair(key: str, created: int, modified: int) -> KeyValue:
    return KeyValue(key, b"", Revision(created), Revision(modified))


def put(key: str, created: int, at: int) -> Update:
    return Update(Revision(at), (Change(key, pair(key, created, at)),))


def mirror() -> Mirror:
    found = Mirror("k")
    found.apply(Update(Revision(4), (Change("k1", pair("k1", 2, 3)),), is_reload=True))
    return found


def test_a_mirror_follows_the_updates_of_its_prefix() -> None:
    """An update changes keys, deletes them, or only tells how far the watch has come."""
    it = mirror()
    it.apply(put("k1", 2, 5))
    it.apply(put("k2", 6, 6))
    it.apply(Update(Revision(7), (Change("k1", None),)))
    it.apply(Update(Revision(9), ()))

    it.compare([pair("k2", 6, 6)])
    assert it.revision == 9


@pytest.mark.parametrize(
    "wrong",
    [
        put("k1", 2, 4),
        put("k1", 5, 5),
        put("k2", 2, 5),
        put("j1", 5, 5),
        Update(Revision(5), (Change("k2", None),)),
        Update(Revision(5), (Change("k1", pair("k1", 2, 6)),)),
        Update(Revision(3), (), is_reload=True),
        Update(Revision(5), (Change("k2", pair("k2", 5, 5)), Change("k1", pair("k1", 2, 5)))),
    ],
)
def test_an_update_that_does_not_follow_is_told(wrong: Update) -> None:
    """simulation.9: a checker that cannot fail sees nothing."""
    with pytest.raises(Violation):
        mirror().apply(wrong)


def test_a_mirror_that_differs_is_told() -> None:
    """A watcher that has missed a change is up to date by its revision, and not by its keys."""
    with pytest.raises(Violation, match="k2"):
        mirror().compare([pair("k1", 2, 3), pair("k2", 4, 4)])
