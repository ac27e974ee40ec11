"""Bugs planted in the wire and in front of it, hunted on the sans-IO state or by the workload in tier 2."""

from collections.abc import Callable
from typing import Any

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.access.principal import Principal
from broadsheet.errors import NotAllowed
from broadsheet.runtime.time import SystemTime
from broadsheet.wire import frame as f
from broadsheet.wire.events import Broken, RunReceived
from simulator.fuzz_server import LIMITS
from simulator.fuzz_sessions import good_session, run
from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited
from tests.wire.test_connection import feed, greeted


def _opened() -> Any:
    listener = greeted()
    feed(listener, good_session()[5], [])
    return listener


def _hunt_damaged_headers() -> str | None:
    """Runs behind a damaged header must not come out."""
    one = good_session()[7]
    for bit in range(12 * 8):
        data = bytearray(one * 40)
        data[len(one) * 30 + bit // 8] ^= 1 << bit % 8
        happened = feed(_opened(), bytes(data), [])
        count = sum(event.count for event in happened if isinstance(event, RunReceived))
        if count > 30 or not isinstance(happened[-1], Broken):
            return f"{count} runs came out, though the header of the 31st has bit {bit} flipped"
    return None


def _hunt_window() -> str | None:
    """Unanswered bytes above the window must end the connection."""
    big = run(5, bytes(200_000))
    happened = feed(_opened(), big * 12, [len(big) * number for number in range(12)])
    taken = sum(len(event.content) for event in happened if isinstance(event, RunReceived))
    return f"{taken} unanswered bytes were taken" if taken > LIMITS.window_bytes else None


def _hunt_message_window() -> str | None:
    """Messages above what was granted must end the connection."""
    listener = greeted()
    feed(listener, good_session()[2], [])
    message = f.header(f.MESSAGE, 3, payload_bytes=60_000) + bytes(60_000)
    happened = feed(listener, message * 30, [])
    return (
        None if isinstance(happened[-1], Broken) else f"{len(happened)} messages came through a full window"
    )


def _hunt_grants() -> str | None:
    """A name outside the grant must be refused."""
    authorizer = Authorizer(None, time=SystemTime())
    narrow = Principal(capabilities=EVERYTHING, names=("a/b",), prefixes=("mine/",), expires=None)
    for name in ("other/x", "mine", "a/bc", ""):
        try:
            authorizer.authorize(narrow, Capability.READ, name)
        except NotAllowed:
            continue
        return f"{name!r} was allowed"
    return None


def _forgets_unanswered(on_run: Callable[..., None]) -> Callable[..., None]:
    def forgetful(self: Any, stream: int, body: Any, payload: Any) -> None:
        self.streams[stream].unanswered_bytes = 0
        on_run(self, stream, body, payload)

    return forgetful


def _forgets_grants(on_message: Callable[..., None]) -> Callable[..., None]:
    def forgetful(self: Any, stream: int, body: Any, payload: Any) -> None:
        self.streams[stream].granted = LIMITS.window_bytes
        on_message(self, stream, body, payload)

    return forgetful


def _ignores_names(authorize: Callable[..., None]) -> Callable[..., None]:
    def lenient(self: Any, principal: Principal, capability: Capability, _name: str | None) -> None:
        authorize(self, principal, capability, None)

    return lenient


def _never_flushed(_: Callable[..., None]) -> Callable[..., None]:
    return lambda _self: None


def _repeats_everything(init: Callable[..., None]) -> Callable[..., None]:
    def eager(self: Any, *arguments: Any, **_said: bool) -> None:
        init(self, *arguments, is_idempotent=True)

    return eager


MUTANTS = [
    Mutant(
        "wire_sent_taken_for_unsent",
        "What was handed to the socket counts as never sent when the connection is lost (C2).",
        "broadsheet.wire.client:ClientConnection.on_flushed",
        _never_flushed,
        workload="wire",
        tier=Tier.SERVICES,
    ),
    Mutant(
        "wire_unknown_repeated",
        "A request that may have been done is sent again, idempotent or not (C1).",
        "broadsheet.wire.routed:_Attempts.__init__",
        _repeats_everything,
        workload="wire",
        tier=Tier.SERVICES,
    ),
    Mutant(
        "wire_header_crc_unchecked",
        "The header of a frame is believed without its checksum.",
        "broadsheet.wire.connection_machine:WireConnection.receive",
        edited("if crc32c(view[at : at + 12]) != crc:", "if False:"),
        hunt=_hunt_damaged_headers,
    ),
    Mutant(
        "wire_run_window_ignored",
        "A RUN stream's unanswered bytes are not counted.",
        "broadsheet.wire.listening_machine:ListenerConnection._on_run",
        _forgets_unanswered,
        hunt=_hunt_window,
    ),
    Mutant(
        "wire_message_window_ignored",
        "A STREAM's messages are not charged to its window.",
        "broadsheet.wire.connection_machine:WireConnection._on_message",
        _forgets_grants,
        hunt=_hunt_message_window,
    ),
    Mutant(
        "access_names_ignored",
        "The capability is checked, the name is not.",
        "broadsheet.access.authorizer:Authorizer.authorize",
        _ignores_names,
        hunt=_hunt_grants,
    ),
]
