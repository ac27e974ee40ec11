"""The connection of one process to the node, and how long to be patient with it.

One client per process and address: Spark workers are forked and used again for many tasks, and a client
must not cross a fork. `patiently` repeats what is idempotent; what is not, its caller does not pass here.
Units: seconds.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from broadsheet.client import connect_sync
from broadsheet.client_sync import SyncClient, SyncJournals
from broadsheet.errors import ConfigError, OffsetNotYetAvailable, Refused, Retry, Unknown
from broadsheet.spark.options import Options

T = TypeVar("T")
PATIENCE_S = 120.0
"""How long a node may be away before a query fails; Spark then starts it again from its checkpoint."""
_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0
_clients: dict[tuple[int, str, str], SyncClient] = {}


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


def patiently(call: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """The result of an idempotent `call`, repeated while the node is away."""
    give_up = time.monotonic() + patience_s
    pause = _PAUSE_S
    while True:
        try:
            return call()
        except Exception as error:
            if not is_passing(error) or time.monotonic() > give_up:
                raise
        time.sleep(pause)
        pause = min(_PAUSE_MAX_S, 2 * pause)


def chunks(target: Target, journal: str, *, begin: int, end: int) -> Iterator[bytes]:
    """The committed bytes `[begin, end)`, all of them, across restarts of the node.

    Raises:
        OffsetNotYetAvailable: the node has lost bytes below `end`, or says so for longer than the patience.
    """
    at = begin
    while at < end:

        def more(at: int = at) -> Iterator[bytes]:
            got = iter(target.journals().read(journal, at, end=end))
            first = next(got, None)
            if first is None:
                raise OffsetNotYetAvailable(
                    f"{journal} ends at {at}, below the committed end {end} seen before"
                )
            return _data(first.data, got)

        try:
            for data in patiently(more, target.patience_s):
                at += len(data)
                yield data
        except Exception as error:
            if not is_passing(error):
                raise


def _data(first: bytes, rest: Iterator[object]) -> Iterator[bytes]:
    yield first
    for chunk in rest:
        yield chunk.data  # type: ignore[attr-defined]  # A Chunk: the iterator's type is lost by `iter`.
