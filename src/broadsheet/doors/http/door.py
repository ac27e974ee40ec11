"""The door: binds the HTTP address, bounds connections and their time, and serves the pages (ADR 0004).

Nothing here needs a token, and nothing here says more than metrics do; beyond loopback it is refused unless
the node runs with `--insecure` (DESIGN 10).
"""

from collections.abc import Callable
from typing import Final

import msgspec

from broadsheet.access.exposure import check_exposure
from broadsheet.base.time import SECOND, Duration
from broadsheet.doors.http.exchange import Exchange, Page
from broadsheet.doors.status import Status
from broadsheet.errors import ConfigError
from broadsheet.observe.metrics import CONTENT_TYPE, Metrics
from broadsheet.ports import ByteProtocol, Timer, Timers, Transport
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.network import check_address
from broadsheet.runtime.role import Ports, Services
from broadsheet.runtime.scope import Scope

READ_BYTES: Final = 4096
CONNECTIONS_MAX: Final = 256
REQUEST_TIMEOUT: Final = Duration(10 * SECOND)
"""From the first byte of a connection to its last: a slow or silent client is cut off."""


class HTTPConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section `http` of the configuration."""

    address: str = "127.0.0.1:6680"
    """Where to listen; port 0 takes a free one."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        check_address("http.address", self.address)


class HTTPDoor:
    """The role `http`."""

    name = "http"

    async def start(self, scope: Scope, ports: Ports, config: HTTPConfig, services: Services) -> None:
        """Listen, and say where."""
        status, metrics = services.one(Status), services.one(Metrics)
        pages = {
            "/": lambda: Page(body=_front(status)),
            "/metrics": lambda: Page(body=metrics.page(), content_type=CONTENT_TYPE),
            "/healthz": lambda: _health(status),
        }
        open_count = [0]
        identity = services.one(Identity)
        check_exposure(self.name, config.address, is_insecure=identity.is_insecure)
        try:
            listener = await ports.network.listen(
                config.address, lambda: _Connection(pages, ports.timers, open_count)
            )
        except OSError as error:
            raise ConfigError(f"the http door cannot listen at {config.address}: {error.strerror}") from error
        scope.defer(listener.close)
        status.listens(self.name, listener.address)


class _Connection(ByteProtocol):
    """One connection: one exchange, then it closes."""

    def __init__(self, pages: dict[str, Callable[[], Page]], timers: Timers, open_count: list[int]) -> None:
        self._pages, self._timers, self._open_count = pages, timers, open_count
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._exchange = Exchange(self._page)
        self._transport: Transport | None = None
        self._timer: Timer | None = None

    def connection_made(self, transport: Transport) -> None:
        self._transport = transport
        self._open_count[0] += 1
        if self._open_count[0] > CONNECTIONS_MAX:
            transport.abort()
            return
        self._timer = self._timers.call_after(REQUEST_TIMEOUT, transport.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        answer = self._exchange.received(bytes(self._buffer[:nbytes]))
        if answer is not None and self._transport is not None:
            self._transport.write(answer)
            self._transport.close()

    def eof_received(self) -> bool | None:
        return None  # Close: whoever shuts down before asking gets no answer.

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_count[0] -= 1
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        """Nothing: there is one answer, and it is bounded."""

    def resume_writing(self) -> None:
        """Nothing either."""

    def _page(self, path: str) -> Page:
        page = self._pages.get(path)
        return Page(body=b"no such page\n", status=404) if page is None else page()


def _front(status: Status) -> bytes:
    found = status.read()
    doors = "".join(f"  {name}: {address}\n" for name, address in sorted(found.addresses.items()))
    first = f"Broadsheet {found.version}, node {found.node}, {found.state}\n"
    return f"{first}{doors}see /metrics and /healthz\n".encode()


def _health(status: Status) -> Page:
    found = status.read()
    return Page(
        body=msgspec.json.encode({"state": found.state, "node": found.node}) + b"\n",
        content_type="application/json",
        status=200 if found.state == "ready" else 503,
    )
