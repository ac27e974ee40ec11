"""The blocking client offers what the asynchronous one does."""

import inspect

import pytest

from broadsheet.client_sync import SyncJournals
from broadsheet.journal.client import Journals

OWN = ("append", "read")
"""Written out: what they take may be an iterator of the caller's, and so is what they give."""
INNER = ("begin_append", "close")
"""For the blocking client itself: it offers what they are for."""


def methods(kind: type) -> dict[str, object]:
    return {name: each for name, each in vars(kind).items() if not name.startswith("_") and callable(each)}


def test_every_method_can_be_called_without_a_loop() -> None:
    """A method that was added to one client only would be missed by programs without a loop."""
    assert sorted(methods(SyncJournals)) == sorted(set(methods(Journals)) - set(INNER))


@pytest.mark.parametrize("name", sorted(set(methods(SyncJournals)) - set(OWN)))
def test_it_takes_the_same_arguments_and_tells_the_same(name: str) -> None:
    """Documentation is looked up where one stands, and a keyword moved in one must move in the other."""
    blocking, asynchronous = getattr(SyncJournals, name), getattr(Journals, name)

    assert inspect.signature(blocking) == inspect.signature(asynchronous)
    assert blocking.__doc__ == asynchronous.__doc__
    assert not inspect.iscoroutinefunction(blocking)


@pytest.mark.parametrize("name", OWN)
def test_what_is_written_out_has_the_same_arguments(name: str) -> None:
    """They are the only ones that could part."""
    blocking, asynchronous = getattr(SyncJournals, name), getattr(Journals, name)

    assert list(inspect.signature(blocking).parameters) == list(inspect.signature(asynchronous).parameters)
