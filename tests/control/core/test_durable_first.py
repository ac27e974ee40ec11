"""Whatever an acceptor says, it still says after a crash at any moment (control.4)."""

from random import Random

import pytest

from broadsheet.base.time import Instant
from broadsheet.base.types import Incarnation, NodeId, Offset, Token
from broadsheet.control.core.acceptor import (
    AcceptorEvent,
    AcceptorMachine,
    FlushAsked,
    Memory,
    Persist,
    Persisted,
    PersistRefused,
    Send,
    encoded,
    remembered,
)
from broadsheet.control.core.messages import Accept, AcceptedBallot, Held, Prepare, Promised, Read, Request
from broadsheet.control.core.value import NO_BALLOT, Acceptor, AcceptorSets, Ballot, founding

NODES = tuple(NodeId(name) for name in "abc")
MEMBERS = tuple(Acceptor(node, Incarnation(1)) for node in NODES)
OWN = MEMBERS[0]
SETS = AcceptorSets(old=MEMBERS)
NOW = Instant(0)


class Life:
    """One acceptor on a log that makes its records durable one at a time."""

    def __init__(self) -> None:
        self.durable = [encoded(Memory(OWN, NO_BALLOT, None))]
        self.pending: list[Persist] = []
        self.count = 0
        self.machine = self._started()

    def _started(self) -> AcceptorMachine:
        return AcceptorMachine(self.memory(), next_offset=Offset(len(self.durable)))

    def memory(self) -> Memory:
        """What a crash now would leave."""
        memory = remembered(self.durable)
        assert memory is not None
        return memory

    def step(self, event: AcceptorEvent) -> None:
        effects = self.machine.step(event, NOW)
        self.machine.check()
        self.pending += [effect for effect in effects if isinstance(effect, Persist)]
        for effect in effects:
            if isinstance(effect, Send):
                self.count += 1
                self._stands(effect)

    def _stands(self, said: Send) -> None:
        memory, message = self.memory(), said.message
        accepted = NO_BALLOT if memory.accepted is None else memory.accepted.ballot
        match message:
            case Promised():
                assert memory.promised >= message.ballot, f"{message.ballot} is promised and not remembered"
                told = NO_BALLOT if message.accepted is None else message.accepted.ballot
                assert accepted >= told, f"the value of {told} is told and not remembered"
            case AcceptedBallot():
                assert accepted >= message.ballot, f"{message.ballot} is accepted and not remembered"
            case Held():
                assert accepted >= message.ballot, f"the value of {message.ballot} is told and not remembered"

    def sync(self) -> None:
        """The oldest record that is on its way becomes durable."""
        if self.pending:
            persist = self.pending.pop(0)
            assert persist.offset == len(self.durable)
            self.durable.append(persist.record)
            self.step(Persisted(persist.token))

    def refuse(self) -> None:
        """The log has no room for the newest record."""
        if self.pending:
            token: Token = self.pending.pop().token
            self.step(PersistRefused(token))

    def crash(self) -> None:
        self.pending = []
        self.machine = self._started()


def request(random: Random, counter: int) -> Request:
    ballot = Ballot(counter, random.choice(NODES), 1)
    value = founding(MEMBERS, f"{ballot}", addresses=(), document=f"{ballot}".encode())
    match random.randrange(3):
        case 0:
            return Prepare(ballot.node, ballot, OWN, ballot, random.choice((SETS, AcceptorSets())))
        case 1:
            return Accept(ballot.node, ballot, OWN, value, ballot, SETS)
        case _:
            return Read(ballot.node, (1, counter), NO_BALLOT)


@pytest.mark.parametrize("seed", range(60))
def test_what_an_acceptor_says_is_durable(seed: int) -> None:
    """Also of a request that is repeated, of a read, and where several records are on their way (code.3).

    Each answer is compared with what a crash at that moment would leave. A majority that forgets is none.
    """
    random, life = Random(seed), Life()
    asked: list[Request] = []
    for n in range(300):
        match random.randrange(12):
            case 0 | 1 | 2 | 3:
                asked.append(request(random, 1 + n // 20))  # So that several have the same counter.
                life.step(asked[-1])
            case 4 | 5 if asked:
                life.step(random.choice(asked[-8:]))
            case 6 | 7 | 8 | 9:
                life.sync()
            case 10 if random.random() < 0.3:
                life.crash()
            case 11 if random.random() < 0.3:
                random.choice((life.refuse, lambda: life.step(FlushAsked())))()
            case _:
                pass

    assert life.count > 50, f"{life.count} answers"


def test_an_answer_leaves_as_soon_as_its_own_record_is_durable() -> None:
    """Under load a later record is always on its way: whoever waited for that would wait for ever."""
    life = Life()
    for counter in (1, 2, 3):
        ballot = Ballot(counter, NODES[0], 1)
        life.step(Prepare(ballot.node, ballot, OWN, NO_BALLOT, AcceptorSets()))
    said = []
    while life.pending:
        life.sync()
        said.append(life.count)

    assert said == [1, 2, 3]
