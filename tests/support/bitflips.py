"""Random bit flips in stored files, and whether any is served silently: one harness for every file format.

    report = flip_bits(files, ranges, read, expected, flips=2_000, seed=1)
    assert report.silent == []

`read` starts a reader on the damaged files and tells, per thing that it serves (a stream, an object, a
key), the content, or that it was `Flagged` as damaged, missing or in doubt. A flip is silent where
something is served that differs from `expected` and is not flagged. At least `share` of the flips hit
`ranges`: the bytes of acknowledged, untrimmed records with their headers. Source: W4.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

SHARE: Final = 0.8


@dataclass(frozen=True)
class Range:
    """Bytes [begin, end) of a file."""

    file: str
    begin: int
    end: int


@dataclass(frozen=True)
class Flagged:
    """Something is reported as damaged or in doubt; what is served of it nevertheless."""

    served: object = None


@dataclass
class Report:
    """What a search found."""

    flips: int = 0
    in_records: int = 0
    detected: int = 0
    harmless: int = 0
    silent: list[str] = field(default_factory=list)


def flip_bits(
    files: Mapping[str, bytes],
    ranges: Sequence[Range],
    read: Callable[[dict[str, bytes]], Mapping[object, object]],
    expected: Mapping[object, object],
    *,
    flips: int,
    seed: int,
    is_part: Callable[[object, object], bool] = lambda served, whole: served is None or served == whole,
) -> Report:
    """Flip one bit at a time, each in fresh copies of `files`.

    Args:
        is_part: whether what is served of a flagged thing is still right, as far as it goes.
    """
    draws, report = random.Random(seed), Report()
    weights = [found.end - found.begin for found in ranges]
    names = [name for name, content in files.items() if content]
    for number in range(flips):
        is_in_records = number < flips * SHARE
        if is_in_records:
            chosen = draws.choices(ranges, weights)[0]
            name, at = chosen.file, draws.randrange(chosen.begin, chosen.end)
        else:
            name = draws.choice(names)
            at = draws.randrange(len(files[name]))
        bit = draws.randrange(8)
        damaged = dict(files)
        content = bytearray(files[name])
        content[at] ^= 1 << bit
        damaged[name] = bytes(content)
        report.flips += 1
        report.in_records += is_in_records
        _judge(report, read(damaged), expected, is_part, f"bit {bit} of byte {at} of {name}")
    return report


def _judge(
    report: Report,
    found: Mapping[object, object],
    expected: Mapping[object, object],
    is_part: Callable[[object, object], bool],
    place: str,
) -> None:
    is_flagged = False
    for thing, whole in expected.items():
        served = found.get(thing)
        if isinstance(served, Flagged):
            is_flagged = True
            if not is_part(served.served, whole):
                report.silent.append(f"{place}: {thing!r} is flagged, and serves wrong bytes nevertheless")
        elif served != whole:
            report.silent.append(f"{place}: {thing!r} differs")
    report.silent.extend(f"{place}: {thing!r} appeared" for thing in found if thing not in expected)
    report.detected += is_flagged
    report.harmless += not is_flagged
