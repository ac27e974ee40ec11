"""Refusal messages: the error text of a refused append, with the values and the remedy."""

from typing import Final, Protocol

from broadsheet.base.time import SECOND
from broadsheet.base.types import JournalName
from broadsheet.errors import Status
from broadsheet.journal.context import Context
from broadsheet.journal.core.registers import REGISTERS_BYTES_MAX, REGISTERS_MAX
from broadsheet.journal.remedies import accept_loss

_MESSAGES: Final[dict[Status, str]] = {
    Status.WRONG_APPEND_OFFSET: "the head is {begin}, not the expected offset",
    Status.REGISTER_MISMATCH: "the registers at {begin} are not as the append expects: read them",
    Status.REGISTERS_UNKNOWN: "its registers are lost (journals.12): {remedy}",
    Status.INDEX_HAS_GREATER_OFFSET: "{reason}",
    Status.STORE_UNHEALTHY: "{fullness}; reads go on",
    Status.THROTTLED: "too many appends of it are not answered yet; try again later",
    Status.ALREADY_EXISTS: "an append with this attempt id has taken effect already",
    Status.SHUTTING_DOWN: "it is being closed, and nothing was appended: try again",
    Status.NOT_FOUND: "it was deleted, and nothing was appended",
    Status.CANCELLED: "its client gave it up, or waited no longer, and nothing was appended",
    Status.FENCED: "another owner has written its epoch key",
    Status.UNKNOWN: "it was closed before the append was known to be durable: look for the content in it",
    Status.TOO_SLOW: "the client sent less than limits.flow_bytes_per_second_min, {rate} bytes a second, for"
    " {stall} s, and nothing was appended: gather the content first, or append it in smaller pieces",
    Status.CORRUPT: "the staged content was read back with another checksum, and nothing was appended",
    Status.INVALID_ARGUMENT: "registers change only together with content: append at least one byte",
    Status.TOO_LARGE: "its content is above limits.append_bytes_max, {bytes_max} bytes: split it; or its"
    " registers would be more than {registers_max}, or more than {registers_bytes_max} bytes together",
}


class Refusing(Protocol):
    """The journal that refuses an append, as `Replica` is one."""

    name: JournalName
    context: Context
    stop_reason: str
    log_fault: str
    fullness: str
    shortage: str


def refusal(status: Status, journal: Refusing, begin: int) -> str:
    """The error text of a refused append, in which `begin` is the head that it met."""
    fullness = (
        journal.log_fault
        or journal.fullness
        or journal.shortage
        or "the disk had no space left for it, or the process no open file: free some"
    )
    limits = journal.context.config.limits
    named = f"journal {journal.name}: "
    text = _MESSAGES.get(status, status.name).format(
        begin=begin,
        reason=journal.stop_reason,
        remedy=accept_loss(journal.name),
        fullness=fullness,
        bytes_max=limits.append_bytes_max,
        registers_max=REGISTERS_MAX,
        registers_bytes_max=REGISTERS_BYTES_MAX,
        rate=limits.flow_bytes_per_second_min,
        stall=limits.flow_stall // SECOND,
    )
    return text if text.startswith(named) else named + text  # Reasons that a status tells name the journal.
