"""Broadsheet: a durable, transactional streaming store.

    async with broadsheet.connect("127.0.0.1:6640") as client:
        await client.journals.append("events/clicks", row)

Importing it loads nothing heavy: Spark workers and `broadsheet up` depend on that, and a test holds it
(node.8).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from broadsheet import errors
from broadsheet.errors import (
    BroadsheetError,
    ConfigError,
    Corrupt,
    DeadlineExceeded,
    Refused,
    Unknown,
)

if TYPE_CHECKING:
    from broadsheet.client import connect as connect
    from broadsheet.client_sync import connect_sync as connect_sync
    from broadsheet.message.position import Position as Position
    from broadsheet.message.position import positions_from_text as positions_from_text
    from broadsheet.message.position import positions_to_text as positions_to_text

__version__: Final = "0.1.0"

__all__ = [
    "BroadsheetError",
    "ConfigError",
    "Corrupt",
    "DeadlineExceeded",
    "Position",
    "Refused",
    "Unknown",
    "__version__",
    "connect",
    "connect_sync",
    "errors",
    "positions_from_text",
    "positions_to_text",
]

_LAZY: Final = {
    "connect": "broadsheet.client",
    "connect_sync": "broadsheet.client_sync",
    "Position": "broadsheet.message.position",
    "positions_from_text": "broadsheet.message.position",
    "positions_to_text": "broadsheet.message.position",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the types stand above, for type checkers.
    """Load the client when it is first asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
