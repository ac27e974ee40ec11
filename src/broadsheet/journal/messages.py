"""Messages: what the journal methods of the native door carry.

Integers are byte offsets and revisions as `base.types` has them; times are nanoseconds. The method table is
in `journal/service.py`; payload bytes never pass through these structs. Fields are only ever added, with a
default.
"""

import msgspec

from broadsheet.base.types import ByteOffset, Epoch, JournalName, Revision
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.spec import JournalSpec


class JournalInfo(msgspec.Struct, frozen=True):
    """A journal as the Keyspace has it."""

    spec: JournalSpec
    create_revision: Revision
    """Tells a journal from one of the same name that was deleted."""
    mod_revision: Revision
    """Of the spec's last change."""

    @property
    def name(self) -> JournalName:
        """The journal's name."""
        return self.spec.name


class Commit(msgspec.Struct, frozen=True):
    """The span `[begin, end)` that one append got. Equal ends: a barrier, which tells the committed end."""

    begin: ByteOffset
    end: ByteOffset


class Chunk(msgspec.Struct, frozen=True):
    """Committed bytes, from `offset` on."""

    offset: ByteOffset
    data: bytes

    @property
    def end(self) -> ByteOffset:
        """The offset after the last byte."""
        return ByteOffset(self.offset + len(self.data))


class Registers(msgspec.Struct, frozen=True):
    """A journal's registers, behind every append that was acknowledged before the read."""

    values: dict[str, str]
    version: int
    """How often they changed since the journal was made; 0: never."""
    at: ByteOffset
    """The end of the append that changed them last."""


class FragmentInfo(msgspec.Struct, frozen=True):
    """A fragment that the store holds, or (`is_stored` false) one that is on its way there."""

    name: str
    """Content name, as in the store."""
    begin: ByteOffset
    end: ByteOffset
    is_stored: bool


class JournalStatus(msgspec.Struct, frozen=True):
    """Where a journal stands."""

    name: JournalName
    state: str
    """`open`, `opening`, `full`, `damaged`, `behind-index`, `lost` or `closed`."""
    create_revision: Revision
    begin: ByteOffset | None = None
    """The first byte that can still be read. None while the journal is being opened, and until the fragment
    store has answered: nobody knows it yet."""
    end: ByteOffset | None = None
    """The committed end. None while the journal is being opened: nobody knows it yet."""
    epoch: Epoch = Epoch(0)
    registers_version: int = 0
    """-1 where the registers are lost (journals.12)."""
    fragment_count: int = 0
    spool_bytes: int = 0
    """Bytes of the open fragment."""
    reason: str = ""
    """Why it is not `open`, with the remedy."""


class CreateRequest(msgspec.Struct, frozen=True):
    """Make a journal."""

    spec: JournalSpec


class NameRequest(msgspec.Struct, frozen=True):
    """Ask about, or delete, one journal."""

    journal: JournalName
    create_revision: Revision | None = None
    """Only if it is this journal, and not one of the same name that was made later."""


class LossRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ask what a journal lost, or (`may_act`) have it go on without that."""

    journal: JournalName
    create_revision: Revision | None = None
    may_act: bool = False
    head: ByteOffset | None = None
    """Where appends go on; None: at the lowest offset that is safe."""


class LostSpan(msgspec.Struct, frozen=True):
    """A span that nothing vouches for any more."""

    begin: ByteOffset
    end: ByteOffset
    why: str
    sum: str = ""
    """SHA-1 of its fragment through `end`, in hexadecimal, where a record names it."""
    first_append: int = 0
    """When its fragment got its first byte, in nanoseconds since 1970; 0 where nothing tells."""


class LossReply(msgspec.Struct, frozen=True):
    """What is lost, and whether the journal goes on without it."""

    journal: JournalName
    reason: str
    """Why it takes no appends."""
    head: ByteOffset
    """Where appends go on."""
    lost: list[LostSpan]
    are_registers_lost: bool
    """They begin anew, empty."""
    kept_aside: list[str]
    """Files beside its spools whose bytes nothing proves."""
    is_done: bool


class ListRequest(msgspec.Struct, frozen=True):
    """Journals whose name starts with `prefix`, in order of name."""

    prefix: str = ""
    after: str = ""
    """Only names above this one: the next page."""
    count_max: int = 1_000
    selector: str = ""
    """Which labels they have, and have not; a journal's name is its label `name`. Empty: whatever."""


class ListReply(msgspec.Struct, frozen=True):
    """One page."""

    journals: list[JournalInfo]
    """Those that the caller may see."""
    has_more: bool
    after: str
    """What to ask for next."""


class FragmentsRequest(msgspec.Struct, frozen=True):
    """Ask for a page of a journal's fragments."""

    journal: JournalName
    create_revision: Revision | None = None
    beyond: ByteOffset = ByteOffset(0)
    """Those that end above it."""
    count_max: int = 4_000


class FragmentsReply(msgspec.Struct, frozen=True):
    """A page of a journal's fragments, by offset."""

    fragments: list[FragmentInfo]
    has_more: bool = False


class AppendRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One append. Its content is the payload (unary), or the messages of the stream up to its end."""

    journal: JournalName
    condition: Condition | None = None
    create_revision: Revision | None = None


class SettleRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of the append of this attempt? After the answer nothing of it takes effect any more."""

    journal: JournalName
    attempt: bytes
    create_revision: Revision | None = None


class SettleReply(msgspec.Struct, frozen=True):
    """Where it stands, or from which offset on it certainly does not."""

    commit: Commit | None
    """The span that it got; None: it is not remembered."""
    known_from: ByteOffset
    """An append at or above this offset that is not remembered never took effect, and never will."""


class AppendStreamMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chunk of content, or (`is_last`) the word that all was sent; without it nothing is appended."""

    is_last: bool = False


class RunRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Open a stream of unconditional appends to one journal, each at most `inline_bytes_max` long."""

    journal: JournalName
    create_revision: Revision | None = None


class ReadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Read committed bytes of `[offset, end)`."""

    journal: JournalName
    offset: ByteOffset | None = None
    """None: from the committed end on."""
    end: ByteOffset | None = None
    block: bool = False
    """Whether to wait at the committed end for more."""
    create_revision: Revision | None = None


class ReadMessage(msgspec.Struct, frozen=True):
    """The payload is the committed bytes from `offset` on.

    Without payload it tells where the read stands: the first message of a read that waits, or that began at
    the committed end.
    """

    offset: ByteOffset
    committed_end: ByteOffset
    create_revision: Revision
    """Of the journal that is read: a reader that connects again asks for this one."""


class ReadReply(msgspec.Struct, frozen=True):
    """The read has ended."""

    offset: ByteOffset
    """The offset after the last byte sent."""
    committed_end: ByteOffset


class ProducerIndexRequest(msgspec.Struct, frozen=True):
    """The producer index at the last index point at or below `offset` (journals.29)."""

    journal: JournalName
    offset: ByteOffset
    create_revision: Revision | None = None
    skip: int = 0
    """Bytes of the index that the caller has: of the one at exactly `offset`."""


class ProducerIndexReply(msgspec.Struct, frozen=True):
    """The payload is a part of the index, as `message/producer_state` encodes it."""

    offset: ByteOffset
    """The index point: a frame boundary."""
    previous: ByteOffset | None
    """The index point before it."""
    size: int = 0
    """Bytes of the whole index: it may be longer than a frame."""


class IndexPointsRequest(msgspec.Struct, frozen=True):
    """The index points of a journal above `beyond`."""

    journal: JournalName
    beyond: ByteOffset = ByteOffset(0)
    create_revision: Revision | None = None


class IndexPointsReply(msgspec.Struct, frozen=True):
    """A page of the index points of a journal, ascending."""

    offsets: list[ByteOffset]
    has_more: bool = False
