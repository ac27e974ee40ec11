"""The door: binds the HTTP address, bounds connections and their time, and serves the pages (ADR 0004).

Nothing here needs a token, and nothing here says more than metrics do; beyond loopback it is refused unless
the node runs with `--insecure` (access.1).
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from broadsheet.access.exposure import check_exposure
from broadsheet.base.time import MILLISECOND, SECOND, Duration, Instant
from broadsheet.doors.http.exchange import Exchange, Page
from broadsheet.doors.status import State, Status
from broadsheet.errors import ConfigError
from broadsheet.observe.metrics import CONTENT_TYPE, Metrics
from broadsheet.ports import ByteProtocol, Time, Timer, Timers, Transport
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.network import check_address
from broadsheet.runtime.role import Ports, Services
from broadsheet.runtime.scope import Scope

READ_BYTES: Final = 4096
CONNECTIONS_MAX: Final = 256
"""Of these, no more than a sixteenth of the files that the process may open."""
TURN_READS_MAX: Final = 16
"""Reads that are looked at in one turn of the loop: about a millisecond of work."""
PAGE_AGE_MAX: Final = Duration(100 * MILLISECOND)
"""A page that costs more than a few microseconds is shown again for so long."""
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
        count_max = min(CONNECTIONS_MAX, max(1, ports.open_files_max // 16))
        hall = Hall(_Pages(status, metrics, ports.time), ports.timers, count_max=count_max)
        identity = services.one(Identity)
        check_exposure(self.name, config.address, is_insecure=identity.is_insecure)
        try:
            listener = await ports.network.listen(config.address, lambda: Connection(hall))
        except OSError as error:
            raise ConfigError(f"the http door cannot listen at {config.address}: {error.strerror}") from error
        scope.defer(listener.close)
        status.listens(self.name, listener.address)


class PageSource(Protocol):
    """Whatever has pages."""

    def page(self, path: str) -> Page:
        """The page at `path`."""
        ...


class _Pages:
    """The pages by their paths; a costly one is made once in `PAGE_AGE_MAX`, however often asked for."""

    def __init__(self, status: Status, metrics: Metrics, time: Time) -> None:
        self._time = time
        self._makers: dict[str, tuple[Callable[[], Page], Duration]] = {
            "/": (lambda: Page(body=_front(status)), PAGE_AGE_MAX),
            "/metrics": (lambda: Page(body=metrics.page(), content_type=CONTENT_TYPE), PAGE_AGE_MAX),
            "/healthz": (lambda: _health(status), Duration(0)),
        }
        self._made: dict[str, tuple[Instant, Page]] = {}

    def page(self, path: str) -> Page:
        """The page at `path`."""
        maker, age_max = self._makers.get(path, (None, Duration(0)))
        if maker is None:
            return Page(body=b"no such page\n", status=404)
        now = self._time.now()
        made = self._made.get(path)
        if made is not None and now < made[0] + age_max:
            return made[1]
        page = maker()
        if age_max:
            self._made[path] = self._time.now(), page
        return page


class Hall:
    """The connections of the door: who has a place, and whose bytes are looked at in this turn.

    Where all places are taken, the source with the most connections loses its oldest, whatever it is doing:
    an honest request is answered within milliseconds, so the oldest connection has none. In one turn of the
    loop `TURN_READS_MAX` reads are looked at; who comes later waits in order, and is not read meanwhile.
    """

    def __init__(self, pages: PageSource, timers: Timers, *, count_max: int = CONNECTIONS_MAX) -> None:
        self.pages, self.timers, self.count_max = pages, timers, count_max
        self.displaced = 0
        self._sources: dict[str, dict[Connection, None]] = {}
        self._count = self._reads = 0
        self._waiting: dict[Connection, None] = {}
        self._is_armed = False

    def arrive(self, connection: "Connection") -> None:
        """Count one in; the oldest of who has most may lose its place."""
        self._sources.setdefault(connection.source, {})[connection] = None
        self._count += 1
        if self._count > self.count_max:
            crowd = max(self._sources.values(), key=len)
            oldest = next(iter(crowd))
            self.leave(oldest)
            self.displaced += 1
            oldest.abort()

    def leave(self, connection: "Connection") -> None:
        """It is gone, or about to be."""
        self._waiting.pop(connection, None)
        crowd = self._sources.get(connection.source)
        if crowd is None or connection not in crowd:
            return
        del crowd[connection]
        self._count -= 1
        if not crowd:
            del self._sources[connection.source]

    def look(self, connection: "Connection") -> bool:
        """Whether its bytes may be looked at now; else it waits and is told when."""
        if not self._is_armed:
            self._is_armed = True
            self.timers.call_soon(self._next)
        if self._waiting or self._reads >= TURN_READS_MAX:
            self._waiting[connection] = None
            return False
        self._reads += 1
        return True

    def _next(self) -> None:
        self._is_armed, self._reads = False, 0
        if not self._waiting:
            return
        self._is_armed = True
        self.timers.call_soon(self._next)
        while self._waiting and self._reads < TURN_READS_MAX:
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            self._reads += 1
            connection.read()


class Connection(ByteProtocol):
    """One connection: one exchange, then it closes."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self.source = ""
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._received = 0
        self._exchange = Exchange(hall.pages.page)
        self._transport: Transport | None = None
        self._timer: Timer | None = None

    def connection_made(self, transport: Transport) -> None:
        """The connection stands."""
        self._transport = transport
        info: Callable[[str], Any] | None = getattr(transport, "get_extra_info", None)
        name = info("peername") if info is not None else None
        self.source = str(name[0]) if isinstance(name, tuple) and name else ""
        self._timer = self._hall.timers.call_after(REQUEST_TIMEOUT, transport.abort)
        self._hall.arrive(self)

    def abort(self) -> None:
        """Another one needs its place."""
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Look at what came, now or when it is its turn."""
        self._received = nbytes
        if self._hall.look(self):
            self.read()
        elif self._transport is not None:
            self._transport.pause_reading()

    def read(self) -> None:
        """Look at what was received."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        answer = self._exchange.received(bytes(self._buffer[: self._received]))
        self._received = 0
        if answer is not None:
            transport.write(answer)
            transport.close()
        else:
            transport.resume_reading()

    def eof_received(self) -> bool | None:
        """Close: whoever shuts down before asking gets no answer."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._hall.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        """Nothing: there is one answer, and it is bounded."""

    def resume_writing(self) -> None:
        """Nothing either."""


def _front(status: Status) -> bytes:
    found = status.read()
    doors = "".join(f"  {name}: {address}\n" for name, address in sorted(found.addresses.items()))
    first = f"Broadsheet {found.version}, node {found.node}, {found.state}\n"
    return f"{first}{doors}see /metrics and /healthz\n".encode()


def _health(status: Status) -> Page:
    state = status.state
    return Page(
        body=msgspec.json.encode({"state": state.value, "node": status.node}) + b"\n",
        content_type="application/json",
        status=200 if state is State.READY else 503,
    )
