"""Door: binds the HTTP address, bounds the number of connections and their time, and serves the pages.

The pages need no token: they show states and counts of the node and the reasons why it cannot serve, and name
no journals and no paths. An address beyond loopback is refused unless the node runs with `--insecure`
(access.1). Source: ADR 0004.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from broadsheet.access.exposure import check_exposure
from broadsheet.base.time import MILLISECOND, SECOND, Duration, Instant, after
from broadsheet.doors.http.exchange import Exchange, Page
from broadsheet.doors.readiness import Readiness
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
"""The most connections at a time; fewer if a sixteenth of the process's file limit is less."""
TURN_READS_MAX: Final = 16
"""How many reads are parsed in one turn of the loop: about a millisecond of work."""
PAGE_AGE_MIN: Final = Duration(100 * MILLISECOND)
"""How long a page that takes more than a few microseconds to make is reused, at least."""
PAGE_TIME_RATIO: Final = 32
"""It is reused for at least so many times the time that it took to make it: `/metrics` counts the open files
of the process, which takes tens of milliseconds if there are 15,000."""
PAGE_AGE_MAX: Final = Duration(5 * SECOND)
"""But no longer than this: the process may have been paused while it made the page."""
REQUEST_TIMEOUT: Final = Duration(10 * SECOND)
"""The longest life of a connection. A client that is slow or silent is disconnected then."""


class HTTPConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section `http` of the configuration."""

    address: str = "127.0.0.1:6680"
    """Where to listen; port 0 takes a free one."""

    def __post_init__(self) -> None:
        """Refuse an address that cannot be parsed."""
        check_address("http.address", self.address)


class HTTPDoor:
    """The role `http`."""

    name = "http"

    async def start(self, scope: Scope, ports: Ports, config: HTTPConfig, services: Services) -> None:
        """Listen, and report the bound address to the status.

        Raises:
            ConfigError: the address cannot be bound, or is beyond loopback without `--insecure`.
        """
        status, metrics = services.one(Status), services.one(Metrics)
        count_max = min(CONNECTIONS_MAX, max(1, ports.open_files_max // 16))
        hall = DoorConnections(
            Pages(status, services.one(Readiness), metrics, ports.time), ports.timers, count_max=count_max
        )
        identity = services.one(Identity)
        check_exposure(self.name, config.address, is_insecure=identity.is_insecure)
        try:
            listener = await ports.network.listen(config.address, lambda: Connection(hall))
        except OSError as error:
            raise ConfigError(
                f"the http door cannot listen at {config.address}: {error.strerror}. Set http.address to a "
                "free address of this machine"
            ) from error
        scope.defer(listener.close)
        status.listens(self.name, listener.address)


class PageSource(Protocol):
    """Makes pages."""

    def page(self, target: str) -> Page:
        """The page at `target`, a path with a query or without."""
        ...


class Pages:
    """The pages by path. A costly page is made at most once in `PAGE_AGE_MIN`, whatever is asked.

    Only `/readyz` looks at the query: with `format=json` its page is an object.
    """

    def __init__(self, status: Status, readiness: Readiness, metrics: Metrics, time: Time) -> None:
        self._time = time
        self._makers: dict[str, tuple[Callable[[], Page], Duration]] = {
            "/": (lambda: Page(body=_front(status)), PAGE_AGE_MIN),
            "/metrics": (lambda: Page(body=metrics.page(), content_type=CONTENT_TYPE), PAGE_AGE_MIN),
            "/healthz": (lambda: _health(status), Duration(0)),
            "/readyz": (lambda: _ready(readiness), Duration(0)),
            "/readyz?format=json": (lambda: _ready_json(readiness), Duration(0)),
        }
        self._made: dict[str, tuple[Instant, Page]] = {}
        """Pages, and until when each is reused."""

    def page(self, target: str) -> Page:
        """The page at `target`, a path with a query or without."""
        path = target if target in self._makers else target.partition("?")[0]
        maker, age_min = self._makers.get(path, (None, Duration(0)))
        if maker is None:
            return Page(body=b"no such page\n", status=404)
        now = self._time.now()
        made = self._made.get(path)
        if made is not None and now < made[0]:
            return made[1]
        page = maker()
        if age_min:
            then = self._time.now()
            age = Duration(min(PAGE_AGE_MAX, max(age_min, PAGE_TIME_RATIO * (then - now))))
            self._made[path] = after(then, age), page
        return page


class DoorConnections:
    """The connections of the door: which of them have a place, and whose bytes are parsed in this turn.

    If all places are taken when a connection arrives, the source address with the most connections loses its
    oldest one: an honest request is answered within milliseconds, so the oldest connection is silent or slow.
    At most `TURN_READS_MAX` reads are parsed in one turn of the loop. Further connections wait in order, and
    nothing is received from them meanwhile. Those whose first bytes have come and those that send a request
    in pieces are served alternately, so that a whole request does not wait behind many slow ones.
    """

    def __init__(self, pages: PageSource, timers: Timers, *, count_max: int = CONNECTIONS_MAX) -> None:
        self.pages, self.timers, self.count_max = pages, timers, count_max
        self.displaced = 0
        self._sources: dict[str, dict[Connection, None]] = {}
        self._count = self._reads = 0
        self._fresh: dict[Connection, None] = {}
        """Connections that wait with their first bytes."""
        self._slow: dict[Connection, None] = {}
        """Connections that wait with further bytes."""
        self._is_armed = False

    def arrive(self, connection: "Connection") -> None:
        """Give the connection a place. If there are too many, disconnect the oldest of the largest source."""
        self._sources.setdefault(connection.source, {})[connection] = None
        self._count += 1
        if self._count > self.count_max:
            crowd = max(self._sources.values(), key=len)
            oldest = next(iter(crowd))
            self.leave(oldest)
            self.displaced += 1
            oldest.abort()

    def leave(self, connection: "Connection") -> None:
        """Free the connection's place, because it is lost or about to be closed."""
        self._fresh.pop(connection, None)
        self._slow.pop(connection, None)
        crowd = self._sources.get(connection.source)
        if crowd is None or connection not in crowd:
            return
        del crowd[connection]
        self._count -= 1
        if not crowd:
            del self._sources[connection.source]

    def look(self, connection: "Connection") -> bool:
        """Whether the connection's bytes may be parsed now. If not, `Connection.read` is called later."""
        if not self._is_armed:
            self._is_armed = True
            self.timers.call_soon(self._next)
        if self._fresh or self._slow or self._reads >= TURN_READS_MAX:
            line = self._fresh if connection.is_fresh else self._slow
            line[connection] = None
            return False
        self._reads += 1
        return True

    def _next(self) -> None:
        self._is_armed, self._reads = False, 0
        if not (self._fresh or self._slow):
            return
        self._is_armed = True
        self.timers.call_soon(self._next)
        while (self._fresh or self._slow) and self._reads < TURN_READS_MAX:
            is_slow = bool(self._slow) and (self._reads % 2 == 1 or not self._fresh)
            line = self._slow if is_slow else self._fresh
            connection = next(iter(line))
            del line[connection]
            self._reads += 1
            connection.read()


class Connection(ByteProtocol):
    """One connection. It serves one request, then closes."""

    def __init__(self, hall: DoorConnections) -> None:
        self._hall = hall
        self.source = ""
        self.is_fresh = True
        """Whether none of its bytes were parsed yet."""
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._received = 0
        self._exchange = Exchange(hall.pages.page)
        self._transport: Transport | None = None
        self._timer: Timer | None = None

    def connection_made(self, transport: Transport) -> None:
        """Start the connection's time, and take a place in the hall."""
        self._transport = transport
        info: Callable[[str], Any] | None = getattr(transport, "get_extra_info", None)
        name = info("peername") if info is not None else None
        self.source = str(name[0]) if isinstance(name, tuple) and name else ""
        self._timer = self._hall.timers.call_after(REQUEST_TIMEOUT, transport.abort)
        self._hall.arrive(self)

    def abort(self) -> None:
        """Disconnect at once: another connection gets the place."""
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the received bytes now, or when the hall calls `read`."""
        self._received = nbytes
        if self._hall.look(self):
            self.read()
        elif self._transport is not None:
            self._transport.pause_reading()

    def read(self) -> None:
        """Parse the received bytes, and answer if the request is whole."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.is_fresh = False
        answer = self._exchange.received(bytes(self._buffer[: self._received]))
        self._received = 0
        if answer is not None:
            transport.write(answer)
            transport.close()
        else:
            transport.resume_reading()

    def eof_received(self) -> bool | None:
        """Close. A client that ends its side before its request is whole gets no answer."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place and stop the timer."""
        self._hall.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        """Do nothing: a connection has one answer, whose size is bounded."""

    def resume_writing(self) -> None:
        """Do nothing, as in `pause_writing`."""


def _front(status: Status) -> bytes:
    found = status.read()
    doors = "".join(f"  {name}: {address}\n" for name, address in sorted(found.addresses.items()))
    first = f"Broadsheet {found.version}, node {found.node}, {found.state}\n"
    return f"{first}{doors}see /readyz, /metrics and /healthz\n".encode()


def _health(status: Status) -> Page:
    """The process answers, and that is all: whether it can serve is `/readyz`'s to say (ADR 0203)."""
    body = msgspec.json.encode({"state": status.state.value, "node": status.node}) + b"\n"
    return Page(body=body, content_type="application/json")


def _ready(readiness: Readiness) -> Page:
    found = readiness.look()
    lines = ["ready" if found.is_ready else "not ready"]
    if found.state != State.READY.value:
        lines.append(f"node: it is {found.state}")
    for name, role in found.roles.items():
        lines += [f"{name}: {'warning: ' if each.is_warning else ''}{each.text}" for each in role.reasons]
    return Page(body=("\n".join(lines) + "\n").encode(), status=200 if found.is_ready else 503)


def _ready_json(readiness: Readiness) -> Page:
    found = readiness.look()
    return Page(
        body=msgspec.json.encode(found) + b"\n",
        content_type="application/json",
        status=200 if found.is_ready else 503,
    )
