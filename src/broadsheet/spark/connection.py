"""Connection: the one client that a process of Spark has per node, and how long it waits for the node.

Spark forks its workers and uses each for many tasks. A client must not cross a fork, so clients are kept by
process id, address and token. `patiently` repeats a call whose outcome is unknown, so pass only idempotent
calls to it. Units: seconds.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import MILLISECOND, SECOND, Duration, in_seconds
from broadsheet.client_sync import SyncClient, SyncJournals, connect_sync, within
from broadsheet.errors import ConfigError, Corrupt, DeadlineExceeded, is_passing
from broadsheet.message.position import Position
from broadsheet.spark.options import Options

T = TypeVar("T")
PATIENCE_S = 120.0
"""How long a node may be away before a query fails; Spark then starts it again from its checkpoint."""
_PAUSE_MIN: Final = Duration(50 * MILLISECOND)
_PAUSE_MAX: Final = SECOND
WHOLE: Final = ("open", "full", "healing")
"""States of a journal whose end is right: it lost no acknowledged byte, as far as is known, and is read."""
_clients: dict[tuple[int, str, str], SyncClient] = {}


TARGET_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "address": "`host:port` of a node's native door. The default is `BROADSHEET_ADDRESS` of the "
        "environment.",
        "token": "The token to call the node with. The default is `BROADSHEET_TOKEN` of the environment.",
        "patience": "How many seconds the node may be away, or leave a call unanswered, before the query "
        f"fails. The default is {PATIENCE_S:g}.",
    }
)
"""The options that name a node."""


def token_of(given: str) -> str:
    """The token `given`, or that of the environment if it is empty."""
    return given or os.environ.get("BROADSHEET_TOKEN", "")


class Target(NamedTuple):
    """The node that the options name. It is small, because Spark pickles it into each task."""

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
            raise ConfigError(
                "option 'address' is missing, and so is BROADSHEET_ADDRESS of the environment: set one to "
                "host:port of a node's native door"
            )
        return Target(address, token_of(options.text("token")), options.seconds("patience", PATIENCE_S))

    def journals(self) -> SyncJournals:
        """The journals of the node, through this process's client, which is made on first use."""
        key = (os.getpid(), self.address, self.token)
        if key not in _clients:
            made = patiently(lambda: connect_sync(self.address, self.token or None), self.patience_s)
            if _clients.setdefault(key, made) is not made:  # Another thread of this process was first.
                made.close()
        return _clients[key].journals


def patiently(call: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """The result of an idempotent `call`, which is repeated for `patience_s` while the node is away.

    Raises:
        Exception: `call` raised it, and its cause does not pass, or the time is up. If the last error is only
            `DeadlineExceeded`, the error of an earlier attempt is raised in its place.
    """
    give_up, backoff = time.monotonic() + patience_s, Backoff(_PAUSE_MIN, _PAUSE_MAX)
    said: Exception | None = None
    while True:
        try:
            with within(max(0.0, give_up - time.monotonic())):
                return call()
        except Exception as error:
            if not is_passing(error):
                raise
            if time.monotonic() + in_seconds(backoff.pause) >= give_up:
                if isinstance(error, DeadlineExceeded) and said is not None:
                    raise said from error  # The earlier error says more than that the time is up.
                raise
            said = error
        time.sleep(in_seconds(backoff.next()))


def head(journals: SyncJournals, name: str) -> Position:
    """The committed end of a journal that is open and whole, with its begin.

    A journal that is being opened does not know its end yet, and one that lost acknowledged bytes reports an
    end that is too low. A query planned up to either end would miss messages and report success.

    Raises:
        StoreUnhealthy: the journal is being opened; the same call may succeed later.
        Corrupt: the journal lost bytes that were acknowledged.
    """
    status = journals.status(name)
    end = status.require_end()
    if status.state not in WHOLE:
        raise Corrupt(
            f"journal {name} is {status.state}: acknowledged bytes are missing ({status.reason}). "
            "docs/operations/damage.md says what an operator can do"
        )
    return Position(end, status.create_revision, begin=status.begin or 0)


def chunks(target: Target, journal: str, *, create_revision: int, begin: int, end: int) -> Iterator[bytes]:
    """All bytes of `[begin, end)`, which are known to be committed. A restart of the node is waited for.

    Raises:
        NotFound: the journal was deleted, or another one has its name.
        OffsetNotYetAvailable: for longer than the patience the node reported an end below `end`.
        Unknown, Refused: the node was away, or refused, for longer than the patience.
    """
    reading = target.journals().read(
        journal,
        begin,
        end=end,
        is_whole=True,
        patience=target.patience_s,
        create_revision=create_revision,
    )
    with closing(reading):
        for chunk in reading:
            yield chunk.data
