"""The connection of one process to the node, and how long to be patient with it.

One client per process and address: Spark workers are forked and used again for many tasks, and a client
must not cross a fork. `patiently` repeats what is idempotent; what is not, its caller does not pass here.
Units: seconds.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import MILLISECOND, SECOND, Duration, in_seconds
from broadsheet.client_sync import SyncClient, SyncJournals, connect_sync, within
from broadsheet.errors import (
    ConfigError,
    Corrupt,
    DeadlineExceeded,
    OffsetNotYetAvailable,
    Refused,
    Retry,
    StoreUnhealthy,
    Unknown,
)
from broadsheet.journal.messages import Chunk
from broadsheet.spark.offsets import Position
from broadsheet.spark.options import Options

T = TypeVar("T")
PATIENCE_S = 120.0
"""How long a node may be away before a query fails; Spark then starts it again from its checkpoint."""
_PAUSE_MIN: Final = Duration(50 * MILLISECOND)
_PAUSE_MAX: Final = SECOND
WHOLE: Final = ("open", "full")
"""States of a journal that has every byte that it acknowledged."""
_clients: dict[tuple[int, str, str], SyncClient] = {}


TARGET_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "address": "`host:port` of a node's native door; else `BROADSHEET_ADDRESS` of the environment.",
        "token": "What the node asks callers for; else `BROADSHEET_TOKEN` of the environment.",
        "patience": "Seconds that the node may be away, or owe an answer, before the query fails; "
        f"{PATIENCE_S:g} by default.",
    }
)
"""The options that name a node."""


class Target(NamedTuple):
    """A node, as options name it; small, and pickled into workers."""

    address: str
    token: str = ""
    patience_s: float = PATIENCE_S

    @staticmethod
    def of(options: Options) -> "Target":
        """The target that `options` name.

        Raises:
            ConfigError: there is no address.
        """
        address = options.text("address") or os.environ.get("BROADSHEET_ADDRESS", "")
        if not address:
            raise ConfigError("option 'address' is missing: host:port of a node's native door")
        token = options.text("token") or os.environ.get("BROADSHEET_TOKEN", "")
        return Target(address, token, options.seconds("patience", PATIENCE_S))

    def journals(self) -> SyncJournals:
        """The journals of the node, by this process's one client."""
        key = (os.getpid(), self.address, self.token)
        if key not in _clients:
            made = patiently(lambda: connect_sync(self.address, self.token or None), self.patience_s)
            if _clients.setdefault(key, made) is not made:  # Another thread of this process was first.
                made.close()
        return _clients[key].journals


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    return isinstance(error, Unknown | OSError) or (isinstance(error, Refused) and error.retry is Retry.LATER)


class Patience:
    """How long one thing may still take: time that the node is away, or does not answer."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._backoff = seconds, Backoff(_PAUSE_MIN, _PAUSE_MAX)
        self.renew()

    def renew(self) -> None:
        """Something came: begin again."""
        self._give_up = time.monotonic() + self._seconds
        self._backoff.reset()
        self._said: Exception | None = None

    def left(self) -> float:
        """Seconds until it ends."""
        return max(0.0, self._give_up - time.monotonic())

    def after(self, error: Exception) -> None:
        """Pause before another attempt, or raise what the last one said.

        Raises:
            Exception: it does not pass, or the time is up.
        """
        if not is_passing(error):
            raise error
        if in_seconds(self._backoff.pause) >= self.left():
            if isinstance(error, DeadlineExceeded) and self._said is not None:
                raise self._said from error  # It says more than that the time is up.
            raise error
        self._said = error
        time.sleep(in_seconds(self._backoff.next()))


def patiently(call: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """The result of an idempotent `call`, repeated while the node is away: `patience_s` in all.

    Raises:
        Exception: what `call` raised last.
    """
    patience = Patience(patience_s)
    while True:
        try:
            with within(patience.left()):
                return call()
        except Exception as error:  # noqa: BLE001 - judged there.
            patience.after(error)


def head(journals: SyncJournals, name: str) -> Position:
    """The committed end of a journal that is open and whole.

    A journal that is being opened has no end yet, and one that lacks acknowledged bytes has not the one that
    it had: a query planned up to either would leave out messages and say that it has them all.

    Raises:
        StoreUnhealthy: it is being opened; this passes.
        Corrupt: it lacks bytes that were acknowledged.
    """
    status = journals.status(name)
    if status.end is None:
        raise StoreUnhealthy(
            f"journal {name} is being opened, and its end is not known: {status.reason or 'wait for it'}"
        )
    if status.state not in WHOLE:
        raise Corrupt(f"journal {name} is {status.state}, and its end is not what it was: {status.reason}")
    return Position(status.end, status.create_revision)


def chunks(target: Target, journal: str, *, begin: int, end: int) -> Iterator[bytes]:
    """The committed bytes `[begin, end)`, all of them, across restarts of the node.

    The patience begins again with each chunk; time that the caller spends with one does not count.

    Raises:
        OffsetNotYetAvailable: the node says for longer than the patience that it ends below `end`.
        Unknown, Refused: it is away, or refuses, for longer than the patience.
    """
    at, patience = begin, Patience(target.patience_s)
    while at < end:
        try:
            with within(patience.left()):
                reading = target.journals().read(journal, at, end=end, patience=target.patience_s)
            while (chunk := _next(reading, patience)) is not None:
                at = chunk.end
                yield chunk.data
                patience.renew()
            if at < end:
                raise OffsetNotYetAvailable(
                    f"{journal} ends at {at}, below the committed end {end} seen before"
                )
        except Exception as error:  # noqa: BLE001 - judged there.
            patience.after(error)


def _next(reading: Iterator[Chunk], patience: Patience) -> Chunk | None:
    with within(patience.left()):
        return next(reading, None)
