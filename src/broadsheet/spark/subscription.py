"""Subscription: which journals a query reads, by names, by a pattern of names, or by labels.

A subscription by pattern or labels is looked up again whenever a batch is planned, so it takes up new
journals. Calls about many journals run `CALLS_AT_ONCE` at a time. Source: pipelines.2, pipelines.4.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from broadsheet.base.labels import parse_selector
from broadsheet.client_sync import SyncJournals
from broadsheet.errors import ConfigError, InvalidArgument, NotFound
from broadsheet.journal.messages import JournalInfo
from broadsheet.message.position import Position
from broadsheet.spark.connection import Target, head, patiently
from broadsheet.spark.options import Options

T = TypeVar("T")
CALLS_AT_ONCE: Final = 16
"""How many calls about journals are on their way at once."""
CALLS_AHEAD: Final = 16 * CALLS_AT_ONCE
"""How many names may be asked behind one that has not answered."""


class Subscription(NamedTuple):
    """The journals that a query reads. One of the three fields is set."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    selector: str = ""

    @staticmethod
    def of(options: Options) -> "Subscription":
        """The subscription that `options` describe.

        Raises:
            ConfigError: none of the three options is given, or several are, or one is malformed.
        """
        return Subscription.checked(
            tuple(options.names("journals")),
            options.text("subscribePattern"),
            options.text("selector").strip(),
        )

    @staticmethod
    def checked(names: tuple[str, ...], pattern: str, selector: str) -> "Subscription":
        """A subscription by exactly one of `names`, `pattern` and `selector`.

        Raises:
            ConfigError: as `of`.
        """
        found = Subscription(names, pattern, selector)
        given = [option for option, value in zip(OPTIONS, found, strict=True) if value]
        if not given:
            raise ConfigError(
                "option 'journals' is missing: give names of journals, separated by commas, or option "
                "'subscribePattern' or 'selector'"
            )
        if len(given) > 1:
            raise ConfigError(f"options {given} are given: set one of them")
        try:
            re.compile(pattern)
            parse_selector(selector)
        except (re.error, InvalidArgument) as error:
            raise ConfigError(f"option {given[0]} is {(pattern or selector)!r}: {error}") from error
        return found

    def asks_for(self, journal: str) -> bool:
        """Whether a journal of that name is read, as far as the name tells. Labels are not known here."""
        if self.names:
            return journal in self.names
        return not self.pattern or re.fullmatch(self.pattern, journal) is not None

    def infos(self, target: Target) -> dict[str, JournalInfo]:
        """The journals that exist now. A name of option `journals` that does not exist is left out."""
        if self.names:
            return of_each_that_exists(SyncJournals.get, target, self.names)
        listed = patiently(lambda: target.journals().list(selector=self.selector), target.patience_s)
        return {info.name: info for info in listed if self.asks_for(info.name)}

    def heads(self, target: Target) -> dict[str, Position]:
        """The committed end of each journal that exists, taken only from one that is open and whole.

        Raises:
            StoreUnhealthy: a journal is still being opened when the patience ends.
            Corrupt: a journal lost bytes that were acknowledged.
        """
        return of_each_that_exists(head, target, self.names or self.infos(target))


def not_existing(journals: Sequence[str]) -> ConfigError:
    """The error of names of option `journals` that no journal has."""
    return ConfigError(f"journals {journals} do not exist: create them, or correct option 'journals'")


OPTIONS: Final = ("journals", "subscribePattern", "selector")
"""The options that name journals, in the order of the fields of `Subscription`."""


def of_each(call: Callable[[str], T | None], names: Iterable[str]) -> dict[str, T]:
    """What `call` says of each name, without those of which it says None. Calls run beside each other.

    Raises:
        Exception: the first error, by the order of `names`. Of the names behind it, at most `CALLS_AHEAD`
            were asked.
    """
    threads = ThreadPoolExecutor(CALLS_AT_ONCE, "broadsheet-plan")
    found: dict[str, T] = {}
    ahead: deque[tuple[str, Future[T | None]]] = deque()

    def take() -> None:
        name, answer = ahead.popleft()
        if (said := answer.result()) is not None:
            found[name] = said

    try:
        for name in dict.fromkeys(names):
            ahead.append((name, threads.submit(call, name)))
            if len(ahead) > CALLS_AHEAD:
                take()
        while ahead:
            take()
    finally:
        threads.shutdown(cancel_futures=True)
    return found


def of_each_that_exists(
    ask: Callable[[SyncJournals, str], T], target: Target, names: Iterable[str]
) -> dict[str, T]:
    """What the node says of each journal; one that does not exist is left out. The node is waited for."""
    journals = target.journals()

    def asked(name: str) -> T | None:
        try:
            return patiently(partial(ask, journals, name), target.patience_s)
        except NotFound:
            return None

    return of_each(asked, names)
