"""What every source of entropy keeps: the words of `ports.Random`, one stream per purpose."""

from collections.abc import Callable
from pathlib import Path

from broadsheet.ports import Random
from tests.runtime.conformance import RANDOMS, Implementation, over

Make = Callable[[str], Random]


@over(RANDOMS)
def test_draws_stay_in_their_ranges(implementation: Implementation, tmp_path: Path) -> None:
    """A retry delay outside its range is a storm or a stall."""

    async def story(random: Make) -> None:
        stream = random("test.ranges")

        assert all(0 <= stream.random() < 1 for _ in range(1000))
        assert {stream.randrange(3, 6) for _ in range(1000)} == {3, 4, 5}
        assert all(0 <= stream.getrandbits(5) < 32 for _ in range(1000))
        assert len(stream.randbytes(17)) == 17

    implementation.run(story, tmp_path)


@over(RANDOMS)
def test_streams_of_two_purposes_differ(implementation: Implementation, tmp_path: Path) -> None:
    """One component more must not shift the draws of the others."""

    async def story(random: Make) -> None:
        one, two = random("test.one"), random("test.two")

        assert one.randbytes(16) != two.randbytes(16)

    implementation.run(story, tmp_path)


@over(RANDOMS)
def test_a_stream_does_not_repeat_itself(implementation: Implementation, tmp_path: Path) -> None:
    """Nonces and producer ids are drawn from it."""

    async def story(random: Make) -> None:
        stream = random("test.nonce")

        assert len({stream.getrandbits(64) for _ in range(10_000)}) == 10_000

    implementation.run(story, tmp_path)
