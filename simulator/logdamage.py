"""Log damage: damages a log at rest by a flipped bit, a lost sector, lost batches, or several of them.

Units are bytes. It reports what it damaged, and how much of that a restart can detect. It does not judge.
"""

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from broadsheet.wal.format import BATCH_BYTES, ROW, BatchHeader, aligned
from simulator.disk_state import SECTOR
from simulator.logimage import batches_of, read_image
from simulator.logmodel import NO_DAMAGE, Damage

MIN_BATCHES: Final = 3
"""A disk with fewer is not damaged."""


def damaged(
    image: dict[str, bytes], random: Random, *, is_whole: bool = False
) -> tuple[dict[str, bytes], Damage]:
    """A disk with some of its bytes gone or wrong, and what that is.

    Args:
        is_whole: the power did not cut a write. Then several batches may be lost at once.

    Not: batches lost behind which nothing whole stands. They leave no trace (docs/guarantees.md).
    """
    found = batches_of(image)
    if len(found) < MIN_BATCHES:
        return image, NO_DAMAGE
    files = {name: bytearray(content) for name, content in image.items()}
    last, chance = found[-1][1].batch, random.random()
    lost: list[int] = []
    what = []
    if chance < 0.5:
        name, header = found[random.randrange(len(found))]
        if chance < 0.35:
            at = header.at + random.randrange(header.length)
            files[name][at] ^= 1 << random.randrange(8)
            what.append(f"a bit flipped at {at} of {name}, in batch {header.batch}")
        else:
            first = int(header.batch == last)  # With header and frame gone it would leave no trace.
            at = header.at + random.randrange(first, aligned(header.length) // SECTOR) * SECTOR
            files[name][at : at + SECTOR] = bytes(SECTOR)
            what.append(f"a lost sector at {at} of {name}, in batch {header.batch}")
        is_last_hit = header.batch == last
    else:
        first, count = random.randrange(len(found) - 1), random.choice((1, 1, 2, 3)) if is_whole else 1
        for name, header in found[first : min(first + count, len(found) - 1)]:
            end = aligned(header.at + header.length)
            files[name][header.at : end] = bytes(end - header.at)
            lost.append(header.batch)
        what.append(f"lost batches {lost}")
        is_last_hit = False
        name, header = found[-1]
        frames = BATCH_BYTES + ROW.size * header.row_count
        if chance > 0.8 and len(lost) == 1 and header.length > frames:
            at = header.at + frames + random.randrange(header.length - frames)
            files[name][at] ^= 1 << random.randrange(8)
            is_last_hit = last - 1 not in lost
            what.append(f"a bit flipped at {at} of {name}, in the last batch, {last}")
    before = read_image(image) if len(lost) > 1 else {}
    nameless = [stream for stream, kept in before.items() if all(each.batch in lost for each in kept.places)]
    after = {name: bytes(content) for name, content in files.items()}
    return after, Damage(", ".join(what), is_last_hit=is_last_hit, nameless=tuple(nameless))


NEWEST: Final = 0.4
"""Of the logs that are damaged, the share where the newest batch is."""
HEADER: Final = 0.4
"""Of those, the share where its header is: then nothing but its frames tells of it."""
NEWER: Final = 0.6
"""Of the batches that tell of something, the share that is of the last ones: what is older is told again."""
SEVERAL: Final = 0.3
"""Of the others, the share that lose several batches, of several streams."""


class Hurt(NamedTuple):
    """One file of a disk with some bytes wrong."""

    name: str
    content: bytes
    what: str
    is_newest: bool
    """It is in the newest batch of the log, which nothing vouches for."""
    is_bit: bool
    """It is one flipped bit."""


def hurt(
    image: dict[str, bytes], random: Random, names: Sequence[str], log: str, *, is_whole: bool = False
) -> Hurt | None:
    """One of the files with a flipped bit, a lost sector or lost batches; in a log's segment, within batches.

    Not: the first sector of the newest batch, which would leave no trace. None where nothing was there.

    Args:
        log: the directory of the log.
        is_whole: the power did not cut a write. Then several batches may be lost at once.
    """
    names = [name for name in names if any(image[name])]
    if not names:
        return None
    name = names[random.randrange(len(names))]
    content, is_newest = bytearray(image[name]), False
    begin, end = 0, len(content.rstrip(b"\0"))
    if name.startswith(f"{log}/segment"):
        whole = batches_of(image, log)
        if whole and random.random() < NEWEST:
            name, header = whole[-1]
            content, found = bytearray(image[name]), [header]
        else:
            found = [header for each, header in whole if each == name]
            if not found:
                return None
            header = found[random.randrange(len(found))]
            if is_whole and random.random() < SEVERAL and found[0].batch < whole[-1][1].batch:
                return _lost(
                    name, content, [each for each in found if each.batch != whole[-1][1].batch], random
                )
        begin, end = header.at, header.at + header.length
        is_newest = header.batch == whole[-1][1].batch
    at = begin + random.randrange(max(1, end - begin))
    if is_newest and random.random() < HEADER:
        at = begin + random.randrange(BATCH_BYTES)
    is_bit = random.random() < 0.6 or (is_newest and at - at % SECTOR == begin)
    if is_bit:
        content[at] ^= 1 << random.randrange(8)
        what = f"a bit flipped at {at} of {name}"
    else:
        at -= at % SECTOR
        content[at : at + SECTOR] = bytes(len(content[at : at + SECTOR]))
        what = f"a lost sector at {at} of {name}"
    if content == image[name]:
        return None
    return Hurt(name, bytes(content), what, is_newest, is_bit)


def _lost(name: str, content: bytearray, found: Sequence[BatchHeader], random: Random) -> Hurt:
    """A segment without some batches in a row."""
    first = random.randrange(len(found))
    lost = found[first : first + random.randrange(1, 6)]
    for header in lost:
        end = aligned(header.at + header.length)
        content[header.at : end] = bytes(end - header.at)
    what = f"lost batches {lost[0].batch} to {lost[-1].batch} of {name}"
    return Hurt(name, bytes(content), what, is_newest=False, is_bit=False)


def hurt_telling(
    image: dict[str, bytes], random: Random, log: str, telling: bytes, *, is_whole: bool = False
) -> Hurt | None:
    """A batch of a log that tells of something, with a flipped bit or a lost sector, or lost with others.

    Not the newest one. None where no batch holds `telling`.

    Args:
        is_whole: as `hurt`.
    """
    older = batches_of(image, log)[:-1]
    found = [each for each in older if telling in image[each[0]][each[1].at : each[1].at + each[1].length]]
    if not found:
        return None
    if random.random() < NEWER:
        found = found[-3:]
    name, header = found[random.randrange(len(found))]
    content = bytearray(image[name])
    if is_whole and random.random() < SEVERAL:
        behind = [each for where, each in older if where == name and each.batch >= header.batch]
        return _lost(name, content, behind[: random.randrange(1, 4)], random)
    at = header.at + random.randrange(header.length)
    if random.random() < 0.5:
        content[at] ^= 1 << random.randrange(8)
        what = f"a bit flipped at {at} of {name}"
    else:
        at -= at % SECTOR
        content[at : at + SECTOR] = bytes(SECTOR)
        what = f"a lost sector at {at} of {name}"
    if content == image[name]:
        return None
    return Hurt(name, bytes(content), f"{what}, which tells of {telling!r}", is_newest=False, is_bit=False)
