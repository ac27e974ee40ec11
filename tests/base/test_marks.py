"""Marks prove where a test went; buggify asks only where somebody listens."""

from broadsheet.base import buggify, marks


def test_a_mark_counts_its_passages() -> None:
    """A test asserts that it hit what it is about."""
    before = marks.count("test.mark")
    marks.hit("test.mark")
    marks.hit("test.mark")

    assert marks.count("test.mark") == before + 2
    assert marks.counts()["test.mark"] == before + 2
    assert list(marks.counts()) == sorted(marks.counts())


def test_production_never_does_the_unlikely_thing() -> None:
    """Without a chooser every site says no; with one it decides by name."""
    assert not buggify.buggify("wal.sync.slow")
    buggify.install(lambda site: site == "wal.sync.slow")
    try:
        assert buggify.buggify("wal.sync.slow")
        assert not buggify.buggify("wal.other")
    finally:
        buggify.install(None)
    assert not buggify.buggify("wal.sync.slow")
