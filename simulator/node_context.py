"""Contexts of tier 1: what one boot of a node, and one client, may do in the simulated world.

A node's context ends with its life: sends, appends and timers of an ended life are ignored. Its logs outlive
it.
"""

from collections.abc import Callable, Coroutine, Generator, Mapping
from random import Random as RandomStream
from typing import Any, Final

from broadsheet.base.machine import Effect, Machine
from broadsheet.base.time import Duration, Instant
from broadsheet.base.types import NodeId
from broadsheet.observe.story import Story
from broadsheet.runtime.host import Host, Performers
from simulator.clock import NodeClock, SimTime, SimTimers
from simulator.entropy import Draws, stream
from simulator.log import LogStore, SimLog
from simulator.network import Datagrams
from simulator.trace import TracedStory
from simulator.world import Call, Life, World

Receiver = Callable[[NodeId, Any], None]
"""Gets (sender, message). Messages are frozen structs: they are passed by reference."""


class NodeContext:
    """One boot of one node."""

    def __init__(
        self,
        world: World,
        life: Life,
        clock: NodeClock,
        network: Datagrams,
        logs: LogStore,
        *,
        knobs: Mapping[str, int],
    ) -> None:
        self.world, self.life, self.knobs = world, life, knobs
        self.node, self.boot = NodeId(life.node), life.boot
        self.incarnation = logs.incarnation
        """Rises with each wipe: equal incarnations share their logs."""
        self.time, self.timers = SimTime(world, clock), SimTimers(world, life, clock)
        self.hosts: list[Host[Any, Any]] = []
        """For checks that look into machines; the machines of the current boot."""
        self.on_message: Receiver = _ignore
        """Set by the workload's `boot`: where this boot's messages go."""
        self._network, self._logs = network, logs

    def random(self, purpose: str) -> RandomStream:
        """Entropy of (seed, node, boot, purpose): new in each boot."""
        return stream(self.world.seed, self.node, self.boot, purpose)

    def host(
        self, machine: Machine[Any, Any], performers: Performers, *, name: str = "machine"
    ) -> Host[Any, Any]:
        """Host `machine`. An assertion of it, or of its `check()`, fails the run."""
        story = TracedStory(f"{self.node}#{self.boot}.{name}", self.world.trace)
        host: Host[Any, Any] = Host(
            machine,
            self._watched(performers),
            time=self.time,
            timers=self.timers,
            crash=self._crash,
            story=story,
        )
        self.hosts.append(host)
        self.world.soon(self.life, host.start)
        return host

    def _watched(self, performers: Performers) -> Performers:
        """`performers`, and moments before those effects that the plan names."""
        moments = self.world.moments
        named = {kind: f"effect.{kind.__name__}" for kind in performers}
        watched = [kind for kind, name in named.items() if name in moments.planned]

        def wrapped(kind: type[Effect]) -> Callable[[Any], None]:
            name, perform = named[kind], performers[kind]

            def reach_and_perform(effect: Effect) -> None:
                if moments.is_armed:
                    moments.reach(name)
                perform(effect)

            return reach_and_perform

        return {**performers, **{kind: wrapped(kind) for kind in watched}} if watched else performers

    def send(self, to: NodeId | str, message: object) -> None:
        """Send a datagram to a node or a client: delayed, reordered, sometimes lost or doubled."""
        if not self.life.is_dead:
            self._network.post(self.node, to, message)

    def log(self, name: str = "log") -> SimLog:
        """A durable log of records, as WAL gives it: `records` is what this boot recovered."""
        return self._logs.open(name, self.life)

    def exit(self, reason: str) -> None:
        """End this process on purpose, as one that may not go on does; it is started again later."""
        self._logs.exit(self.life, reason)

    def _crash(self, error: BaseException, story: Story) -> None:
        error.add_note("\n".join([f"story of {story.name}:", *story.lines()[-20:]]))
        self.world.fail(error)


def _ignore(_sender: NodeId, _message: object) -> None:
    """Nobody listens yet."""


TIMEOUT: Final = None


class _Wait:
    """What a client's coroutine awaits: resumed by the world with a value."""

    __slots__ = ("context",)

    def __init__(self, context: "ClientContext") -> None:
        self.context = context

    def __await__(self) -> Generator["_Wait", Any, Any]:
        return (yield self)


class ClientContext:
    """One client: a coroutine on the heap."""

    def __init__(self, world: World, name: str, network: Datagrams) -> None:
        self.world, self.name = world, name
        self.life = Life(name, 0)
        self.is_stopping = False
        """Set by the runner when the run is over: finish the operation at hand and return."""
        self.is_done = False
        self.waits_for = "nothing"
        """What it asked last, of whom, and since when, for a verdict on a hang."""
        self._network = network
        self._inbox: list[tuple[NodeId, Any]] = []
        self._work: Coroutine[Any, Any, None] | None = None
        self._timer: Call | None = None
        self._wants_message = False

    def random(self, purpose: str) -> RandomStream:
        """Entropy of (seed, client, purpose)."""
        return stream(self.world.seed, self.name, 0, purpose)

    def draws(self, purpose: str) -> Draws:
        """Cheap counter-based draws of (seed, client, purpose)."""
        return Draws(self.world.seed, self.name, 0, purpose)

    def now(self) -> Instant:
        """World time."""
        return Instant(self.world.now)

    def send(self, to: NodeId, message: object) -> None:
        """Send a datagram to a node."""
        self._network.post(self.name, to, message)

    async def receive(self, timeout: Duration) -> tuple[NodeId, Any] | None:
        """The next (sender, message), or None when `timeout` has passed."""
        if self._inbox:
            return self._inbox.pop(0)
        self._wants_message = True
        self._timer = self.world.at(self.world.now + timeout, self.life, self._resume, None)
        return await _Wait(self)  # type: ignore[no-any-return]  # The world resumes it with just that.

    async def request(
        self, to: NodeId, message: object, *, is_answer: Callable[[Any], bool], timeout: Duration
    ) -> Any | None:  # noqa: ANN401 - the domain's own message.
        """Send, and wait for the message that `is_answer`; others are dropped. None when time runs out."""
        self.send(to, message)
        self.waits_for = f"the answer of {to} to {message} since {self.world.now / 1e9:.6f} s"
        deadline = self.world.now + timeout
        while (left := deadline - self.world.now) > 0:
            got = await self.receive(Duration(left))
            if got is None:
                return None
            if is_answer(got[1]):
                return got[1]
        return None

    async def sleep(self, delay: Duration) -> None:
        """Do nothing for a while; messages that come meanwhile wait."""
        self._timer = self.world.at(self.world.now + delay, self.life, self._resume, None)
        await _Wait(self)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` from now on. The runner calls it."""
        self._work = work
        self.world.soon(self.life, self._resume, None)

    def on_message(self, sender: NodeId, message: object) -> None:
        """A datagram came. The network calls it."""
        self.world.trace.note(self.name, "got", sender, type(message).__name__, message)
        if not self._wants_message:
            self._inbox.append((sender, message))
            return
        if self._timer is not None:
            self._timer.cancel()
        self._resume((sender, message))

    def _resume(self, value: object) -> None:
        assert self._work is not None
        self._timer, self._wants_message = None, False
        try:
            self._work.send(value)
        except StopIteration:
            self.is_done = True
        except Exception as error:  # noqa: BLE001 - a client of ours is wrong, or found a violation.
            self.is_done = True
            self.world.fail(error)
