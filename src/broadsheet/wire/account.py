"""Account: the bytes that each caller has in flight, by connection, and its share of the node's budget.

All sizes are in bytes. An account may hold as much as all accounts together leave free. So one account alone
takes half of the budget, n accounts take 1/(n+1) of it each, and the same is left for the next one. A
connection may hold as much as its account has left of that share. So a caller gains nothing by more
connections, and no connection takes everything from the caller's others. `reserve_bytes` of the budget are
for control (peers and operators) only. An account that holds less than `floor_bytes` is never held back, so
that a small request always gets through. A connection whose account holds more than floor and share is not
read.

    used <= max(floor, share)   when bytes are taken; nobody is cut off because its share shrinks
    node = sum of its accounts = sum of their holdings = sum of what each connection's requests own

Tasks, open RUN streams, and bytes of messages that handlers keep, are shared in the same way, and refused
above the share. Answers that peers do not read are shared in the same way too, and a peer above its share is
dropped. Taking bytes never fails: received bytes always count, even above the limit.
Source: Choudhury and Hahne, dynamic queue length thresholds; ADRs 0152, 0154.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from broadsheet.base.time import Instant
from broadsheet.errors import Throttled
from broadsheet.runtime.turn import Rank, Turn
from broadsheet.wire.limits import WireLimits

SHARE_OF_CONTROL: Final = 4
"""A control account may hold so many times the free bytes: peers and operators come first."""
TASKS_MIN: Final = 64
"""Tasks, and RUN streams, that every account may have, however many others there are."""
KEPT_BYTES_MIN: Final = 64 << 20
"""Bytes of messages that all handlers together may keep, however small the budget is: a document of the
metastore has 8 MiB, and a connection gets a third."""


class Owned(NamedTuple):
    """The resources that the requests of one connection own, counted one by one."""

    used_bytes: int = 0
    queued_bytes: int = 0
    task_count: int = 0
    run_count: int = 0
    unread_bytes: int = 0
    kept_bytes: int = 0


class Account:
    """The bytes, tasks and RUN streams of one caller of a server."""

    __slots__ = (
        "holdings", "is_control", "kept_bytes", "name", "queued_bytes", "run_count", "saved_for",
        "task_count", "unread_bytes", "used_bytes",
    )  # fmt: skip

    def __init__(self, name: str, *, is_control: bool) -> None:
        self.name, self.is_control = name, is_control
        self.used_bytes = self.task_count = self.run_count = self.unread_bytes = self.kept_bytes = 0
        self.queued_bytes = 0
        """Bytes of messages that wait for a handler.

        They never hold a connection back: the handler may wait for a WINDOW or FINISH behind them, which
        would then never be read.
        """
        self.holdings: dict[Holding, None] = {}
        self.saved_for: Holding | None = None
        """The first of those that wait for room, if it has waited long.

        Large frames of the others get no room meanwhile, and connections that hold more than the floor. Those
        that have not waited could take what comes free for ever. Small requests of the others go on.
        """


class Holding:
    """The part of its caller's account that one connection holds.

    It outlives the connection until its requests own nothing.
    """

    __slots__ = (
        "account", "has_left", "kept_bytes", "owned", "queued_bytes", "run_count", "task_count",
        "unread_bytes", "used_bytes",
    )  # fmt: skip

    def __init__(self, account: Account, owned: Callable[[], Owned] | None) -> None:
        self.account, self.owned = account, owned
        self.used_bytes = self.queued_bytes = self.task_count = self.run_count = self.unread_bytes = 0
        self.kept_bytes = 0
        self.has_left = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is owned."""
        return not any(getattr(self, what) for what in Owned._fields)


class Waiter(Protocol):
    """A connection that waits for room, and is not read meanwhile."""

    holding: Holding | None
    is_held: bool

    def ease(self) -> None:
        """Read again, because there may be room, unless the connection is held back for another reason."""
        ...

    def hurry(self, now: Instant) -> None:
        """Disconnect a peer whose large frame, for which bytes are reserved, comes too slowly."""
        ...


class Accounts:
    """The accounts of one server, and the connections that wait for room."""

    def __init__(self, limits: WireLimits, turn: Turn) -> None:
        """Share the budget of `limits`; waiting connections go on at the end of a `turn`."""
        self.bytes_max, self.reserve_bytes = limits.node_in_flight_bytes_max, limits.reserve_bytes
        self.floor_bytes = limits.floor_bytes
        self.tasks_max, self.runs_max = limits.node_tasks_max, limits.node_runs_max
        self.unread_bytes_max = limits.node_unread_bytes_max
        self.kept_bytes_max = max(KEPT_BYTES_MIN, limits.node_in_flight_bytes_max)
        self.used_bytes = self.task_count = self.queued_bytes = self.run_count = self.unread_bytes = 0
        self.kept_bytes = 0
        self._turn = turn
        self.by_name: dict[str, Account] = {}
        self._waiting: dict[Account, dict[Waiter, int]] = {}
        """Connections that wait for room, and for how many bytes."""
        self._expecting: dict[Account, dict[Waiter, None]] = {}
        """Connections that have reserved bytes for a large frame that has begun."""

    def enter(self, name: str, *, is_control: bool, owned: Callable[[], Owned] | None = None) -> Holding:
        """A new holding in the account of `name`, for one more connection.

        Args:
            owned: counts one by one what the connection owns; `check` compares the counters with it.
        """
        account = self.by_name.get(name)
        if account is None:
            account = self.by_name[name] = Account(name, is_control=is_control)
        holding = Holding(account, owned)
        account.holdings[holding] = None
        return holding

    def leave(self, holding: Holding) -> None:
        """Note that a connection is gone. Its bytes were given back, or will be when its requests end."""
        holding.has_left = True
        self._forget(holding)

    # ------------------------------------------------------------------ bytes

    def take(self, holding: Holding, size: int) -> bool:
        """Count `size` more bytes; False if more is held than the share now."""
        self.used_bytes += size
        holding.account.used_bytes += size
        holding.used_bytes += size
        return self.has_room(holding)

    def give(self, holding: Holding, size: int) -> None:
        """Count `size` fewer bytes, and let waiting connections go on."""
        self.used_bytes -= size
        holding.account.used_bytes -= size
        holding.used_bytes -= size
        assert holding.used_bytes >= 0, "given back twice"
        if holding.has_left:
            self._forget(holding)
        if self._waiting:
            self._turn.at_end(Rank.WIRE, self._wake)

    def has_room(self, holding: Holding, size: int = 0) -> bool:
        """Whether `holding` may have `size` bytes more."""
        account = holding.account
        if account.used_bytes + size <= self.floor_bytes:
            return True
        if account.saved_for not in (None, holding) and (size or holding.used_bytes > self.floor_bytes):
            return False
        left = self.share(account) - account.used_bytes
        return size <= left and holding.used_bytes + size <= left

    def _could_have_room(self, holding: Holding, size: int) -> bool:
        """Whether `holding` might have `size` bytes more if the others of its account held nothing."""
        account = holding.account
        others = account.used_bytes - holding.used_bytes
        left = self.share(account) + (SHARE_OF_CONTROL if account.is_control else 1) * others
        return 2 * holding.used_bytes + size <= left

    def queue(self, holding: Holding, size: int) -> None:
        """Count `size` more bytes of messages that wait for a handler; fewer if `size` is negative."""
        self.queued_bytes += size
        holding.account.queued_bytes += size
        holding.queued_bytes += size
        assert holding.queued_bytes >= 0, "taken twice"
        self._forget(holding)

    def may_widen(self, holding: Holding, size: int) -> bool:
        """Whether the peer may be allowed to send messages of `size` more bytes, besides all that is held."""
        account = holding.account
        return account.used_bytes + account.queued_bytes + size <= self.share(account) - self.queued_bytes

    def share(self, account: Account) -> int:
        """The bytes that `account` may hold now."""
        if account.is_control:
            return SHARE_OF_CONTROL * (self.bytes_max - self.used_bytes)
        return self.bytes_max - self.reserve_bytes - self.used_bytes

    def unread(self, holding: Holding, size: int) -> bool:
        """Record that the peer has left `size` bytes of answers unread; False if that is above its share."""
        account, more = holding.account, size - holding.unread_bytes
        self.unread_bytes += more
        account.unread_bytes += more
        holding.unread_bytes = size
        self._forget(holding)
        left = self.unread_bytes_max - self.unread_bytes
        return account.unread_bytes <= max(self.floor_bytes, left) and size <= max(
            self.floor_bytes, left - account.unread_bytes
        )

    def keep_refusal(self, holding: Holding, size: int) -> Throttled | None:
        """Why a handler may not keep messages of `size` more bytes; None if it may.

        What others have in flight does not count: control would be refused while the node is busy.
        """
        kept, left = holding.account.kept_bytes, self.kept_bytes_max - self.kept_bytes
        if kept + size <= self.floor_bytes or holding.kept_bytes + size <= left - kept:
            return None
        return Throttled(f"{kept} bytes of this caller's messages are kept: wait for a request to end")

    def keep(self, holding: Holding, size: int) -> None:
        """Count `size` more bytes of messages that a handler keeps; fewer if `size` is negative."""
        self.kept_bytes += size
        holding.account.kept_bytes += size
        holding.kept_bytes += size
        self._forget(holding)

    # ------------------------------------------------------------------ tasks and RUN streams

    def task_refusal(self, holding: Holding) -> Throttled | None:
        """Why `holding` may not have one more task; None if it may."""
        count, left = holding.account.task_count, self.tasks_max - self.task_count
        if count < TASKS_MIN or holding.task_count < left - count:
            return None
        return Throttled(f"{count} requests of this caller are worked on: wait for one to end")

    def started(self, holding: Holding) -> None:
        """Count a task that was started."""
        self.task_count += 1
        holding.account.task_count += 1
        holding.task_count += 1

    def stopped(self, holding: Holding) -> None:
        """Count a task that has ended."""
        self.task_count -= 1
        holding.account.task_count -= 1
        holding.task_count -= 1
        self._forget(holding)

    def run_refusal(self, holding: Holding) -> Throttled | None:
        """Why `holding` may not have one more RUN stream; None if it may."""
        count, left = holding.account.run_count, self.runs_max - self.run_count
        if count < TASKS_MIN or holding.run_count < left - count:
            return None
        return Throttled(f"{count} RUN streams of this caller are open: wait for one to end")

    def opened(self, holding: Holding, count: int = 1) -> None:
        """Count a RUN stream that was opened, or with -1 one that has ended."""
        self.run_count += count
        holding.account.run_count += count
        holding.run_count += count
        self._forget(holding)

    # ------------------------------------------------------------------ those that wait

    def wait(self, waiter: Waiter, size: int = 0) -> None:
        """Ease `waiter` when there is room for `size` more bytes. A second call changes the size."""
        assert waiter.holding is not None, "only a connection that has greeted can wait for room"
        self._waiting.setdefault(waiter.holding.account, {})[waiter] = size

    def forget(self, waiter: Waiter) -> None:
        """Drop `waiter` from the line of connections that wait for room."""
        if waiter.holding is None:
            return
        account = waiter.holding.account
        line = self._waiting.get(account)
        if line is not None and line.pop(waiter, None) is not None and not line:
            del self._waiting[account]
        if account.saved_for is waiter.holding:
            account.saved_for = None
            self._turn.at_end(Rank.WIRE, self._wake)  # Others may have room now.

    def is_waiting(self, waiter: Waiter) -> bool:
        """Whether `waiter` waits for room."""
        return waiter.holding is not None and waiter in self._waiting.get(waiter.holding.account, ())

    def _wake(self) -> None:
        """Forget waiting connections that have room; in an account the first that has none stops the rest.

        This runs whenever bytes are given back. Because of that stop it looks at one connection of each
        account, besides those that it eases. Below the floor nobody is stopped: a small request must get
        through although a frame stands before it that the other accounts leave no room for.
        """
        for account, line in list(self._waiting.items()):
            while line:
                waiter, size = next(iter(line.items()))
                if waiter.holding is not None and not self.has_room(waiter.holding, size):
                    break
                self.forget(waiter)
                waiter.ease()
            if line and account.used_bytes < self.floor_bytes:
                for waiter, size in list(line.items()):
                    if account.used_bytes + size <= self.floor_bytes and waiter in line:
                        self.forget(waiter)
                        waiter.ease()

    def expect(self, waiter: Waiter, *, is_expecting: bool) -> None:
        """Note whether `waiter` has bytes reserved for a large frame whose rest has not come."""
        assert waiter.holding is not None, "only a connection that has greeted reserves bytes"
        account = waiter.holding.account
        if is_expecting:
            self._expecting.setdefault(account, {})[waiter] = None
        elif (others := self._expecting.get(account)) is not None:
            others.pop(waiter, None)
            if not others:
                del self._expecting[account]

    def press(self, waiter: Waiter, now: Instant) -> None:
        """Save room for `waiter`, which has waited long, and have slow frames of the same caller given up.

        Only the first in line does this, so that a long line costs no more than a short one. If other callers
        leave too little, nothing is saved: the others of this caller would wait in vain.
        """
        assert waiter.holding is not None, "only a connection that has greeted waits for room"
        account = waiter.holding.account
        line = self._waiting.get(account)
        if line and next(iter(line)) is waiter:
            is_possible = self._could_have_room(waiter.holding, line[waiter])
            account.saved_for = waiter.holding if is_possible else None
            self._turn.at_end(Rank.WIRE, self._wake)  # What was saved until now may be free.
            for other in list(self._expecting.get(account, ())):
                other.hurry(now)

    def check(self) -> None:
        """Assert the invariants of a server's accounts."""
        accounts = self.by_name.values()
        for what in Owned._fields:
            in_all = sum([getattr(account, what) for account in accounts])
            ours = getattr(self, what)
            assert in_all == ours, f"accounts have {in_all} {what}, and the node {ours}"
        for account in accounts:
            self._check(account)
        assert all(self._waiting.values()), "no empty line"
        for line in self._waiting.values():
            for waiter in line:
                assert waiter.is_held, "a connection that waits for room is not read"
        for account in accounts:
            first = next(iter(self._waiting.get(account, ())), None)
            is_saved_for_first = first is not None and account.saved_for is first.holding
            assert account.saved_for is None or is_saved_for_first, "room is saved for the first that waits"
        assert all(self._expecting.values()), "no empty line"
        for account, others in self._expecting.items():
            assert account.used_bytes, f"{len(others)} connections of {account.name} have reserved no bytes"

    @staticmethod
    def _check(account: Account) -> None:
        for what in Owned._fields:
            in_all = sum([getattr(holding, what) for holding in account.holdings])
            has = getattr(account, what)
            assert in_all == has, f"connections of {account.name} have {in_all} {what}, and its account {has}"
        for holding in account.holdings:
            assert not (holding.has_left and holding.is_empty), "an empty holding outlives its connection"
            if holding.owned is None:
                continue
            for what, owned in holding.owned()._asdict().items():
                counted = getattr(holding, what)
                gone = " that is gone" if holding.has_left else ""
                assert counted == owned, (
                    f"a connection of {account.name}{gone} owns {owned} {what}, and {counted} are counted"
                )

    def _forget(self, holding: Holding) -> None:
        if not (holding.has_left and holding.is_empty):
            return
        account = holding.account
        account.holdings.pop(holding, None)
        if not account.holdings:
            self.by_name.pop(account.name, None)
