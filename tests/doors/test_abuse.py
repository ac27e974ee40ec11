"""While one client does its worst, `/healthz` answers and others go on.

Time is measured on machines that do other things too, so the bounds here are far above what an idle machine
shows and far below what an unbounded client did (docs/operations/abuse.md). What is exact is counted, turn by
turn, in `tests/wire/test_turns.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.abuse.__main__ import prepared
from tests.doors.abuse.corners import SHAPES
from tests.doors.abuse.site import Seen, Site

SMOKE = ("goaway_flood", "rapid_reset", "list_flood", "silent_http")
HEALTH_MS_P50_MAX = 100.0
RSS_MIB_MAX = 700.0
APPENDS_MIN = 1.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One node for all attacks: none of them may leave it worse than it was."""
    with Site(Path(tmp_path_factory.mktemp("site"))) as made:
        prepared(made, others=300)
        yield made


def bearable(site: Site, seen: Seen) -> None:
    assert site.is_alive
    assert seen.health_ms_p50 <= HEALTH_MS_P50_MAX, seen
    assert seen.appends_per_second >= APPENDS_MIN, seen
    assert seen.rss_mib_max <= RSS_MIB_MAX, seen


@pytest.mark.parametrize("shape", SMOKE)
def test_the_worst_of_one_client_is_bearable(site: Site, shape: str) -> None:
    """The four that were worst: before, each stopped health or others for seconds, or for good (access.6)."""
    bearable(site, site.measure(site.attack(shape), 1.5))


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_to_be_a_burden_is_bearable(site: Site, shape: str) -> None:
    """Each shape, also those that docs/operations/abuse.md has no row for."""
    bearable(site, site.measure(site.attack(shape), 5.0))
