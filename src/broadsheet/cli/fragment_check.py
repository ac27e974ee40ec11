"""Fragment check: each fragment in the nodes' stores has its name's content, and no range has two.

The check reads every byte, so `doctor` makes it only with `--fragments`. It changes nothing, and needs no
running node. Which stores there are beside a node's own is told by the configuration that `up` would use.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from broadsheet.cli.cluster import data_dirs
from broadsheet.cli.findings import Finding, Verdict
from broadsheet.config import load
from broadsheet.errors import ConfigError, Corrupt
from broadsheet.journal.core.fragment import Fragment, parse_name
from broadsheet.journal.remedies import disagreement
from broadsheet.journal.stored_fragment import summed
from broadsheet.node import Settings
from broadsheet.runtime.loop import run
from broadsheet.runtime.objects import LocalObjects, local_root
from broadsheet.runtime.system import OWN_STORE, mark_of

NAME: Final = "fragments"
SHOWN: Final = 8


class Looked(msgspec.Struct):
    """What was found in the stores so far."""

    count: int = 0
    damaged: list[str] = msgspec.field(default_factory=list)
    """An error text for each fragment that is damaged."""
    unread: list[str] = msgspec.field(default_factory=list)
    """The stores that were not read to their end, each with the reason."""


def fragments_check(root: Path) -> Finding:
    """Read each stored fragment, and compare its sum with its name, and with others of the same range."""
    looked = Looked()
    try:
        stores = _stores(root)
    except (ConfigError, OSError) as error:
        return Finding(NAME, Verdict.WARNING, f"unknown: {error}", "mend the directory first")
    for path in stores:
        try:
            run(_look_at(path, looked))
        except OSError as error:
            looked.unread.append(f"{path} is not known to be sound: {error}")
    texts = [*looked.damaged[:SHOWN], *looked.unread]
    if looked.damaged:
        text = f"{len(looked.damaged)} of {looked.count} cannot be read: {'; '.join(texts)}"
        return Finding(NAME, Verdict.BAD, text, "follow these texts, or docs/operations/damage.md")
    if looked.unread:
        text = f"{looked.count} were read; {'; '.join(texts)}"
        return Finding(NAME, Verdict.WARNING, text, "mend that first, then ask again")
    places = ", ".join(map(str, stores)) or "no store"
    return Finding(NAME, Verdict.GOOD, f"{looked.count} in {places} have the content that their names say")


def _stores(root: Path) -> Sequence[Path]:
    """The directories of the nodes' own stores, and of those that their configuration names.

    Left out is a directory that is absent or empty and that no node has opened as a store.
    """
    nodes = [path.absolute() for path in data_dirs(root)]
    found = [path / OWN_STORE for path in nodes]
    files: list[Path | None] = [*sorted(root.glob("*.toml"))]
    for file in files or [None]:
        journals = load(Settings, path=file, environment=os.environ, flags={}).config.journals
        found += [local_root(url) for url in (journals.store, *journals.stores) if url]
    return [
        path
        for path in dict.fromkeys(found)
        if (path.is_dir() and any(path.iterdir())) or any(mark_of(path, node).exists() for node in nodes)
    ]


async def _look_at(store: Path, looked: Looked) -> None:
    """Add what is found in `store`.

    Raises:
        OSError: it does not answer, or not any more; or its directory is no store.
    """

    async def at_once(work: Callable[[], object]) -> object:
        return work()

    firsts = dict[tuple[str, int, int], Fragment]()
    objects = LocalObjects(store, is_only_read=True)
    try:
        for each in await objects.list(""):
            directory, _, name = each.name.rpartition("/")
            fragment = parse_name(name)
            if fragment is None:
                continue
            looked.count += 1
            span = directory, fragment.begin, fragment.end
            first = firsts.setdefault(span, fragment)
            if first.sum != fragment.sum:
                looked.damaged.append(f"{directory}: {disagreement((first, fragment))}")
            try:
                await summed(objects, at_once, each.name, fragment)
            except Corrupt as error:
                looked.damaged.append(str(error))
            except FileNotFoundError:  # Its journal was deleted meanwhile.
                looked.count -= 1
    finally:
        objects.close()
