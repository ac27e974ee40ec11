"""Troubles: stopped and unstored journals are counted as they change, and no scrape walks all journals."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.types import ByteOffset
from broadsheet.journal.core.spec import JournalSpec
from broadsheet.journal.spool_file import SpoolFile
from broadsheet.journal.troubles import Troubles
from simulator.disk import SimDisk
from tests.journal.crash_histories import NAME, Shelf, running


class Journal:
    """The fields that decide, and how often they were looked at."""

    def __init__(self) -> None:
        self.closed = [SpoolFile(SimDisk().open("spool", create=True), ByteOffset(0))]
        self.is_closed = self.is_bad = False
        self.is_listed = True
        self.looks = 0

    @property
    def has_stopped(self) -> bool:
        self.looks += 1
        return self.is_bad


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from(["bad", "good", "refused", "stored", "silent", "listed", "closed"])
    )
)


@given(CHANGES)
def test_the_counts_are_those_of_a_walk(changes: list[tuple[int, str]]) -> None:
    """Oracle: all journals that are open, looked at one by one."""
    troubles, journals = Troubles(), [Journal() for _ in range(3)]
    for number, change in changes:
        journal = journals[number]
        if change in ("bad", "good"):
            journal.is_bad = change == "bad"
        elif change == "closed":
            journal.is_closed = True
        elif change in ("silent", "listed"):
            journal.is_listed = change == "listed"
        else:
            journal.closed[0].unstored = "the store says no" if change == "refused" else ""
        troubles.judge(journal)
        open_ones = [each for each in journals if not each.is_closed]
        troubles.check(open_ones)

        assert troubles.stopped_count == sum(each.is_bad for each in open_ones)
        assert troubles.unstored_count == sum(
            bool(each.closed[0].unstored) or not each.is_listed for each in open_ones
        )


def test_a_journal_that_changed_unnoticed_is_found_by_the_check() -> None:
    """Whoever forgets to judge makes a metric and `doctor` wrong for good."""
    troubles, journal = Troubles(), Journal()
    troubles.judge(journal)
    troubles.check([journal])
    journal.is_bad = True
    with pytest.raises(AssertionError, match="1 journals became stopped"):
        troubles.check([journal])
    journal.is_bad, journal.closed[0].unstored = False, "the store says no"
    with pytest.raises(AssertionError, match="1 journals became unstored"):
        troubles.check([journal])


def test_to_count_looks_at_no_journal() -> None:
    """A walk of 10,000 journals held the loop for 48 ms and more, at each scrape."""
    troubles, journals = Troubles(), [Journal() for _ in range(100)]
    for journal in journals:
        journal.is_bad = True
        troubles.judge(journal)
        journal.looks = 0

    assert (troubles.stopped_count, troubles.unstored_count) == (100, 0)
    assert sum(each.looks for each in journals) == 0


class Files(list[SpoolFile]):
    """The closed files of a journal, and how often all of them were looked at."""

    walks = 0

    def __iter__(self) -> Iterator[SpoolFile]:
        self.walks += 1
        return super().__iter__()


async def test_the_status_of_a_sound_journal_looks_at_none_of_its_closed_files() -> None:
    """With 65,536 of them each call held the loop for 50 ms, and a connection may make 1,000 calls."""
    crashes = list[BaseException]()
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        replica = await node.broker.replica(NAME)
        replica.closed = files = Files()
        assert node.broker.status(NAME).state == "open"
        assert files.walks == 0

        replica.spool.unreadable = "a block is damaged"
        node.broker.troubles.judge(replica)
        assert node.broker.status(NAME).reason == "a block is damaged"
        assert files.walks > 0
    assert not crashes
