"""Readiness: what keeps a role from serving, said by the role itself and collected by its node (node.12)."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from broadsheet.base.time import SECOND, Duration


class Trouble(msgspec.Struct, frozen=True):
    """One reason why a role serves less than it should."""

    cause: str
    """A fixed word, such as `disk_full`; a role has each at most once."""
    text: str
    """The reason with its numbers and its remedy. Anybody may read it: no names of journals, no paths."""
    is_warning: bool = False
    """Whether the role serves nevertheless: the node stays ready."""
    detail: str = ""
    """What the node's log tells besides."""


class ReadinessSource(msgspec.Struct, frozen=True):
    """What a role says of its readiness. Offered by the role; read several times in a second."""

    name: str
    """The role's own name."""
    troubles: Callable[[], Sequence[Trouble]]
    """What is wrong now: microseconds, without IO; empty if the role serves."""
    probe: Callable[[], Awaitable[None]] | None = None
    """Asks what only an answer tells, such as whether a majority is there, and notes it for `troubles`. It is
    called again `pause` after it has ended; it may take long, and never raises."""
    pause: Duration = Duration(1 * SECOND)
