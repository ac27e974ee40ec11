"""Wire checks: what must hold for clients and servers of the wire between turns, when idle, and at the end.

Each check counts for itself and raises `Violation`, so that it holds under `python -O`, where the assertions
of the machines are off. *Idle* is a node whose clients are connected and ask for nothing: no account owns
anything, no window is in use, and nothing waits. A connection that is not read has a reason that will pass.
Source: wire.4-9; ADRs 0151, 0152, 0154.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from broadsheet.base.time import Duration, in_seconds
from broadsheet.runtime.turn import Rank
from broadsheet.wire import frame as f
from broadsheet.wire.account import SHARE_OF_CONTROL, Account, Accounts, Holding, Owned
from broadsheet.wire.client import ClientConnection, ClientRunStream
from broadsheet.wire.connection_machine import Kind, Phase
from broadsheet.wire.connection_protocol import ConnectionProtocol
from broadsheet.wire.pool import Pool
from broadsheet.wire.send_shares import SendShares
from broadsheet.wire.server import Server
from broadsheet.wire.server_connection import LOOKS, Backpressure, ServerConnection
from broadsheet.wire.stream import StreamEnd
from simulator.workload import Violation

EXPIRY_LOOKS_MAX: Final = 2
"""In so many looks, 100 ms apart, a stream whose token has expired must have ended."""
JUMP_LOOKS: Final = 20
"""The same after a jump of the clock: its timer was set by the clock before, and the next one is not due."""
ROUNDING: Final = 1000
"""Nanoseconds that the two clocks of a node may seem to differ by, where both drift."""
TURN_LOOKS_MAX: Final = 5
"""In so many looks whoever waits for its turn must have had one."""


def hold(check: Callable[[], None]) -> None:
    """Call `check`.

    Raises:
        Violation: what it asserts does not hold.
    """
    try:
        check()
    except AssertionError as error:
        raise Violation(f"{check.__qualname__}: {error}") from error


def demand(is_so: bool, text: str) -> None:  # noqa: FBT001 - as `assert`.
    """Raise a `Violation` with `text` unless it is so."""
    if not is_so:
        raise Violation(text)


class Watcher:
    """What is seen of one server, look by look."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._waiting: dict[int, tuple[tuple[int, ...], int]] = {}
        self._outlived: dict[tuple[int, int], int] = {}
        self._wall_ahead, self._graced = 0, JUMP_LOOKS

    def look(self) -> None:
        """Between two turns of the loop."""
        check_accounts(self.server.accounts)
        check_held(self.server)
        check_places(self.server)
        for connection in self.server.connections.values():
            check_slots(connection)
            check_senders(connection, connection.streams.values(), self.server.send_shares)
        self._look_at_tokens()
        self._look_at_turns()

    def _look_at_tokens(self) -> None:
        """No stream outlives its token by much."""
        time = self.server.ports.time
        ahead, before = time.wall() - time.now(), self._wall_ahead
        self._wall_ahead = ahead
        self._graced = JUMP_LOOKS if abs(ahead - before) > ROUNDING else max(0, self._graced - 1)
        found = [(n, stream) for n, each in self.server.connections.items() for stream in outlived(each)]
        self._outlived = {each: self._outlived.get(each, 0) + 1 for each in found}
        for (number, stream), looks in self._outlived.items():
            text = f"stream {stream} of connection {number} is open, and its caller's token has expired"
            demand(looks < (JUMP_LOOKS if self._graced else EXPIRY_LOOKS_MAX), text)

    def _look_at_turns(self) -> None:
        """Whoever waits for its turn gets one."""
        seen: dict[int, tuple[tuple[int, ...], int]] = {}
        for number, connection in self.server.connections.items():
            if not connection.is_waiting:
                continue
            machine, inbound = connection.machine, connection._inbound  # noqa: SLF001 - a judge looks inside.
            stands = (machine.last_stream, inbound.read, inbound.written, connection.written_bytes)
            before, looks = self._waiting.get(number, (stands, 0))
            seen[number] = (stands, looks + 1 if before == stands else 0)
            demand(seen[number][1] < TURN_LOOKS_MAX, f"connection {number} waits for a turn and gets none")
        self._waiting = seen


def check_accounts(accounts: Accounts) -> None:
    """The node has what its accounts have, they what their connections have, and those what they own."""
    by_account = accounts.by_name.values()
    for what in Owned._fields:
        total = sum([getattr(account, what) for account in by_account])
        ours = getattr(accounts, what)
        demand(total == ours, f"the accounts have {total} {what}, and the node counts {ours}")
    for account in by_account:
        demand(bool(account.holdings), f"nobody has the account {account.name}, and it stays")
        owned = [(holding, holding.owned()) for holding in account.holdings if holding.owned is not None]
        for what in Owned._fields:
            has = getattr(account, what)
            total = sum([getattr(one, what) for _, one in owned])
            demand(has == total, f"connections of {account.name} own {total} {what}, and {has} are counted")
            for holding, one in owned:
                counted, theirs = getattr(holding, what), getattr(one, what)
                demand(
                    counted == theirs,
                    f"a connection of {account.name} owns {theirs} {what}, and {counted} are counted",
                )


def has_room(accounts: Accounts, account: Account, held_bytes: int, size: int) -> bool:
    """Whether a connection that holds `held_bytes` of `account` may have `size` more (ADR 0152)."""
    if account.used_bytes + size <= accounts.floor_bytes:
        return True
    free = accounts.bytes_max - accounts.used_bytes
    share = SHARE_OF_CONTROL * free if account.is_control else free - accounts.reserve_bytes
    left = share - account.used_bytes
    return size <= left and held_bytes + size <= left


def check_held(server: Server) -> None:
    """Whoever is not read has a reason: its own bytes, its peer, no room, or who comes before it."""
    if server.ports.turn._dirty[Rank.WIRE]:  # noqa: SLF001 - what ends this turn may let them go on.
        return
    for connection in server.connections.values():
        pressure = connection.backpressure
        if not pressure.is_held or connection.is_closing or connection.is_write_paused:
            continue
        if pressure.in_flight_bytes * 2 > connection.limits.in_flight_bytes_max:
            continue
        may_go_on = pressure.holding is None or _is_next_with_room(
            server.accounts, pressure, pressure.holding
        )
        demand(
            not may_go_on,
            f"connection {connection.connection} is held, and there is room: {pressure.in_flight_bytes} bytes"
            f" of it are in flight, {server.accounts.used_bytes} of the node",
        )


def _is_next_with_room(accounts: Accounts, pressure: Backpressure, holding: Holding) -> bool:
    line = accounts._waiting.get(holding.account, {})  # noqa: SLF001 - a judge looks inside.
    if holding.account.used_bytes + pressure._wanted <= accounts.floor_bytes:  # noqa: SLF001
        return True  # Below the floor nobody waits for anybody.
    if line and next(iter(line)) is not pressure:
        return False  # Those of one caller wait for each other.
    wanted, is_reserved = pressure._wanted, pressure._expected > 0  # noqa: SLF001
    return is_reserved or has_room(accounts, holding.account, holding.used_bytes, wanted)


def check_places(server: Server) -> None:
    """No more connections that have greeted than there are places, but for those that are being closed."""
    stay = [each for each in server.connections.values() if each.machine.phase is not Phase.BROKEN]
    greeted = [each for each in stay if each.machine.phase is not Phase.GREETING and not each.is_closing]
    most, strangers = server.limits.connections_max, len(stay) - len(greeted)
    demand(len(greeted) <= most, f"{len(greeted)} connections have greeted, and there are {most} places")
    demand(strangers <= server.limits.ungreeted_max, f"{strangers} connections have not greeted, and stay")


def check_slots(connection: ServerConnection) -> None:
    """Each slot that is kept for a task has its task."""
    if not connection.has_pending and connection.machine.phase is not Phase.BROKEN:
        for stream in connection.machine.ending:
            demand(stream in connection.tasks, f"stream {stream} keeps its slot, and nothing runs for it")
        for stream in connection.machine.streams:
            is_worked_on = stream in connection.tasks or stream in connection.runs
            demand(is_worked_on, f"stream {stream} is open, and nobody works on it")
    streams, most = connection.machine.streams, connection.limits.streams_max
    demand(len(streams) <= most, f"{len(streams)} streams of {most}")
    for stream, state in streams.items():
        window, used = connection.limits.window_bytes, state.unanswered_bytes
        demand(0 <= used <= window, f"stream {stream} has {used} unanswered bytes of {window}")
        if state.kind is Kind.STREAM:
            demand(state.send_credit >= 0, f"stream {stream} has sent above the peer's window")


def outlived(connection: ServerConnection) -> list[int]:
    """Open streams whose token has expired, but for those whose handlers hear of it when they look."""
    expires = connection.principal.expires
    if expires is None or connection.ports.time.wall() < expires:
        return []
    looking = [stream for stream, end in connection.streams.items() if not end.method.capability & ~LOOKS]
    return [stream for stream in (*connection.runs, *looking) if stream in connection.machine.streams]


def check_senders(
    connection: ConnectionProtocol, ends: Iterable[StreamEnd], shares: SendShares | None
) -> None:
    """Whoever waits to send has a reason: no window, a full socket, or those before it in the line."""
    machine = connection.machine
    if connection.is_write_paused or machine.phase is not Phase.OPEN:
        return
    lines: list[object] = []
    if shares is not None:
        waiting = [line for others in shares._waiting.values() for line in others.values()]  # noqa: SLF001
        lines = [*shares._promised, *[end for line in waiting for end in line]]  # noqa: SLF001
    for end in ends:
        waiter, state = end._sender, machine.streams.get(end.stream)  # noqa: SLF001
        if waiter is None or waiter.done() or state is None or end in lines:
            continue
        has_room = state.send_credit >= machine.peer_frame_bytes_max + f.MESSAGE_COST
        demand(
            not has_room, f"somebody waits to send on stream {end.stream}, and has {state.send_credit} bytes"
        )


def check_run(run: ClientRunStream) -> None:
    """Nobody submits any more: only what is on its way uses the window."""
    size = sum([size for _, size, _ in run._answers.values()])  # noqa: SLF001 - a judge looks inside.
    demand(
        run.has_ended or run.unanswered_bytes == size,
        f"{size} bytes of runs are on their way, and {run.unanswered_bytes} of the window are used",
    )


async def close_run(run: ClientRunStream, timeout: Duration) -> None:
    """Check it as nobody submits any more, and close it, if that is done in time."""
    check_run(run)
    closing = asyncio.ensure_future(run.close())
    await asyncio.wait([closing], timeout=in_seconds(timeout))
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)


def check_client(pool: Pool) -> None:
    """Nobody of a client waits for what there is."""
    hold(pool.check)
    for connection in pool._connections.values():  # noqa: SLF001 - a judge looks inside.
        if not connection.is_lost:
            check_senders(connection, connection._streams.values(), None)  # noqa: SLF001


def check_idle_client(pool: Pool) -> None:
    """Nothing is asked: no stream is open, nobody waits."""
    for address, connection in pool._connections.items():  # noqa: SLF001 - a judge looks inside.
        if not connection.is_lost and connection.is_usable:
            _check_idle_connection(address, connection)


def _check_idle_connection(address: str, connection: ClientConnection) -> None:
    left = [*connection._calls, *connection._streams, *connection._runs]  # noqa: SLF001
    demand(not left, f"nothing is asked of {address}, and streams {left} are still somebody's")
    demand(
        not connection.machine.streams, f"streams {list(connection.machine.streams)} to {address} are open"
    )
    demand(not connection._waiting, f"somebody waits for a stream to {address}")  # noqa: SLF001


def check_idle(server: Server) -> None:
    """Nothing is asked: nobody owns anything, nobody waits, everybody is read."""
    accounts = server.accounts
    for what in Owned._fields:
        demand(
            getattr(accounts, what) == 0, f"nothing is asked, and {getattr(accounts, what)} {what} are used"
        )
    send_shares = server.send_shares
    lines = [*send_shares._waiting, *send_shares._parked, *send_shares._promised]  # noqa: SLF001
    demand(not lines, f"nothing is asked, and {len(lines)} lines of streams wait to send")
    demand(not accounts._waiting, "nothing is asked, and connections wait for room")  # noqa: SLF001
    for number, connection in server.connections.items():
        machine = connection.machine
        left = (list(machine.streams), list(machine.ending), len(connection.tasks), list(connection.runs))
        demand(not any(left), f"nothing is asked over connection {number}, and it has {left}")
        demand(not connection.streams, f"connection {number} has ends of streams {list(connection.streams)}")
        used = connection.backpressure.in_flight_bytes
        demand(used == 0, f"nothing is asked over connection {number}, and {used} bytes are in flight")
        is_read = not (connection.backpressure.is_held or connection.is_waiting)
        demand(
            is_read or connection.is_closing, f"nothing is asked over connection {number}, and it is not read"
        )


def check_ended(server: Server) -> None:
    """The server and its scope are closed, and every run is answered: so nobody owns anything."""
    hold(server.check)
    demand(not server.connections, f"connections {list(server.connections)} have outlived their server")
    left = {
        name: Owned(*(getattr(account, what) for what in Owned._fields))
        for name, account in server.accounts.by_name.items()
    }
    demand(not left, f"all connections have ended, and they still own {left}")
    busy = server.pool.busy_bytes
    demand(not busy, f"{busy} bytes of receive buffers were not given back")
