"""The status and the pages of a node cost a bounded part of its loop, whoever asks and however often."""

import io

from prometheus_client import Gauge

from broadsheet.base.time import MILLISECOND, Duration, Instant, WallTime
from broadsheet.base.types import NodeId
from broadsheet.doors.http.door import PAGE_AGE_MAX, PAGE_TIME_RATIO, Pages
from broadsheet.doors.readiness import Readiness
from broadsheet.doors.status import ROLES_AGE_MAX, ROLES_TIME_RATIO, Status, StatusMetrics
from broadsheet.observe.logs import Logger, Logs
from broadsheet.observe.metrics import Metrics
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


def logger() -> Logger:
    return Logs(io.StringIO(), wall=lambda: WallTime(0), is_console=False).of("node")


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


def test_a_page_that_takes_long_to_make_is_reused_for_longer() -> None:
    """`/metrics` needs no token, and counting 15,000 open files took 46 ms of each 146."""
    time, metrics, made = HandTime(), Metrics(version="1", node="n1"), 0

    def read() -> float:
        nonlocal made
        made += 1
        time.pass_ms(50)
        return 1.0

    Gauge("slow", "Slow to read.", registry=metrics.registry).set_function(read)
    identity = Identity(node=NodeId("n1"), cluster="c1", peers={NodeId("n1"): ""}, version="1")
    services = Services()
    status = Status(identity, time, services, lag=lambda: Duration(0))
    pages = Pages(status, Readiness(status, services, time, logger()), metrics, time)
    began = time.at

    for _ in range(10_000):
        assert b"slow 1.0" in pages.page("/metrics").body
        time.pass_ms(1)

    assert made > 2, "it is not reused for ever"
    assert (made - 1) * 50 * MILLISECOND * PAGE_TIME_RATIO <= time.at - began, "the loop has other work to do"


def test_what_a_paused_process_made_is_not_reused_for_long() -> None:
    """A node that was stopped for a minute while it made a page would tell it for half an hour."""
    time, services, metrics, pauses = HandTime(), Services(), Metrics(version="1", node="n1"), [60_000, 0, 0]
    told = iter([1, 2, 3])

    def read() -> dict[str, int]:
        time.pass_ms(pauses.pop(0))
        return {"number": next(told)}

    services.offer(StatusSource, StatusSource("role", read, {"number": "A number."}))
    identity = Identity(node=NodeId("n1"), cluster="c1", peers={NodeId("n1"): ""}, version="1")
    status = Status(identity, time, services, lag=lambda: Duration(0))
    metrics.registry.register(StatusMetrics(status))
    pages = Pages(status, Readiness(status, services, time, logger()), metrics, time)

    assert b"role_number 1.0" in pages.page("/metrics").body
    time.pass_ms(max(PAGE_AGE_MAX, ROLES_AGE_MAX) // MILLISECOND)

    assert b"role_number 2.0" in pages.page("/metrics").body
