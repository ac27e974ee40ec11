"""Kafka options: what to give in place of the options of Spark's Kafka source and sink.

A job that is moved from Kafka names them, and an error that lists only our options would let its author
guess. Names are in lower case; one that ends with a dot stands for all that begin with it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_ADDRESS: Final = "give option address, host:port of a node"
_IN_BYTES: Final = (
    "a batch is limited in bytes and not in messages (ADR 0204): give option maxBytesPerTrigger, the number "
    "of messages times their mean length"
)
_MINIMUM: Final = (
    "a batch waits for bytes and not for messages (ADR 0204): give option minBytesPerTrigger, the number of "
    "messages times their mean length"
)
_TASKS: Final = (
    "a task is cut at bytes and not at messages, whose count nobody knows before they are read: give option "
    "minPartitions, into how many tasks a batch is cut"
)
_BY_TIME: Final = (
    "give startingOffsets or endingOffsets, JSON of journal to byte offset: `journals.offset_at` of a client "
    "tells an offset for a time, which may be inside a frame (startingInsideFrame)"
)
_TRIGGER: Final = (
    "batches begin no faster than the query's trigger: give the query a trigger with processingTime"
)
_HEADERS: Final = (
    "a message has no headers: let them be fields of it, as a column headers ARRAY<STRUCT<key: STRING, "
    "value: BINARY>>. Leave the option out"
)
_GROUPS: Final = "there are no consumer groups: a query's position is in its checkpoint. Leave the option out"
_PATIENCE: Final = "give option patience, the seconds that the node may be away"
_CLIENT: Final = "options kafka.… are those of Kafka's client: leave them out"

OF_SOURCE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "subscribe": "give option journals, names separated by commas",
        "assign": "a journal is one sequence, as a partition is: give option journals, names separated by "
        "commas",
        "maxmessagespertrigger": _IN_BYTES,
        "maxoffsetspertrigger": _IN_BYTES,
        "maxrecordsperpartition": _TASKS,
        "minoffsetspertrigger": _MINIMUM,
        "minmessagespertrigger": _MINIMUM,
        "mintriggerdelay": _TRIGGER,
        "startingtimestamp": _BY_TIME,
        "startingoffsetsbytimestamp": _BY_TIME,
        "startingoffsetsbytimestampstrategy": _BY_TIME,
        "endingtimestamp": _BY_TIME,
        "endingoffsetsbytimestamp": _BY_TIME,
        "includeheaders": _HEADERS,
        "groupidprefix": _GROUPS,
        "kafka.group.id": _GROUPS,
        "kafka.isolation.level": "give option readCommitted",
        "kafkaconsumer.polltimeoutms": _PATIENCE,
        "fetchoffset.numretries": _PATIENCE,
        "fetchoffset.retryintervalms": _PATIENCE,
        "kafka.bootstrap.servers": _ADDRESS,
        "kafka.": _CLIENT,
    }
)
"""What the source has in place of Kafka's options."""
OF_SINK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "topic": "give option journal, or toJournals and keyColumn, or a column 'journal'",
        "includeheaders": _HEADERS,
        "kafka.bootstrap.servers": _ADDRESS,
        "kafka.": _CLIENT,
    }
)
"""What the sink has in place of Kafka's options."""


def instead(declined: Mapping[str, str], name: str) -> str | None:
    """What to give in place of option `name`; None if it is not one of `declined`."""
    if name in declined:
        return declined[name]
    return next(
        (text for each, text in declined.items() if each.endswith(".") and name.startswith(each)), None
    )
