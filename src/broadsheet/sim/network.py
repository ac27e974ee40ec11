"""The datagram network of tier 1: messages are delayed, reordered, lost and doubled by their links.

A message goes to whoever lives at the name when it arrives; one to a dead node is lost. A paused node gets
it later.
"""

from collections.abc import Callable
from typing import Any

from broadsheet.base.types import NodeId
from broadsheet.sim.links import Links
from broadsheet.sim.world import Life, World


class Datagrams:
    """Messages between names."""

    def __init__(self, world: World, links: Links) -> None:
        self.world, self.links = world, links
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
