"""Fragment check: each fragment in the nodes' own stores has its name's content, and no range has two.

The check reads every byte, so `doctor` makes it only with `--fragments`. It changes nothing, and needs no
running node. It does not look at stores outside the data directories.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from broadsheet.cli.checks import Finding, Verdict
from broadsheet.cli.cluster import data_dirs
from broadsheet.errors import ConfigError, Corrupt
from broadsheet.journal.core.fragment import Fragment, parse_name
from broadsheet.journal.remedies import disagreement
from broadsheet.journal.stored_fragment import summed
from broadsheet.runtime.loop import run
from broadsheet.runtime.objects import LocalObjects

NAME: Final = "fragments"
DIRECTORY: Final = "fragments"
SHOWN: Final = 8


def fragments_check(root: Path) -> Finding:
    """Read each stored fragment, and compare its sum with its name, and with others of the same range."""
    count, damaged = 0, list[str]()
    try:
        for path in data_dirs(root):
            if (path / DIRECTORY).is_dir():
                looked_at, found = run(_looked_at(path / DIRECTORY))
                count, damaged = count + looked_at, damaged + found
    except (ConfigError, OSError) as error:
        return Finding(NAME, Verdict.WARNING, f"unknown: {error}", "mend the directory first")
    if damaged:
        text = f"{len(damaged)} of {count} cannot be read: {'; '.join(damaged[:SHOWN])}"
        return Finding(NAME, Verdict.BAD, text, "follow these texts, or docs/operations/damage.md")
    return Finding(NAME, Verdict.GOOD, f"{count} have the content that their names say")


async def _looked_at(store: Path) -> tuple[int, list[str]]:
    """The number of fragments in `store`, and an error text for each damaged one."""

    async def at_once(work: Callable[[], object]) -> object:
        return work()

    count, damaged = 0, list[str]()
    firsts = dict[tuple[str, int, int], Fragment]()
    objects = LocalObjects(store)
    try:
        for each in await objects.list(""):
            directory, _, name = each.name.rpartition("/")
            fragment = parse_name(name)
            if fragment is None:
                continue
            count += 1
            span = directory, fragment.begin, fragment.end
            first = firsts.setdefault(span, fragment)
            if first.sum != fragment.sum:
                damaged.append(f"{directory}: {disagreement((first, fragment))}")
            try:
                await summed(objects, at_once, each.name, fragment)
            except Corrupt as error:
                damaged.append(str(error))
    finally:
        objects.close()
    return count, damaged
