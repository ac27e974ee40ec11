"""The host steps one machine at a time, performs effects in order, and ends the node when we are wrong."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.machine import Effect, Event, Tick
from broadsheet.base.time import MILLISECOND, SECOND, Duration, Instant
from broadsheet.errors import RemoteProtocolError
from broadsheet.observe.story import Story
from broadsheet.runtime.host import Host
from tests.runtime.echo import PATIENCE, Answer, Asked, Echo, Fenced, Forget, Held, Input, Output, Persist
from tests.support.hand import HandClock


class Bench:
    """An echo in a host, what it did, and how it ended. Its disk holds at once where `is_fast`."""

    def __init__(self, machine: Echo | None = None, *, is_fast: bool = False) -> None:
        self.clock = HandClock()
        self.machine = machine or Echo()
        self.performed: list[Effect] = []
        self.ends: list[tuple[BaseException, list[str]]] = []
        self.is_fast = is_fast
        self.on_persist: Callable[[Persist], None] = lambda _: None
        self.on_answer: Callable[[Answer], None] = lambda _: None
        self.host: Host[Input, Output] = Host(
            self.machine,
            {Persist: self._persist, Answer: self._answer, Forget: self.performed.append},
            time=self.clock,
            timers=self.clock,
            crash=lambda error, story: self.ends.append((error, story.lines())),
            story=Story("echo"),
        )

    def _persist(self, effect: Persist) -> None:
        self.performed.append(effect)
        self.on_persist(effect)
        if self.is_fast:
            self.host.deliver(Held(number=effect.number))

    def _answer(self, effect: Answer) -> None:
        self.performed.append(effect)
        self.on_answer(effect)


def asked(number: int) -> Asked:
    return Asked(number=number, content=b"%d" % number)


def persist(number: int) -> Persist:
    return Persist(number=number, content=b"%d" % number)


def answer(number: int) -> Answer:
    return Answer(number=number, content=b"%d" % number)


def test_effects_are_performed_in_order() -> None:
    """One cumulative `Held` answers all three, first asked first."""
    bench = Bench()
    for number in range(3):
        bench.host.deliver(asked(number))
    bench.host.deliver(Held(number=2))

    assert bench.performed == [persist(0), persist(1), persist(2), answer(0), answer(1), answer(2)]


def test_deliver_is_never_reentrant() -> None:
    """An event that an effect causes waits until all effects of its step are performed (code.1)."""
    bench = Bench(is_fast=True)
    bench.on_answer = lambda effect: (
        bench.host.deliver(asked(effect.number + 1)) if effect.number < 2 else None
    )
    bench.host.deliver(asked(0))

    assert bench.performed == [persist(0), answer(0), persist(1), answer(1), persist(2), answer(2)]
    assert bench.ends == []


def test_an_illegal_event_changes_nothing_and_is_raised_to_its_deliverer() -> None:
    """Whoever delivered it knows the stream that it came by, and drops that; the node goes on (code.5)."""
    bench = Bench()
    bench.host.deliver(asked(0))
    with pytest.raises(RemoteProtocolError, match="request 7 instead of 1"):
        bench.host.deliver(asked(7))
    bench.host.deliver(Held(number=0))

    assert bench.performed == [persist(0), answer(0)]
    assert bench.ends == []
    assert "refused" in bench.host.story.lines()[1]


def test_an_illegal_event_leaves_the_timer_armed() -> None:
    """Otherwise a peer could make the machine miss its deadline by talking nonsense."""
    bench = Bench()
    bench.host.deliver(asked(0))
    with pytest.raises(RemoteProtocolError):
        bench.host.deliver(asked(7))
    bench.clock.advance(PATIENCE)

    assert bench.performed == [persist(0), Forget(first=0)]


def test_an_illegal_event_of_our_own_making_ends_the_node() -> None:
    """There is no peer to blame and no stream to drop."""
    bench = Bench()
    bench.host.deliver(asked(0))
    bench.on_answer = lambda _: bench.host.deliver(asked(41))
    bench.host.deliver(Held(number=0))

    ((error, _),) = bench.ends
    assert isinstance(error, AssertionError)
    assert isinstance(error.__cause__, RemoteProtocolError)


def test_an_assertion_ends_the_node_with_the_story() -> None:
    """The story says how the machine came to where it was wrong."""
    bench = Bench()
    bench.host.deliver(asked(0))
    bench.host.deliver(Fenced())
    bench.host.deliver(Fenced())

    ((error, lines),) = bench.ends
    assert str(error) == "a fence falls once"
    assert lines == [
        "1000 Asked(number=0, content=b'0') [State.OPEN -> State.OPEN] -> [Persist(number=0, content=b'0')]",
        "1000 Fenced() [State.OPEN -> State.FENCED] -> [Forget(first=0)]",
    ]


def test_after_the_end_nothing_is_stepped() -> None:
    """A machine that is wrong must not write more, whatever still arrives."""
    bench = Bench()
    bench.host.deliver(Fenced())
    bench.host.deliver(Fenced())
    bench.host.deliver(asked(0))
    bench.clock.advance(SECOND)

    assert len(bench.ends) == 1
    assert bench.performed == [Forget(first=0)]
    assert bench.clock.pending() == []


class Broken(Echo):
    """Raises where a machine may not."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def step(self, event: Input, now: Instant) -> list[Output]:
        """As Echo, after a bug."""
        if self.where == "step":
            raise KeyError("a bug of ours")
        return super().step(event, now)

    def deadline(self) -> Instant | None:
        """As Echo, after a bug."""
        if self.where == "deadline":
            raise ZeroDivisionError("a bug of ours")
        return super().deadline()

    def check(self) -> None:
        """As Echo, after a bug."""
        assert self.where != "check", "a bug of ours"


@pytest.mark.parametrize("where", ["step", "deadline", "check"])
def test_any_other_error_of_a_machine_ends_the_node(where: str) -> None:
    """Only a protocol error promises that nothing changed; after any other the state may be half of two."""
    bench = Bench(Broken(where))
    bench.host.deliver(asked(0))

    ((error, _),) = bench.ends
    assert "a bug of ours" in str(error)


def test_an_error_of_a_performer_ends_the_node_even_if_it_calls_itself_a_protocol_error() -> None:
    """The effects after it would be lost, and the machine believes they were done."""
    bench = Bench()

    def fail(_: Answer) -> None:
        raise RemoteProtocolError("from a performer")

    bench.on_answer = fail
    bench.host.deliver(asked(0))
    bench.host.deliver(Held(number=0))

    ((error, _),) = bench.ends
    assert isinstance(error, RemoteProtocolError)


def test_the_deadline_is_kept_by_one_timer() -> None:
    """However often the deadline moves there is one timer, and it is never late."""
    bench = Bench()
    for number in range(5):
        bench.host.deliver(asked(number))
        bench.clock.advance(Duration(10 * MILLISECOND))
        bench.host.deliver(Held(number=number))
        assert len(bench.clock.pending()) == 1
    bench.host.deliver(asked(5))
    bench.clock.advance(Duration(PATIENCE - 1))
    asked_only = list(bench.performed)
    bench.clock.advance(Duration(1))

    assert bench.performed == [*asked_only, Forget(first=5)]
    assert asked_only[-1] == persist(5)


class Set(Event, frozen=True):
    """The alarm was set to `at`."""

    at: Instant


class Alarm:
    """Notes when it was ticked."""

    def __init__(self) -> None:
        self.at: Instant | None = None
        self.ticked: list[Instant] = []

    def step(self, event: Set | Tick, now: Instant) -> list[Effect]:
        """Set it, or note the tick and unset it."""
        self.at = event.at if isinstance(event, Set) else None
        if isinstance(event, Tick):
            self.ticked.append(now)
        return []

    def deadline(self) -> Instant | None:
        """When it is set to."""
        return self.at

    def check(self) -> None:
        """Nothing can be wrong."""


@pytest.mark.parametrize(
    ("settings", "ticked"),
    [
        ([5_000, 3_000], [3_000]),
        ([3_000, 5_000], [5_000]),
        ([5_000, 3_000, 4_000], [4_000]),
        ([500], [1_000]),
    ],
)
def test_a_machine_is_ticked_at_its_latest_word_on_the_deadline(
    settings: list[int], ticked: list[int]
) -> None:
    """An earlier deadline moves the timer; a later one is not answered early; a past one at once."""
    clock, alarm = HandClock(), Alarm()
    host: Host[Set, Effect] = Host(
        alarm,
        {},
        time=clock,
        timers=clock,
        crash=lambda error, _: pytest.fail(str(error)),
        story=Story("alarm"),
    )
    for setting in settings:
        host.deliver(Set(at=Instant(setting)))
    clock.advance(SECOND)

    assert alarm.ticked == ticked


def test_a_first_deadline_is_armed_at_the_start() -> None:
    """A machine that recovered with work to do is woken without an event."""
    machine = Echo()
    machine.step(asked(0), Instant(1_000))
    bench = Bench(machine)
    bench.host.start()
    bench.clock.advance(PATIENCE)

    assert bench.performed == [Forget(first=0)]


def test_a_deadline_that_never_moves_ends_the_node() -> None:
    """A machine that is due again at once, for ever, would take the loop with it."""

    class Stuck(Echo):
        def deadline(self) -> Instant | None:
            return Instant(1_000)

    bench = Bench(Stuck())
    bench.host.start()
    bench.clock.advance(Duration(1))

    ((error, _),) = bench.ends
    assert "1000 ticks left the deadline at 1000" in str(error)


def test_a_closed_host_is_silent() -> None:
    """Late answers of the disk and the network come after shutdown too."""
    bench = Bench(is_fast=True)
    bench.on_answer = lambda _: bench.host.close()
    bench.host.deliver(asked(0))
    bench.host.deliver(asked(1))
    bench.host.start()
    bench.host.close()
    bench.clock.advance(SECOND)

    assert bench.performed == [persist(0), answer(0)]
    assert bench.ends == []


def test_a_host_that_is_closed_by_an_effect_steps_nothing_that_its_effects_caused() -> None:
    """Its log and its connections are gone by then."""
    bench = Bench(is_fast=True)
    bench.host.deliver(asked(0))
    bench.on_persist = lambda _: bench.host.close()
    bench.host.deliver(asked(1))

    assert bench.performed == [persist(0), answer(0), persist(1)]


@given(st.lists(st.tuples(st.sampled_from(["ask", "hold", "nonsense", "wait"]), st.integers(0, 3))))
def test_any_schedule_answers_each_request_once_in_order(script: list[tuple[str, int]]) -> None:
    """Oracle: what was asked and held is answered, what waited too long is forgotten, nothing twice."""
    bench = Bench()
    asked_count = 0
    for action, number in script:
        match action:
            case "ask":
                bench.host.deliver(asked(asked_count))
                asked_count += 1
            case "hold" if asked_count:
                bench.host.deliver(Held(number=max(0, asked_count - 1 - number)))
            case "nonsense":
                with pytest.raises(RemoteProtocolError):
                    bench.host.deliver(asked(asked_count + 1 + number))
            case _:
                bench.clock.advance(Duration(number * 20 * MILLISECOND))

    answered = [effect.number for effect in bench.performed if isinstance(effect, Answer)]
    assert answered == sorted(set(answered))
    assert [effect for effect in bench.performed if isinstance(effect, Persist)] == [
        persist(number) for number in range(asked_count)
    ]
    assert bench.ends == []
