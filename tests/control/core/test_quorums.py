"""Two quorums of the same acceptors have one in common, however many there are."""

from itertools import combinations

import pytest

from broadsheet.base.types import Incarnation, NodeId
from broadsheet.control.core.value import ACCEPTORS_MAX, Acceptor, AcceptorSets


@pytest.mark.parametrize("count", range(1, ACCEPTORS_MAX + 1))
def test_two_quorums_meet(count: int) -> None:
    """control.3: half of an even set is none. Sets become even where a member is only added, or removed."""
    members = tuple(Acceptor(NodeId(f"n{n}"), Incarnation(1)) for n in range(count))
    other = (*members[1:], Acceptor(NodeId("new"), Incarnation(1)))
    for sets in (AcceptorSets(old=members), AcceptorSets(old=members, new=other)):
        everyone = sets.members()
        for size in range(len(everyone) + 1):
            for votes in combinations(everyone, size):
                rest = [each for each in everyone if each not in votes]
                assert not (sets.is_quorum(votes) and sets.is_quorum(rest))
        assert sets.is_quorum(everyone)
    assert AcceptorSets(old=members).is_quorum(members[: count // 2 + 1])
    stranger = Acceptor(members[0].node, Incarnation(2))
    assert not AcceptorSets(old=members).is_quorum([stranger] * count)
