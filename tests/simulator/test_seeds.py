"""The seeds of CI: for each machine 75 that count in tier 1, 25 in tier 2, 15 in tier 3, always the same."""

from pathlib import Path

import pytest

from simulator.campaign import run_campaign
from simulator.plan import Tier
from simulator.workloads import WORKLOADS

COUNTING = {Tier.MACHINES: 75, Tier.SERVICES: 25, Tier.CRASHES: 15}
EXAMPLES = ("canary", "register")
MACHINES = [(name, tier) for name, tier in WORKLOADS if name not in EXAMPLES]


@pytest.mark.parametrize(("name", "tier"), MACHINES, ids=lambda each: getattr(each, "name", each))
def test_enough_seeds_count_and_none_fails(name: str, tier: Tier, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing refused appears, and all make progress after healing."""
    total = run_campaign(name, tier, counting=COUNTING[tier], keep=tmp_path, jobs=2)

    assert total.failures == [], "\n".join(total.failures)
    assert total.counting >= COUNTING[tier], total.line()
    assert 2 * total.met_three >= total.counting, total.line()
    assert total.acked >= 100 * total.counting
