"""Fragment check: each fragment in the nodes' stores has its name's content, and no range has two.

The check reads every byte, so `doctor` makes it only with `--fragments`. It changes nothing, and needs no
running node. Which stores there are beside a node's own is told by the configuration that `up` would use.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from broadsheet.cli.checks import Finding, Verdict
from broadsheet.cli.cluster import data_dirs
from broadsheet.config import load
from broadsheet.errors import ConfigError, Corrupt
from broadsheet.journal.core.fragment import Fragment, parse_name
from broadsheet.journal.remedies import disagreement
from broadsheet.journal.stored_fragment import summed
from broadsheet.node import Settings
from broadsheet.runtime.loop import run
from broadsheet.runtime.objects import LocalObjects, local_root

NAME: Final = "fragments"
DIRECTORY: Final = "fragments"
SHOWN: Final = 8


def fragments_check(root: Path) -> Finding:
    """Read each stored fragment, and compare its sum with its name, and with others of the same range."""
    count, damaged = 0, list[str]()
    try:
        stores = _stores(root)
        for path in stores:
            looked_at, found = run(_looked_at(path))
            count, damaged = count + looked_at, damaged + found
    except (ConfigError, OSError) as error:
        return Finding(NAME, Verdict.WARNING, f"unknown: {error}", "mend the directory first")
    if damaged:
        text = f"{len(damaged)} of {count} cannot be read: {'; '.join(damaged[:SHOWN])}"
        return Finding(NAME, Verdict.BAD, text, "follow these texts, or docs/operations/damage.md")
    places = ", ".join(map(str, stores)) or "no store"
    return Finding(NAME, Verdict.GOOD, f"{count} in {places} have the content that their names say")


def _stores(root: Path) -> Sequence[Path]:
    """The directories of all stores that have something: each node's own, and those of its configuration."""
    found = [path / DIRECTORY for path in data_dirs(root)]
    files: list[Path | None] = [*sorted(root.glob("*.toml"))]
    for file in files or [None]:
        journals = load(Settings, path=file, environment=os.environ, flags={}).config.journals
        found += [local_root(url) for url in (journals.store, *journals.stores) if url]
    return [path for path in dict.fromkeys(found) if path.is_dir() and any(path.iterdir())]


async def _looked_at(store: Path) -> tuple[int, list[str]]:
    """The number of fragments in `store`, and an error text for each damaged one."""

    async def at_once(work: Callable[[], object]) -> object:
        return work()

    count, damaged = 0, list[str]()
    firsts = dict[tuple[str, int, int], Fragment]()
    objects = LocalObjects(store, mark=store)  # A directory that is no store is not made one.
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
