"""Message: one message of a journal as a reader gives it."""

from typing import Any

import msgspec

from broadsheet.message.framing import Framing, Kind
from broadsheet.message.position import Position
from broadsheet.message.uuid import NO_ID, MessageId, pack, to_text


class Message(msgspec.Struct, frozen=True):
    """One message, and where a reader stands behind it."""

    journal: str
    value: bytes
    """For JSON lines the line without its newline; for fixed frames the body without header and UUID."""
    offset: int
    """Where its frame begins, in bytes of the journal."""
    end: int
    """Where its frame ends (exclusive)."""
    id: MessageId
    """Producer, clock and flags of its UUID; `NO_ID` if it has none."""
    position: Position
    """Keep it when the message is done with: a reader that starts there gives the next one."""
    framing: Framing

    @property
    def uuid(self) -> str | None:
        """The UUID as text; None if the message has none."""
        return None if self.id == NO_ID else to_text(pack(*self.id))

    def json(self) -> Any:  # noqa: ANN401 - whatever the message holds.
        """The value, decoded. The field that holds the UUID is left out, so that it can be published again.

        Raises:
            ValueError: the value is not JSON.
        """
        found = msgspec.json.decode(self.value)
        if self.framing.kind is Kind.JSON_LINES and self.id != NO_ID and isinstance(found, dict):
            found.pop(self.framing.uuid_field.split(".")[0], None)
        return found
