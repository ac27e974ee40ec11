"""Accounts: what each caller has in flight, by connection, and its share of the node's budget.

Sizes are bytes. An account may hold as much as all accounts together leave free: one alone takes half of the
budget, n of them a (n+1)th each, and the same is left for the next one to come. A connection may hold as much
as its account has left of that: a caller with many connections has no more for it, and none of them takes all
from the others. `reserve_bytes` of the budget is for control (peers and operators) only. An account that
holds less than `floor_bytes` is never held back, so that a small request always gets through. Where more is
held than that, the connection is not read.

    used <= max(floor, share)   when bytes are taken; shares shrink as others come, and nobody is cut off
    node = sum of its accounts = sum of their holdings = sum of what each connection's requests own

Tasks and open RUN streams are divided in the same way, and refused above it; so are answers that peers do not
read, and a peer is dropped above it. Taking bytes never fails: received bytes always count, even above the
limit.
Source: Choudhury and Hahne, dynamic queue length thresholds; ADRs 0152, 0154.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from broadsheet.runtime.turn import Rank, Turn
from broadsheet.wire.limits import WireLimits

SHARE_OF_CONTROL: Final = 4
"""Control may use so many times what is left free: peers and operators first."""
TASKS_MIN: Final = 64
"""Tasks, and RUN streams, that an account may have however many there are."""


class Owned(NamedTuple):
    """What the requests of one connection own, counted one by one."""

    used_bytes: int = 0
    queued_bytes: int = 0
    task_count: int = 0
    run_count: int = 0
    unread_bytes: int = 0


class Account:
    """One caller's bytes, tasks and RUN streams."""

    __slots__ = (
        "holdings", "is_control", "name", "queued_bytes", "run_count", "task_count", "unread_bytes",
        "used_bytes",
    )  # fmt: skip

    def __init__(self, name: str, *, is_control: bool) -> None:
        self.name, self.is_control = name, is_control
        self.used_bytes = self.task_count = self.run_count = self.unread_bytes = 0
        self.queued_bytes = 0
        """Messages that wait for a handler.

        They never hold a connection back: the handler may be waiting for a WINDOW or a FINISH behind them,
        and nobody would ever read it.
        """
        self.holdings: dict[Holding, None] = {}


class Holding:
    """One connection's part of its caller's account. It outlives the connection until it owns nothing."""

    __slots__ = (
        "account", "has_left", "owned", "queued_bytes", "run_count", "task_count", "unread_bytes",
        "used_bytes",
    )  # fmt: skip

    def __init__(self, account: Account, owned: Callable[[], Owned] | None) -> None:
        self.account, self.owned = account, owned
        self.used_bytes = self.queued_bytes = self.task_count = self.run_count = self.unread_bytes = 0
        self.has_left = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is owned."""
        return not any(getattr(self, what) for what in Owned._fields)


class Waiter(Protocol):
    """Who waits for room, and is not read meanwhile."""

    holding: Holding | None
    is_held: bool

    def ease(self) -> None:
        """There may be room: go on where nothing else speaks against it."""
        ...


class Accounts:
    """The accounts of one server, and those that wait for room."""

    def __init__(self, limits: WireLimits, turn: Turn) -> None:
        """Divide what `limits` allow; who waits for room goes on at the end of a `turn`."""
        self.bytes_max, self.reserve_bytes = limits.node_in_flight_bytes_max, limits.reserve_bytes
        self.floor_bytes = limits.floor_bytes
        self.tasks_max, self.runs_max = limits.node_tasks_max, limits.node_runs_max
        self.unread_bytes_max = limits.node_unread_bytes_max
        self.used_bytes = self.task_count = self.queued_bytes = self.run_count = self.unread_bytes = 0
        self._turn = turn
        self.by_name: dict[str, Account] = {}
        self._waiting: dict[Account, dict[Waiter, int]] = {}
        """Connections that wait for room, and for how many bytes."""

    def enter(self, name: str, *, is_control: bool, owned: Callable[[], Owned] | None = None) -> Holding:
        """A part of the account of `name`, for one more connection.

        Args:
            owned: what the connection owns, counted one by one, for `check`.
        """
        account = self.by_name.get(name)
        if account is None:
            account = self.by_name[name] = Account(name, is_control=is_control)
        holding = Holding(account, owned)
        account.holdings[holding] = None
        return holding

    def leave(self, holding: Holding) -> None:
        """A connection is gone, and its bytes will be given back, or are already."""
        holding.has_left = True
        self._forget(holding)

    # ------------------------------------------------------------------ bytes

    def take(self, holding: Holding, size: int) -> bool:
        """Count `size` bytes; false where more is held than the share now."""
        self._count(holding, size)
        return self.has_room(holding)

    def give(self, holding: Holding, size: int) -> None:
        """Count them no longer, and let those go on that wait for room."""
        self._count(holding, -size)
        assert holding.used_bytes >= 0, "given back twice"
        self._forget(holding)
        if self._waiting:
            self._turn.at_end(Rank.WIRE, self._wake)

    def has_room(self, holding: Holding, size: int = 0) -> bool:
        """Whether `holding` may have `size` bytes more."""
        account = holding.account
        if account.used_bytes + size <= self.floor_bytes:
            return True
        left = self.share(account) - account.used_bytes
        return size <= left and holding.used_bytes + size <= left

    def queue(self, holding: Holding, size: int) -> None:
        """Count `size` bytes of messages that wait for a handler, or as many fewer where it is negative."""
        self.queued_bytes += size
        holding.account.queued_bytes += size
        holding.queued_bytes += size
        assert holding.queued_bytes >= 0, "taken twice"
        self._forget(holding)

    def may_widen(self, holding: Holding, size: int) -> bool:
        """Whether messages of `size` bytes more may be asked for, beside all that is held."""
        account = holding.account
        return account.used_bytes + account.queued_bytes + size <= self.share(account) - self.queued_bytes

    def share(self, account: Account) -> int:
        """What `account` may hold now."""
        if account.is_control:
            return SHARE_OF_CONTROL * (self.bytes_max - self.used_bytes)
        return self.bytes_max - self.reserve_bytes - self.used_bytes

    def unread(self, holding: Holding, size: int) -> bool:
        """The peer lets `size` bytes of answers wait; false where that is above its share of such bytes."""
        account, more = holding.account, size - holding.unread_bytes
        self.unread_bytes += more
        account.unread_bytes += more
        holding.unread_bytes = size
        self._forget(holding)
        left = self.unread_bytes_max - self.unread_bytes
        return account.unread_bytes <= max(self.floor_bytes, left) and size <= max(
            self.floor_bytes, left - account.unread_bytes
        )

    # ------------------------------------------------------------------ tasks and RUN streams

    def may_start(self, holding: Holding) -> bool:
        """Whether `holding` may have one more task."""
        count, left = holding.account.task_count, self.tasks_max - self.task_count
        return count < TASKS_MIN or (count < left and holding.task_count < left - count)

    def started(self, holding: Holding) -> None:
        """A task runs."""
        self.task_count += 1
        holding.account.task_count += 1
        holding.task_count += 1

    def stopped(self, holding: Holding) -> None:
        """It has ended."""
        self.task_count -= 1
        holding.account.task_count -= 1
        holding.task_count -= 1
        self._forget(holding)

    def may_open(self, holding: Holding) -> bool:
        """Whether `holding` may have one more RUN stream."""
        count, left = holding.account.run_count, self.runs_max - self.run_count
        return count < TASKS_MIN or (count < left and holding.run_count < left - count)

    def opened(self, holding: Holding, count: int = 1) -> None:
        """A RUN stream is open, or (-1) no longer."""
        self.run_count += count
        holding.account.run_count += count
        holding.run_count += count
        self._forget(holding)

    # ------------------------------------------------------------------ those that wait

    def wait(self, waiter: Waiter, size: int = 0) -> None:
        """Ease `waiter` when there is room for `size` bytes more. Again, it waits for another size."""
        assert waiter.holding is not None, "who waits has greeted"
        self._waiting.setdefault(waiter.holding.account, {})[waiter] = size

    def forget(self, waiter: Waiter) -> None:
        """It waits no longer."""
        if waiter.holding is None:
            return
        line = self._waiting.get(waiter.holding.account)
        if line is not None and line.pop(waiter, None) is not None and not line:
            del self._waiting[waiter.holding.account]

    def is_waiting(self, waiter: Waiter) -> bool:
        """Whether it waits for room."""
        return waiter.holding is not None and waiter in self._waiting.get(waiter.holding.account, ())

    def _wake(self) -> None:
        """Ease those that fit, in order; the first of an account that does not keeps the others waiting.

        It is looked at again whenever bytes are given back, so a look costs no more than there are accounts.
        """
        for account, line in list(self._waiting.items()):
            while line:
                waiter, size = next(iter(line.items()))
                if waiter.holding is not None and not self.has_room(waiter.holding, size):
                    break
                del line[waiter]
                if not line:
                    del self._waiting[account]
                waiter.ease()

    def check(self) -> None:
        """Assert the invariants."""
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
                assert waiter.is_held, "who waits for room is not read"

    @staticmethod
    def _check(account: Account) -> None:
        for what in Owned._fields:
            in_all = sum([getattr(holding, what) for holding in account.holdings])
            has = getattr(account, what)
            assert in_all == has, f"connections of {account.name} have {in_all} {what}, and its account {has}"
        for holding in account.holdings:
            assert not (holding.has_left and holding.is_empty), "who has left and owns nothing is forgotten"
            if holding.owned is None:
                continue
            for what, owned in holding.owned()._asdict().items():
                counted = getattr(holding, what)
                gone = " that is gone" if holding.has_left else ""
                assert counted == owned, (
                    f"a connection of {account.name}{gone} owns {owned} {what}, and {counted} are counted"
                )

    def _count(self, holding: Holding, size: int) -> None:
        self.used_bytes += size
        holding.account.used_bytes += size
        holding.used_bytes += size

    def _forget(self, holding: Holding) -> None:
        if not (holding.has_left and holding.is_empty):
            return
        account = holding.account
        account.holdings.pop(holding, None)
        if not account.holdings:
            self.by_name.pop(account.name, None)
