"""The receive buffer gives the bytes as they came, whoever keeps views of them, and without idle copies."""

from hypothesis import given
from hypothesis import strategies as st

from broadsheet.wire.inbound import CALM_RESTS, PINNED_MAX, Inbound
from broadsheet.wire.slab import BUSY_BYTES_MAX, POOLED_BYTES_MAX, SMALL_BYTES, TINY_BYTES, SlabPool

HEAD = 4
"""A frame here is its length in four bytes, itself included, and as many bytes of one value."""


def frames_of(sizes: list[int]) -> bytes:
    return b"".join(
        [(HEAD + n).to_bytes(4, "little") + bytes([place % 251]) * n for place, n in enumerate(sizes)]
    )


class Reader:
    """Feeds an `Inbound` as a socket does, and takes its whole frames as a connection does."""

    def __init__(self, pool: SlabPool, *, has_rests: bool = False) -> None:
        self.inbound, self.has_rests = Inbound(pool), has_rests
        self.taken: list[memoryview] = []
        self.reads = 0
        self.moved_bytes = 0

    def feed(self, content: bytes, *, chunk: int) -> None:
        at = 0
        while at < len(content):
            got = min(chunk, len(content) - at, len(self._room()))
            self._room()[:got] = content[at : at + got]
            self.inbound.written += got
            at, self.reads = at + got, self.reads + 1
            self._take()
            if self.has_rests:
                self.inbound.release_buffer()

    def _room(self) -> memoryview:
        """Asked for as a loop does: sometimes without reading anything."""
        inbound, before = self.inbound, self.inbound.read
        if inbound.read == inbound.written:
            return inbound.room()
        room = inbound.remainder(self._wanted())
        if inbound.read != before:
            self.moved_bytes += inbound.written - inbound.read
        return room

    def _wanted(self) -> int:
        at, end = self.inbound.read, self.inbound.written
        return int.from_bytes(self.inbound.slab[at : at + HEAD], "little") if end - at >= HEAD else HEAD

    def _take(self) -> None:
        inbound = self.inbound
        while inbound.written - inbound.read >= HEAD and self._wanted() <= inbound.written - inbound.read:
            stop = inbound.read + self._wanted()
            self.taken.append(inbound.view[inbound.read + HEAD : stop])
            inbound.read = stop


def is_intact(views: list[memoryview], sizes: list[int]) -> bool:
    expected = [bytes([place % 251]) * n for place, n in enumerate(sizes)]
    return len(views) == len(sizes) and all(view == each for view, each in zip(views, expected, strict=True))


LARGE = 300 << 10

sizes_of_frames = st.lists(
    st.one_of(st.integers(0, 200), st.integers(0, 70_000), st.integers(100_000, LARGE - HEAD)), max_size=20
)


@given(
    sizes_of_frames,
    st.sampled_from([7_001, 65_536, 150_000, 1 << 20]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_bytes_come_as_they_were_and_kept_views_never_change(
    sizes: list[int], chunk: int, is_twice: bool, has_rests: bool, is_short: bool
) -> None:
    """Slabs are used again, given back, torn frames move, reads end where a frame ends: none may show."""
    pool = SlabPool(LARGE + (64 << 10))
    before = pool.busy_bytes = BUSY_BYTES_MAX if is_short else 0
    reader = Reader(pool, has_rests=has_rests)
    content = frames_of(sizes)

    reader.feed(content, chunk=chunk)
    assert is_intact(reader.taken, sizes)

    if is_twice:
        first, reader.taken = reader.taken, []
        reader.feed(content, chunk=chunk)
        assert is_intact(first, sizes)
        assert is_intact(reader.taken, sizes)
    reader.inbound.close()
    assert pool.busy_bytes == before


def test_large_frames_of_one_size_are_never_copied_in_the_slab() -> None:
    """A torn tail of a megabyte costs as much as receiving it: after the first frame there is none."""
    reader = Reader(SlabPool(4 << 20))
    content = frames_of([1 << 20] * 20)
    reader.feed(content[: (1 << 20) + HEAD], chunk=200_000)
    moved = reader.moved_bytes
    for _ in range(19):
        reader.taken.clear()
        reader.feed(content[(1 << 20) + HEAD : 2 * ((1 << 20) + HEAD)], chunk=200_000)

    assert moved <= 200_000
    assert reader.moved_bytes == moved


def test_few_bytes_take_a_small_slab_and_more_bytes_a_larger_one() -> None:
    """800 connections that ping in one moment made the loop wait 56 ms for 50 MiB of memory."""
    reader = Reader(SlabPool(4 << 20))
    sizes = []
    for frame in (10, 10, 30_000, 10, 10):
        reader.feed(frames_of([frame])[: HEAD + 1], chunk=100)
        sizes.append(len(reader.inbound.slab))
        reader.feed(frames_of([frame])[HEAD + 1 :], chunk=1 << 20)
        reader.taken.clear()
        reader.inbound.release_buffer()
        assert not reader.inbound.slab

    assert sizes == [SMALL_BYTES, TINY_BYTES, TINY_BYTES, SMALL_BYTES, TINY_BYTES]


def test_an_idle_connection_holds_no_slab() -> None:
    """Thousands of idle connections must not hold what the busy ones need."""
    reader = Reader(SlabPool(4 << 20))
    reader.feed(frames_of([3 << 20]), chunk=1 << 20)
    reader.taken.clear()
    reader.inbound.shrink()

    assert not reader.inbound.slab
    reader.feed(frames_of([10]), chunk=100)
    assert is_intact(reader.taken, [10])


def test_small_reads_after_a_large_one_give_the_slab_back() -> None:
    """A peer that sent 4 MiB once and a ping now and then held 4 MiB for as long as it liked."""
    pool = SlabPool(4 << 20)
    reader = Reader(pool)
    reader.feed(frames_of([3 << 20]), chunk=1 << 20)
    reader.taken.clear()
    reader.inbound.release_buffer()
    assert pool.busy_bytes, "as much may come again"

    for _ in range(CALM_RESTS):
        reader.feed(frames_of([10]), chunk=100)
        reader.taken.clear()
        reader.inbound.release_buffer()

    assert (len(reader.inbound.slab), pool.busy_bytes) == (0, 0)


def test_what_is_referred_to_is_gone_on_behind() -> None:
    """Each small read would pin a slab of its own, if a slab with views were given back."""
    reader = Reader(SlabPool(4 << 20))
    for _ in range(100):
        reader.feed(frames_of([10]), chunk=100)
        reader.inbound.release_buffer()

    assert len({id(view.obj) for view in reader.taken}) == 1
    assert all(view == bytes(10) for view in reader.taken)


def test_busy_connections_keep_so_many_bytes_together_and_no_more() -> None:
    """4,096 connections that each sent a large frame made the node hold 16 GiB."""
    pool = SlabPool(4 << 20)
    readers = [Reader(pool) for _ in range(60)]
    for reader in readers:
        reader.feed(frames_of([3 << 20]), chunk=1 << 20)
        assert is_intact(reader.taken, [3 << 20])
        reader.taken.clear()
        reader.inbound.release_buffer()
    assert pool.busy_bytes <= BUSY_BYTES_MAX + (4 << 20)

    for reader in readers:
        reader.inbound.close()
    assert pool.busy_bytes == 0
    assert sum([len(slab) for kept in pool._kept.values() for slab in kept]) <= 3 * (
        POOLED_BYTES_MAX + (4 << 20)
    )


def test_what_outlives_its_read_is_copied_once_too_much_is_pinned() -> None:
    """A peer whose payloads are kept for long may pin so many slabs, and no more."""
    pool = SlabPool(1 << 20)
    reader = Reader(pool)
    kept = []
    for _ in range(4 * PINNED_MAX):
        reader.feed(frames_of([500_000]), chunk=1 << 20)
        kept.append(reader.inbound.keep(reader.taken.pop()))

    owners = {id(view.obj) for view in kept if isinstance(view.obj, bytearray)}
    assert len(owners) <= PINNED_MAX + 1
    assert all(view == bytes(500_000) for view in kept)


def test_a_frame_that_ends_where_its_slab_ends_stays_where_it_is() -> None:
    """It fits: moving its beginning would be a copy for nothing."""
    inbound = Inbound(SlabPool(4 << 20))
    inbound.remainder(1 << 20)
    slab = inbound.slab
    inbound.read, inbound.written = 100, 200

    assert len(inbound.remainder(len(slab) - 100)) == len(slab) - 200
    assert (inbound.slab is slab, inbound.read, inbound.written) == (True, 100, 200)
