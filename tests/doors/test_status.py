"""The status of a node costs a bounded part of its loop, whoever asks and however often."""

from broadsheet.base.time import MILLISECOND, Duration, Instant, WallTime
from broadsheet.base.types import NodeId
from broadsheet.doors.status import ROLES_TIME_RATIO, Status
from broadsheet.runtime.identity import Identity, StatusSource
from broadsheet.runtime.role import Services


class HandTime:
    """A clock that moves only by hand."""

    def __init__(self) -> None:
        self.at = 0

    def now(self) -> Instant:
        return Instant(self.at)

    def wall(self) -> WallTime:
        return WallTime(self.at)

    def boot_id(self) -> str:
        return "boot"

    def pass_ms(self, count: int) -> None:
        self.at += count * MILLISECOND


def test_a_status_that_takes_long_to_make_is_reused_for_longer() -> None:
    """Beside 10,000 journals it takes 50 ms and more on a busy machine, which was as long as it was reused.

    So each call of `node.status` made it anew, and one caller made `/healthz` wait for seconds.
    """
    time, services, made = HandTime(), Services(), 0

    def read() -> dict[str, int]:
        nonlocal made
        made += 1
        time.pass_ms(60)
        return {"journals": 10_000}

    services.offer(StatusSource, StatusSource("journals", read))
    identity = Identity(node=NodeId("n1"), cluster="c1", peers={NodeId("n1"): ""}, version="1")
    status = Status(identity, time, services, lag=lambda: Duration(0))
    time.pass_ms(1000)
    began = time.at

    for _ in range(10_000):
        assert status.read().roles == {"journals": {"journals": 10_000}}
        time.pass_ms(1)

    assert made > 2, "it is not reused for ever"
    assert (made - 1) * 60 * MILLISECOND * ROLES_TIME_RATIO <= time.at - began, (
        "the loop has other work to do"
    )
