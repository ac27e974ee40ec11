"""The datagram network: what was sent long ago may come again, to another boot too."""

from typing import Any

from simulator.links import Links, Profile
from simulator.network import Datagrams
from simulator.trace import Trace
from simulator.world import Life, World

SECOND = 1_000_000_000


class Pair:
    """Two names, and what the first one got, by boot."""

    def __init__(self, profile: Profile) -> None:
        self.world = World(1, Trace())
        self.network = Datagrams(self.world, Links(1, profile), ("a", "b"))
        self.got: dict[int, list[object]] = {}
        self.boot("a", 1)
        self.boot("b", 1)

    def boot(self, name: str, boot: int) -> None:
        def receive(_sender: str, message: Any) -> None:
            if name == "a":
                self.got.setdefault(boot, []).append(message)

        self.network.attach(name, Life(name, boot), receive)

    def post(self, source: str, target: str, message: str) -> None:
        self.network.post(source, target, message)
        self.world.run(self.world.now + SECOND // 10)


def test_a_new_boot_that_asks_the_same_gets_the_answer_of_the_old_one() -> None:
    """Whoever tells boots apart by nothing takes it for its own: a round without a nonce, a reused number."""
    pair = Pair(Profile(echo_ppm=1_000_000))
    pair.post("b", "a", "first answer")
    pair.post("b", "a", "second answer")
    pair.boot("a", 2)
    for _ in range(40):
        pair.post("a", "b", "question")

    assert "first answer" in pair.got[2]


def test_a_straggler_comes_after_a_restart() -> None:
    """Up to tens of seconds later: late and repeated messages are normal, whoever lives there by then."""
    pair = Pair(Profile(straggle_ppm=1_000_000))
    for number in range(20):
        pair.network.post("b", "a", f"message {number}")
    pair.world.run(SECOND // 100)
    pair.boot("a", 2)
    pair.world.run(30 * SECOND)

    assert pair.got[2]
    assert len(pair.got[1]) + len(pair.got[2]) == 40


def test_what_clients_send_is_not_brought_back() -> None:
    """Their calls go over connections, which repeat nothing."""
    pair = Pair(Profile(straggle_ppm=1_000_000, echo_ppm=1_000_000))
    pair.network.post("client0", "a", "call")
    pair.world.run(30 * SECOND)

    assert pair.got[1] == ["call"]
