"""Messages: the requests and replies of the journal methods on the native door.

Integers are byte offsets and revisions, typed as in `base.types`; times are nanoseconds. The method table is
in `journal/service.py`. Payload bytes are not part of these structs. Fields are only ever added, with a
default.
"""

from typing import Annotated

import msgspec

from broadsheet.base.labels import LABELS_MAX
from broadsheet.base.time import Duration, WallTime
from broadsheet.base.types import ByteOffset, Epoch, JournalName, Revision
from broadsheet.errors import StoreUnhealthy
from broadsheet.journal.core.fragment import Codec
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.spec import JournalSpec


class JournalInfo(msgspec.Struct, frozen=True):
    """A journal as the Keyspace has it."""

    spec: JournalSpec
    create_revision: Revision
    """The revision that created the journal; a later journal of the same name has another."""
    mod_revision: Revision
    """The revision of the spec's last change."""

    @property
    def name(self) -> JournalName:
        """The journal's name."""
        return self.spec.name


class Commit(msgspec.Struct, frozen=True):
    """The span `[begin, end)` of one append to a journal; of a barrier an empty one, at the committed end."""

    begin: ByteOffset
    end: ByteOffset


class Chunk(msgspec.Struct, frozen=True):
    """Committed bytes of a journal, from `offset` on."""

    offset: ByteOffset
    data: bytes

    @property
    def end(self) -> ByteOffset:
        """The offset after the last byte."""
        return ByteOffset(self.offset + len(self.data))


class Registers(msgspec.Struct, frozen=True):
    """A journal's registers, after every append that was acknowledged before the read."""

    values: dict[str, str]
    version: int
    """How often they changed since the journal was created; 0: never."""
    at: ByteOffset
    """The end of the append that changed them last."""


class FragmentInfo(msgspec.Struct, frozen=True):
    """A fragment that the store holds or, if not `is_stored`, a closed one that is to be stored."""

    name: str
    """Content name, as in the store."""
    begin: ByteOffset
    end: ByteOffset
    is_stored: bool


class JournalStatus(msgspec.Struct, frozen=True):
    """The state of a journal."""

    name: JournalName
    state: str
    """`open`, `opening`, `full`, `healing`, `damaged`, `behind-index`, `lost` or `closed`."""
    create_revision: Revision
    begin: ByteOffset | None = None
    """The first byte that can still be read. None while it is not known: before the journal is open, and
    before the fragment store has answered."""
    end: ByteOffset | None = None
    """The committed end. None before the journal is open."""
    epoch: Epoch = Epoch(0)
    """The revision at which this node took the journal over; 0 before it is open."""
    registers_version: int = 0
    """-1 if the registers are lost (journals.12)."""
    fragment_count: int = 0
    spool_bytes: int = 0
    """Bytes of the open fragment."""
    reason: str = ""
    """Why the state is not `open`, or what else is wrong with the journal, with the remedy."""

    def require_end(self) -> ByteOffset:
        """The journal's committed end.

        Raises:
            StoreUnhealthy: the journal is being opened, and does not know it yet.
        """
        if self.end is None:
            raise StoreUnhealthy(
                f"journal {self.name} is being opened, and its end is not known: "
                f"{self.reason or 'its turn has not come'}; try again later"
            )
        return self.end


class CreateRequest(msgspec.Struct, frozen=True):
    """Create a journal."""

    spec: JournalSpec


class SpecChange(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What of a journal's spec is to be another; None: as it is. Times are nanoseconds."""

    length: int | None = None
    codec: Codec | None = None
    store: str | None = None
    flush_interval: Duration | None = None
    retention: Duration | None = None
    retained_bytes: int | None = None
    labels: Annotated[dict[str, str | None], msgspec.Meta(max_length=4 * LABELS_MAX)] = {}
    """New values of labels; None: the label is removed."""


class AlterRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Change a journal's spec."""

    journal: JournalName
    change: SpecChange
    create_revision: Revision | None = None


class NameRequest(msgspec.Struct, frozen=True):
    """Ask about, or delete, one journal."""

    journal: JournalName
    create_revision: Revision | None = None
    """Which journal of that name is meant; None: whichever exists."""


class LossRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ask what a journal lost, or (`may_act`) let it go on without that."""

    journal: JournalName
    create_revision: Revision | None = None
    may_act: bool = False
    head: ByteOffset | None = None
    """Where appends go on; None: at the lowest offset that is safe."""


class LostSpan(msgspec.Struct, frozen=True):
    """A span of a journal whose content no sound record or file proves, as the native door tells it."""

    begin: ByteOffset
    end: ByteOffset
    why: str
    sum: str = ""
    """SHA-1 of its fragment through `end`, in hexadecimal; empty if no record has it."""
    first_append: int = 0
    """When its fragment got its first byte, in nanoseconds since 1970; 0 if that is not known."""


class LossReply(msgspec.Struct, frozen=True):
    """What of a journal is lost, and whether the journal goes on without it."""

    journal: JournalName
    reason: str
    """Why the journal refuses appends or reads."""
    head: ByteOffset
    """Where appends go on."""
    lost: list[LostSpan]
    are_registers_lost: bool
    """True: the registers begin anew, empty."""
    kept_aside: list[str]
    """Files that were moved aside, beside the journal's spools."""
    is_done: bool


class TrimRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Remove a journal's fragments that end at or below an offset."""

    journal: JournalName
    below: ByteOffset
    create_revision: Revision | None = None


class TrimReply(msgspec.Struct, frozen=True):
    """Where a journal begins after a trim."""

    begin: ByteOffset
    """The first byte that can still be read."""
    kept: str = ""
    """Why content below the asked offset is kept; empty if there is none."""


class OffsetAtRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ask from which offset on a journal was appended at or after a time."""

    journal: JournalName
    time: WallTime
    create_revision: Revision | None = None


class OffsetAtReply(msgspec.Struct, frozen=True):
    """All that was appended at or after the time lies at or above `offset`; some older content may, too."""

    offset: ByteOffset


class ListRequest(msgspec.Struct, frozen=True):
    """Journals whose name starts with `prefix`, in order of name."""

    prefix: str = ""
    after: str = ""
    """Only names above this one: the next page."""
    count_max: int = 1_000
    selector: str = ""
    """A condition on labels; a journal's name is its label `name`. Empty: every journal."""


class ListReply(msgspec.Struct, frozen=True):
    """One page of a listing of journals."""

    journals: list[JournalInfo]
    """Only journals that the caller may see."""
    has_more: bool
    after: str
    """The `after` of the request for the next page."""


class FragmentsRequest(msgspec.Struct, frozen=True):
    """Ask for a page of a journal's fragments."""

    journal: JournalName
    create_revision: Revision | None = None
    beyond: ByteOffset = ByteOffset(0)
    """Only fragments that end above this offset."""
    count_max: int = 4_000


class FragmentsReply(msgspec.Struct, frozen=True):
    """A page of a journal's fragments, by offset."""

    fragments: list[FragmentInfo]
    has_more: bool = False


class AppendRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One append to a journal. Its content is the payload (unary), or the stream's messages up to its end."""

    journal: JournalName
    condition: Condition | None = None
    create_revision: Revision | None = None


class SettleRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ask for the outcome of an append's attempt. If it took no effect by the answer, it never will."""

    journal: JournalName
    attempt: bytes
    create_revision: Revision | None = None


class SettleReply(msgspec.Struct, frozen=True):
    """The outcome of an append's attempt, or the offset from which on it certainly had no effect."""

    commit: Commit | None
    """The span of its append; None if the attempt is not remembered."""
    known_from: ByteOffset
    """If the attempt is not remembered, it has no append at or above this offset, and never will."""


class AppendStreamMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chunk of an append's content. The last one says so (`is_last`); without it nothing is appended."""

    is_last: bool = False


class RunRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Open a stream of runs to one journal. A run may name the offset of its first byte, and nothing else."""

    journal: JournalName
    create_revision: Revision | None = None


class RunReply(msgspec.Struct, frozen=True):
    """A run stream to a journal is open."""

    journal: JournalInfo
    run_bytes_max: int
    """The most content of one run; a longer one is refused whole."""


class ReadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Read committed bytes of `[offset, end)` of a journal."""

    journal: JournalName
    offset: ByteOffset | None = None
    """None: from the committed end on."""
    end: ByteOffset | None = None
    block: bool = False
    """Whether to wait at the committed end for more."""
    create_revision: Revision | None = None


class ReadMessage(msgspec.Struct, frozen=True):
    """A message of a read, whose payload is the journal's committed bytes from `offset` on.

    A message without payload only tells the offset of the read. It is the first message of a blocking read,
    and of one that begins at the committed end.
    """

    offset: ByteOffset
    committed_end: ByteOffset
    create_revision: Revision
    """The create revision of the journal; a reader that reconnects asks for the same one."""


class ReadReply(msgspec.Struct, frozen=True):
    """The read of a journal has ended."""

    offset: ByteOffset
    """The offset after the last byte sent."""
    committed_end: ByteOffset


class ProducerIndexRequest(msgspec.Struct, frozen=True):
    """The producer index at the last index point at or below `offset` (journals.29)."""

    journal: JournalName
    offset: ByteOffset
    create_revision: Revision | None = None


class ProducerIndexReply(msgspec.Struct, frozen=True):
    """The messages before it were the producer index's parts, as `message/stored_index` encodes it."""

    offset: ByteOffset
    """The index point: a frame boundary; 0 without messages if there is none."""
    previous: ByteOffset | None
    """The index point before it."""


class IndexPointsRequest(msgspec.Struct, frozen=True):
    """The index points of a journal above `beyond`."""

    journal: JournalName
    beyond: ByteOffset = ByteOffset(0)
    create_revision: Revision | None = None


class IndexPointsReply(msgspec.Struct, frozen=True):
    """A page of the index points of a journal, ascending."""

    offsets: list[ByteOffset]
    has_more: bool = False
