"""The key space in tier 3: histories are judged, and broken promises are told."""

from broadsheet.base.types import Revision
from broadsheet.keyspace.core.transaction import KeyValue
from simulator.crash_episode import CrashEpisode
from simulator.plan import Tier
from simulator.runner import plan_of, run_seed
from simulator.workloads.keyspace_crashes import KeyspaceCrashes, KeyspaceHistories


def test_a_history_of_the_key_space_is_judged_the_same_each_time() -> None:
    """simulation.1: a failure that does not come again helps nobody."""
    one, again = (run_seed("keyspace", Tier.CRASHES, 5) for _ in range(2))

    assert one.violation is None
    assert one.digest == again.digest
    assert one.is_counting


def test_a_map_that_breaks_a_promise_is_told() -> None:
    """simulation.9: a checker that cannot fail sees nothing."""
    it = KeyspaceHistories(CrashEpisode(plan_of("keyspace", Tier.CRASHES, 0), KeyspaceCrashes()))
    it.note(("a", "b"), ())
    it.note((), ("a",))
    a, b = (KeyValue(key, b"0 ", Revision(1), Revision(1)) for key in "ab")
    later = KeyValue("a", b"0 ", Revision(1), Revision(2))
    answered = ("answered", 1, 0)

    assert it.judge([a, b], 1, [answered]) is None
    assert it.judge([b], 2, [answered]) is None, "the deletion may have been made"
    assert it.judge([], 0, [answered]) is not None
    assert it.judge([], 0, [answered], firm_from=1) is None, "damage may have taken it"
    assert it.judge([a], 1, [answered]) is not None
    assert it.judge([a, b], 1, [("refused", 0)]) is not None
    assert it.judge([later, b], 2, [answered]) is not None
    assert it.judge([a, b], 0, []) is not None
