"""Accounts: the request bytes that each caller has in flight, and its share of the node's budget.

Sizes are bytes. A caller's account may hold as much as all accounts together leave free: one alone takes half
of the budget, n of them a (n+1)th each, and the same is left for the next one to come. `reserve_bytes` of the
budget is for control (peers and operators) only. Whoever holds less than `floor_bytes` is never held back, so
that a small request always gets through. Where an account holds more than its share, its connections are not
read.

    used <= max(floor, share)   when bytes are taken; shares shrink as others come, and nobody is cut off

Taking never fails: received bytes always count, even above the limit. Source: Choudhury and Hahne, dynamic
queue length thresholds; ADR 0152.
"""

from collections.abc import Callable
from typing import Final

from broadsheet.runtime.turn import Rank, Turn
from broadsheet.wire.limits import WireLimits

SHARE_OF_CONTROL: Final = 4
"""Control may use so many times what is left free: peers and operators first."""
TASKS_MIN: Final = 64
"""Tasks that an account may have however many there are."""


class Account:
    """One caller's bytes in flight."""

    __slots__ = ("connection_count", "is_control", "name", "queued_bytes", "task_count", "used_bytes")

    def __init__(self, name: str, *, is_control: bool) -> None:
        self.name, self.is_control = name, is_control
        self.used_bytes = self.connection_count = self.task_count = 0
        self.queued_bytes = 0
        """Messages that wait for a handler.

        They never hold a connection back: the handler may be waiting for a WINDOW or a FINISH behind them,
        and nobody would ever read it.
        """


class Accounts:
    """The accounts of one server, and those that wait for room."""

    def __init__(self, limits: WireLimits, turn: Turn) -> None:
        """Divide what `limits` allow; who waits for room goes on at the end of a `turn`."""
        self.bytes_max, self.reserve_bytes = limits.node_in_flight_bytes_max, limits.reserve_bytes
        self.floor_bytes, self.tasks_max = limits.floor_bytes, limits.node_tasks_max
        self.used_bytes = self.task_count = self.queued_bytes = 0
        self._turn = turn
        self.by_name: dict[str, Account] = {}
        self._waiting: dict[Callable[[], None], None] = {}

    def enter(self, name: str, *, is_control: bool) -> Account:
        """The account of `name`, for one more connection."""
        account = self.by_name.get(name)
        if account is None:
            account = self.by_name[name] = Account(name, is_control=is_control)
        account.connection_count += 1
        return account

    def leave(self, account: Account) -> None:
        """A connection of `account` is gone, and its bytes will be given back, or are already."""
        account.connection_count -= 1
        self._forget(account)

    def take(self, account: Account, size: int) -> bool:
        """Count `size` bytes; false where the account holds more than its share now."""
        self.used_bytes += size
        account.used_bytes += size
        return self.has_room(account)

    def give(self, account: Account, size: int) -> None:
        """Count them no longer, and let those go on that wait for room."""
        self.used_bytes -= size
        account.used_bytes -= size
        assert account.used_bytes >= 0, "given back twice"
        self._forget(account)
        if self._waiting:
            self._turn.at_end(Rank.WIRE, self._wake)

    def has_room(self, account: Account, size: int = 0) -> bool:
        """Whether `account` may hold `size` bytes more."""
        wanted = account.used_bytes + size
        if wanted <= self.floor_bytes:
            return True
        return wanted <= self.share(account)

    def queue(self, account: Account, size: int) -> None:
        """Count `size` bytes of messages that wait for a handler, or as many fewer where it is negative."""
        self.queued_bytes += size
        account.queued_bytes += size
        assert account.queued_bytes >= 0, "taken twice"
        self._forget(account)

    def may_widen(self, account: Account, size: int) -> bool:
        """Whether messages of `size` bytes more may be asked for, beside all that is held."""
        return account.used_bytes + account.queued_bytes + size <= self.share(account) - self.queued_bytes

    def share(self, account: Account) -> int:
        """What `account` may hold now."""
        if account.is_control:
            return SHARE_OF_CONTROL * (self.bytes_max - self.used_bytes)
        return self.bytes_max - self.reserve_bytes - self.used_bytes

    def may_start(self, account: Account) -> bool:
        """Whether `account` may have one more task: it shares these as it does bytes."""
        return account.task_count < max(TASKS_MIN, self.tasks_max - self.task_count)

    def started(self, account: Account) -> None:
        """A task of `account` runs."""
        self.task_count += 1
        account.task_count += 1

    def stopped(self, account: Account) -> None:
        """It has ended."""
        self.task_count -= 1
        account.task_count -= 1

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when bytes were given back."""
        self._waiting[resume] = None

    def forget(self, resume: Callable[[], None]) -> None:
        """Do not call it."""
        self._waiting.pop(resume, None)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for resume in waiting:
            resume()

    def check(self) -> None:
        """Assert the invariants."""
        in_all = sum([account.used_bytes for account in self.by_name.values()])
        assert in_all == self.used_bytes, f"accounts hold {in_all} bytes, and the node {self.used_bytes}"
        in_queues = sum([account.queued_bytes for account in self.by_name.values()])
        assert in_queues == self.queued_bytes, f"accounts queue {in_queues}, and the node {self.queued_bytes}"
        assert all(account.connection_count >= 0 for account in self.by_name.values()), "left twice"

    def _forget(self, account: Account) -> None:
        if not (account.connection_count or account.used_bytes or account.queued_bytes):
            self.by_name.pop(account.name, None)
