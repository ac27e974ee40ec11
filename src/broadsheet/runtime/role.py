"""Role: one part of a node. Each domain exports a role, and `node.py` lists them in order (node.1)."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from broadsheet.ports import Disk, Network, ObjectStore, Random, Time, Timers
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.runtime.turn import Turn

T = TypeVar("T")


class StoreNotes:
    """What a node keeps of the object stores that it has used: here nothing, as if it had used every one."""

    def is_known(self, _url: str) -> bool:
        """Whether the node has opened the store at that URL before, in this life or an earlier one.

        A store that it has opened may be down at a start. Takes some microseconds.
        """
        return True

    def are_one(self, url: str, other: str) -> bool:
        """Whether two URLs name the same store."""
        return url == other

    def default(self) -> str | None:
        """The URL that `keep_default` kept last, in this life or an earlier one; None if there is none.

        Blocking.

        Raises:
            ConfigError: what was kept is damaged.
        """
        return None

    def keep_default(self, _url: str) -> None:
        """Keep the URL of the store of those who name none, durably. Blocking."""


class Ports:
    """The ports of one node: all its access to the world."""

    def __init__(
        self,
        *,
        time: Time,
        timers: Timers,
        disk: Disk,
        network: Network,
        objects: Callable[[str], ObjectStore],
        random: Callable[[str], Random],
        crash: Crash,
        open_files_max: int = 1 << 20,
        store_notes: StoreNotes | None = None,
    ) -> None:
        """Gather the ports.

        Args:
            open_files_max: descriptors that the process may have.
            objects: the store of a URL such as `file:///var/fragments/`.
            store_notes: what the node keeps of the stores that it has used; None to keep nothing.
            random: a stream of entropy of its own for each purpose, new in each boot.
            crash: ends the node.
        """
        self.time, self.timers, self.disk, self.network = time, timers, disk, network
        self.objects, self.random, self.crash = objects, random, crash
        self.store_notes = StoreNotes() if store_notes is None else store_notes
        self.open_files_max = open_files_max
        self.turn = Turn(timers, crash=crash)


class ClosingNotice:
    """What a role does when its node begins to close, before the doors wait for their open streams."""

    def __init__(self, act: Callable[[], None]) -> None:
        """Take the deed; it must not fail, and may come more than once."""
        self.act = act


class Services:
    """What roles offer to later roles, found by its class."""

    def __init__(self) -> None:
        self._offered: dict[type, list[Any]] = {}

    def offer(self, kind: type[T], thing: T) -> None:
        """Let later roles find `thing` as a `kind`."""
        self._offered.setdefault(kind, []).append(thing)

    def one(self, kind: type[T]) -> T:
        """The only `kind` offered so far. There must be exactly one."""
        (thing,) = self._offered.get(kind, [])
        return thing  # type: ignore[no-any-return]  # `offer` has checked its type.

    def every(self, kind: type[T]) -> list[T]:
        """Every `kind` offered so far, in order."""
        return list(self._offered.get(kind, []))


class Role(Protocol):
    """One domain's part in a node."""

    @property
    def name(self) -> str:
        """The domain's word, as in the configuration."""
        ...

    async def start(
        self,
        scope: Scope,
        ports: Ports,
        config: Any,  # noqa: ANN401 - its own.
        services: Services,
    ) -> None:
        """Recover the role, then offer its services. `config` is the domain's own frozen struct.

        Raises:
            ConfigError: the role cannot start with this configuration or data directory.
            Corrupt: the role's data are damaged, and it may not repair them by itself.
        """
        ...
