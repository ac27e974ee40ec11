"""Source options: what a user may give to `spark.read` and `spark.readStream` of our format."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.framing import Kind
from broadsheet.spark.connection import TARGET_OPTIONS
from broadsheet.spark.pace import DELAY_MAX
from broadsheet.spark.read import REPLAY_BYTES_MAX

KNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        **TARGET_OPTIONS,
        "journals": "Names of journals, separated by commas. This option, `subscribePattern` or `selector` "
        f"is required. Create the journals with label `{FRAMING_LABEL}={Kind.JSON_LINES.value}` or "
        f"`{Kind.FIXED.value}`: without it each worker begins to read a journal at its begin.",
        "subscribePattern": "A regular expression (Python's `re`). The journals whose whole name it matches "
        "are read. One that is created later is taken up by the next batch, from its begin.",
        "selector": "A condition on labels, as `journals list --selector` has it, for example "
        "`topic=clicks,env in (eu, us)`. The journals that meet it are read, also those that are created "
        "later. One that does not meet it any more keeps its position.",
        "schema": "The columns to parse from each message, as DDL. Without it there are only the meta "
        "columns.",
        "metaColumn": "The name of a struct column that holds the meta columns. Without it they are columns "
        "of their own, and a field of a message that is named like one of them cannot be read.",
        "keyColumn": "The column, of those that are parsed from a message, that holds its key. Then there is "
        "a meta column `key`, as bytes.",
        "includeTimestamp": "Whether there is a meta column `timestamp`, which says when a message was sent: "
        "`true`, or `false` (the default).",
        "startingOffsets": "Where a new query begins: `earliest` (the default), at the first bytes that are "
        "there, or a JSON object that gives a byte offset for each journal.",
        "endingOffsets": "Where a batch read ends: `latest` (the default), or a JSON object that gives a "
        "byte offset for journals; the others are read to their ends. A message belongs to the span that "
        "holds its last byte, or that of its acknowledgement. Not for streams.",
        "startingInsideFrame": "What to do if a starting offset is inside a frame: `fail` (the default), or "
        "`next`: begin at the next frame, with a warning.",
        "maxBytesPerTrigger": "How many bytes of journals one micro-batch reads at most, and at least one of "
        "each journal that has new ones; 0 (the default) for all. Messages whose acknowledgement is read "
        "become rows wherever they lie. There is no limit in messages (ADR 0204).",
        "minBytesPerTrigger": "How many new bytes of its journals together a stream waits for before it "
        "begins a micro-batch; 0 (the default) for none. The first one of each run does not wait, nor do "
        "those of triggers availableNow and once.",
        "maxTriggerDelay": "How long after the micro-batch before that wait ends at the latest, as `30s` or "
        f"`15m`; {DELAY_MAX} by default.",
        "failOnDataLoss": "What to do if bytes that the query was to read are gone, because a journal was "
        "deleted, deleted and made again, or trimmed: `true` (the default) ends the query, `false` goes on "
        "without them, counts them, and reads the journal that has the name now from its begin.",
        "maxReplayMemory": "How many bytes of messages from before a block of the journal are in memory at "
        f"once; {REPLAY_BYTES_MAX} by default. With more of them the source reads more often; the order of "
        "the rows stays the same.",
        "malformed": "What to do with a message that does not parse: `fail` (the default) ends the query, "
        "`drop` leaves it out and reports how many, `keep` gives a row of nulls whose column `malformed` is "
        "true.",
        "readCommitted": "`true` (the default): a message appears once it is acknowledged. "
        "`false`: all messages appear, in the order of the journal. A checkpoint keeps the value that it was "
        "written with.",
        "tasks": "Into how many tasks a batch is cut at most; 0 (the default) for one per core of the "
        "driver. Tasks are cut at index points, which are up to 16 MiB apart.",
        "minPartitions": "Into how many tasks a batch is cut at least, at any byte if need be; 0 (the "
        "default) for no such minimum. A task that begins between index points also reads what lies before "
        "it from the last one on, up to 16 MiB.",
    }
)
"""The options of the source."""
