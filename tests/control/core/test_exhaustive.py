"""Every interleaving of ballots over a change of members: a swapped for d, {a,b,c} to {b,c,d}.

A model of the rules (control.6 and ADR 0050), small enough to visit every state: which acceptor promised and
accepted what, what each ballot's proposer has gathered and proposed. Messages may come in any order, or
never.
"""

from collections import deque
from itertools import pairwise, product
from typing import NamedTuple

import pytest

OLD, NEW = 0b0111, 0b1110
"""Acceptors a, b, c, d are bits 0 to 3."""


class Proposal(NamedTuple):
    """What a ballot proposes: its ancestors (ballots, its own last), and the acceptor sets that it holds."""

    line: tuple[int, ...]
    sets: tuple[int, ...]


class Ballot(NamedTuple):
    """How far a ballot's proposer is."""

    basis: int = -1
    """The ballot of the value whose sets it uses; -1 before it began."""
    promised: int = 0
    """Acceptors that promised."""
    latest: int = -1
    """The greatest accepted ballot among the promises."""
    holders: int = 0
    """Acceptors whose promise named `latest`."""
    proposal: Proposal | None = None
    accepted: int = 0
    """Acceptors that accepted its proposal."""


class State(NamedTuple):
    """Everything. Acceptors are (promised ballot, accepted ballot); -1 is none."""

    acceptors: tuple[tuple[int, int], ...]
    ballots: tuple[Ballot, ...]


def is_quorum(votes: int, sets: tuple[int, ...]) -> bool:
    return all((votes & members).bit_count() * 2 > members.bit_count() for members in sets)


def proposed(kind: str, base: Proposal, number: int, *, is_chosen: bool) -> Proposal | None:
    """What a proposer makes of `base`; None where it must have `base` chosen first, and here gives up."""
    line = (*base.line, number)
    if kind == "write":
        return Proposal(line, base.sets)
    if kind == "one write":
        return Proposal(line, (NEW,))
    if not is_chosen:
        return Proposal(line, base.sets)  # The same value again, under this ballot: so that it is chosen.
    return Proposal(line, {(OLD,): (OLD, NEW), (OLD, NEW): (NEW,)}.get(base.sets, base.sets))


class Model:
    """The rules, as steps from state to state."""

    def __init__(self, kinds: tuple[str, ...], begin: State) -> None:
        self.kinds, self.begin, self.fixed = kinds, begin, len(begin.ballots) - len(kinds)

    def following(self, state: State) -> list[State]:
        found: list[State] = []
        for number in range(self.fixed, len(state.ballots)):
            found += self._moves(state, number)
        return found

    def _moves(self, state: State, number: int) -> list[State]:
        ballot = state.ballots[number]
        if ballot.basis < 0:
            bases = dict.fromkeys(at for _, at in state.acceptors if 0 <= at < number)
            return [self._with(state, number, ballot._replace(basis=basis)) for basis in bases]
        if ballot.proposal is None:
            return [*self._promises(state, number), *self._proposes(state, number)]
        return self._accepts(state, number)

    def _refuses(self, state: State, who: int, number: int) -> bool:
        promised, accepted = state.acceptors[who]
        basis = state.ballots[number].basis
        if promised > number:
            return True
        return accepted > basis and self._sets(state, accepted) != self._sets(state, basis)

    def _promises(self, state: State, number: int) -> list[State]:
        found, ballot = [], state.ballots[number]
        for who in range(4):
            accepted = state.acceptors[who][1]
            asked = any(members >> who & 1 for members in self._sets(state, ballot.basis))
            if not asked or ballot.promised >> who & 1 or accepted < 0 or self._refuses(state, who, number):
                continue
            holders = ballot.holders if accepted <= ballot.latest else 0
            holders |= 1 << who if accepted >= ballot.latest else 0
            after = ballot._replace(
                promised=ballot.promised | 1 << who, latest=max(ballot.latest, accepted), holders=holders
            )
            found.append(self._with(state, number, after, who, (number, accepted)))
        return found

    def _proposes(self, state: State, number: int) -> list[State]:
        ballot = state.ballots[number]
        sets = self._sets(state, ballot.basis)
        if not is_quorum(ballot.promised, sets):
            return []
        latest = max(ballot.latest, ballot.basis)
        base = state.ballots[latest].proposal
        assert base is not None
        if base.sets != sets:
            return []  # It starts again under another ballot.
        is_chosen = latest == ballot.latest and is_quorum(ballot.holders, base.sets)
        proposal = proposed(self.kinds[number - self.fixed], base, number, is_chosen=is_chosen)
        return [self._with(state, number, ballot._replace(proposal=proposal))]

    def _accepts(self, state: State, number: int) -> list[State]:
        found, ballot = [], state.ballots[number]
        assert ballot.proposal is not None
        electors = (*self._sets(state, ballot.basis), *ballot.proposal.sets)
        for who in range(4):
            if ballot.accepted >> who & 1 or not any(members >> who & 1 for members in electors):
                continue
            if state.acceptors[who][1] < 0 and not any(m >> who & 1 for m in ballot.proposal.sets):
                continue  # Blank, and no member of what it is shown.
            if self._refuses(state, who, number):
                continue
            after = ballot._replace(accepted=ballot.accepted | 1 << who)
            found.append(self._with(state, number, after, who, (number, number)))
        return found

    def _sets(self, state: State, number: int) -> tuple[int, ...]:
        proposal = state.ballots[number].proposal
        assert proposal is not None
        return proposal.sets

    def _with(
        self, state: State, number: int, ballot: Ballot, who: int = -1, now: tuple[int, int] = (-1, -1)
    ) -> State:
        ballots = (*state.ballots[:number], ballot, *state.ballots[number + 1 :])
        if who < 0:
            return State(state.acceptors, ballots)
        return State((*state.acceptors[:who], now, *state.acceptors[who + 1 :]), ballots)

    def is_safe(self, state: State) -> bool:
        """Of two chosen values one is the other's ancestor."""
        chosen: list[tuple[int, ...]] = []
        for ballot in state.ballots:
            if ballot.proposal is None or ballot.basis < 0:
                continue
            sets = (*self._sets(state, ballot.basis), *ballot.proposal.sets)
            if is_quorum(ballot.accepted, sets):
                chosen.append(ballot.proposal.line)
        return all(later[: len(line)] == line for line, later in pairwise(chosen))


def visit(kinds: tuple[str, ...], begin: State) -> tuple[int, State | None]:
    """All states that can be reached, or the first that is not safe."""
    model = Model(kinds, begin)
    seen, queue = {begin: None}, deque([begin])
    while queue:
        state = queue.popleft()
        if not model.is_safe(state):
            return len(seen), state
        for after in model.following(state):
            if after not in seen:
                seen[after] = None
                queue.append(after)
    return len(seen), None


FOUNDED = Ballot(basis=0, proposal=Proposal((0,), (OLD,)), accepted=OLD)
JOINT = Ballot(basis=0, proposal=Proposal((0, 1), (OLD, NEW)), accepted=0b0110)
HALF = Ballot(basis=0, promised=0b0011, latest=0, holders=0b0011, proposal=Proposal((0, 1), (OLD, NEW)))
ONE = HALF._replace(proposal=Proposal((0, 1), (NEW,)))
OPEN = (Ballot(), Ballot())
BLANK = (-1, -1)
BEGINNINGS = {
    "founded": State(((0, 0), (0, 0), (0, 0), BLANK), (FOUNDED, *OPEN)),
    "both sets chosen": State(((0, 0), (1, 1), (1, 1), BLANK), (FOUNDED, JOINT, *OPEN)),
    "both sets at the new one only": State(
        ((1, 0), (1, 0), (0, 0), (1, 1)), (FOUNDED, HALF._replace(accepted=0b1000), *OPEN)
    ),
    "both sets at the old one only": State(
        ((1, 1), (1, 0), (0, 0), BLANK), (FOUNDED, HALF._replace(accepted=0b0001), *OPEN)
    ),
}


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=list(BEGINNINGS))
def test_two_writes_are_safe_in_every_interleaving(begin: State) -> None:
    """control.6: every mix of two more ballots that write or take the next step of the change."""
    total = 0
    for kinds in product(("write", "change"), repeat=2):
        count, bad = visit(kinds, begin)
        total += count
        assert bad is None, (kinds, bad)

    assert total > 1_000, f"{total} states"


def test_one_write_is_not_enough() -> None:
    """control.6: "One write is not enough": {c,d} and {a,b} do not meet."""
    half = State(((1, 0), (1, 0), (0, 0), (1, 1)), (FOUNDED, ONE._replace(accepted=0b1000), *OPEN))
    _, bad = visit(("write", "write"), half)

    assert bad is not None
    lines = [ballot.proposal.line for ballot in bad.ballots if ballot.proposal is not None]
    assert (0, 2) in lines
    assert (0, 1, 3) in lines
