"""The datagram network of tier 1: messages are delayed, reordered, lost and doubled by their links.

A message goes to whoever lives at the name when it arrives; one to a dead node is lost. A paused node gets
it later. Between the names that the workload gives, old messages come back: a *straggler* is a copy that
comes up to tens of seconds later; an *echo* is an earlier message of the other direction, brought back by a
new one: from another boot of the receiver, the one that came in the same place, so that whoever asks the
same again after a restart gets the old answer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from broadsheet.base.types import NodeId
from simulator.links import Link, Links
from simulator.world import Life, World

STRAGGLE_NS: Final = 10_000_000
"""How late a straggler is at least; at most 2**11 times as late."""
RECENT_MAX: Final = 64
"""How many messages of a direction may come back from any time."""
FIRST_MAX: Final = 16
"""How many of the first messages of each boot of the receiver may come back in their place."""


class _Memory:
    """What went in one direction."""

    __slots__ = ("boots", "recent")

    def __init__(self) -> None:
        self.recent: deque[object] = deque(maxlen=RECENT_MAX)
        self.boots: list[tuple[int, list[object]]] = []
        """Of each boot of the receiver, which one it was, and the first messages."""

    def keep(self, boot: int, message: object) -> None:
        """Remember `message`, sent to that boot."""
        self.recent.append(message)
        if not self.boots or self.boots[-1][0] != boot:
            self.boots.append((boot, []))
        firsts = self.boots[-1][1]
        if len(firsts) < FIRST_MAX:
            firsts.append(message)

    def again(self, bits: int, boot: int, place: int) -> object | None:
        """A message of the same place in an earlier boot, or any recent one; None where there is none."""
        earlier = [firsts for each, firsts in self.boots if each != boot and len(firsts) > place]
        if earlier and place < FIRST_MAX and bits & 7:
            return earlier[-1 if bits & 8 else (bits >> 4) % len(earlier)][place]
        return self.recent[(bits >> 4) % len(self.recent)] if self.recent else None


class Datagrams:
    """Messages between names."""

    def __init__(self, world: World, links: Links, repeating: Sequence[str] = ()) -> None:
        """Begin.

        Args:
            repeating: between these names old messages may come back.
        """
        self.world, self.links = world, links
        self._repeating = dict.fromkeys(repeating)
        self._memories: dict[tuple[str, str], _Memory] = {}
        self._receivers: dict[str, tuple[Life, Callable[[NodeId, Any], None]]] = {}

    def attach(self, name: str, life: Life, receive: Callable[[NodeId, Any], None]) -> None:
        """From now on what comes for `name` goes to `receive`, as long as `life` lasts."""
        self._receivers[name] = (life, receive)

    def post(self, source: str, target: str, message: object) -> None:
        """Send. One draw decides loss, doubling and delay."""
        link = self.links.link(source, target)
        bits = link.draws.bits()
        if link.cuts:
            return
        drop = link.profile.drop_ppm + link.drop_ppm
        if drop and bits % 1_000_000 < drop:
            return
        world = self.world
        world.at(world.now + link.delay(bits >> 20), None, self._deliver, link, source, target, message)
        double = link.profile.duplicate_ppm + link.duplicate_ppm
        if double and (bits >> 40) % 1_000_000 < double:
            again = link.delay(link.draws.bits() >> 20)
            world.at(world.now + again, None, self._deliver, link, source, target, message)
        if link.profile.straggle_ppm or link.profile.echo_ppm:
            self._bring_back(link, source, target, message)

    def _bring_back(self, link: Link, source: str, target: str, message: object) -> None:
        """Perhaps send a straggler of this message, or an echo of an older one to its sender."""
        if source not in self._repeating or target not in self._repeating:
            return
        world, bits = self.world, link.draws.bits()
        if bits % 1_000_000 < link.profile.straggle_ppm:
            late = STRAGGLE_NS + (STRAGGLE_NS << (bits >> 20) % 11) * (1 + (bits >> 40) % 1024) // 1024
            world.at(world.now + late, None, self._deliver, link, source, target, message)
        mine = self._memories.setdefault((source, target), _Memory())
        theirs = self._memories.setdefault((target, source), _Memory())
        mine.keep(self._boot(target), message)
        bits = link.draws.bits()
        if bits % 1_000_000 < link.profile.echo_ppm:
            place = self._place(source, target)
            old = theirs.again(bits >> 20, self._boot(source), place)
            if old is not None:
                back = self.links.link(target, source)
                world.at(world.now + back.delay(bits >> 40), None, self._deliver, back, target, source, old)

    def _boot(self, name: str) -> int:
        """Which boot of `name` is the current or the last."""
        found = self._receivers.get(name)
        return 0 if found is None else found[0].boot

    def _place(self, source: str, target: str) -> int:
        """How many messages `target` has sent to this boot of `source`, as far as it is remembered."""
        boots = self._memories[(target, source)].boots
        return len(boots[-1][1]) if boots and boots[-1][0] == self._boot(source) else 0

    def _deliver(self, link: Any, source: str, target: str, message: object) -> None:  # noqa: ANN401
        if link.cuts:
            return  # What was on its way when the link was cut is lost with it.
        found = self._receivers.get(target)
        if found is None or found[0].is_dead:
            return
        life, receive = found
        if life.is_paused:
            self.world.soon(life, self._receive, life, receive, source, message)
            return
        self._receive(life, receive, source, message)

    def _receive(
        self, life: Life, receive: Callable[[NodeId, Any], None], source: str, message: object
    ) -> None:
        self.world.trace.counts.messages += 1
        self.world.act_as(life, receive, NodeId(source), message)
