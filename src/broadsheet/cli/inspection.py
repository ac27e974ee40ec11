"""Inspection: what a node knows of one journal, and whether its closed fragments can be read.

Nothing is changed. If a token may not read, or a journal is not open, the report has the reason in place of
what is not known, beside all that is. Units: bytes, byte offsets.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from broadsheet.base.time import SECOND
from broadsheet.cli.tables import size_text, table
from broadsheet.client import Client
from broadsheet.errors import (
    BroadsheetError,
    Corrupt,
    NotFound,
    OffsetNotYetAvailable,
    StoreUnhealthy,
    Trimmed,
)
from broadsheet.journal.core.fragment import parse_name
from broadsheet.journal.core.spec import FragmentSpec, framing_of
from broadsheet.journal.messages import FragmentInfo, JournalInfo, JournalStatus, Registers
from broadsheet.message.producer_state import NOT_OPEN
from broadsheet.message.spans import update
from broadsheet.message.stored_index import index_from

ASKED_MAX: Final = 32
"""Journals whose status is asked for at a time."""
TAIL_BYTES_MAX: Final = 64 << 20
"""A journal has an index point every 16 MiB. One whose index has ended is not read from its begin."""
T = TypeVar("T")

UNREAD: Final = (Corrupt, Trimmed, StoreUnhealthy, OffsetNotYetAvailable)
"""Errors that concern the fragment that is read."""


class Stored(msgspec.Struct, frozen=True):
    """The closed fragments of a journal."""

    count: int
    bytes: int
    unstored_count: int
    unstored_bytes: int
    """Of those that only the node's disk has so far."""


class Producers(msgspec.Struct, frozen=True):
    """The producers whose messages a journal has."""

    offset: int
    """Up to here they are known."""
    count: int
    open_count: int
    """Producers with messages that are neither committed nor rolled back."""
    open_begin: int | None
    """Where the oldest of those messages stands; None if there are none."""


class Description(msgspec.Struct, frozen=True):
    """All that `describe` tells. A text in place of a value is the reason why there is none."""

    info: JournalInfo
    status: JournalStatus
    fragments: Stored | str
    registers: Registers | str
    producers: Producers | str | None
    """None for a journal whose labels name no framing."""


class Damage(msgspec.Struct, frozen=True):
    """A fragment that cannot be read, or whose content is not what its name says."""

    name: str
    begin: int
    end: int
    error: str


class Verified(msgspec.Struct, frozen=True):
    """The report of `verify`."""

    journal: str
    count: int
    bytes: int
    damaged: Sequence[Damage]
    holes: Sequence[tuple[int, int]]
    """Spans between closed fragments that no fragment has."""


async def description(client: Client, name: str) -> Description:
    """Everything about journal `name`.

    Raises:
        NotFound: there is no such journal.
    """
    journals = client.journals
    info, status = await journals.get(name), await journals.status(name)

    async def stored() -> Stored:
        found = await journals.fragments(name)
        waiting = [each.end - each.begin for each in found if not each.is_stored]
        return Stored(len(found), sum(e.end - e.begin for e in found), len(waiting), sum(waiting))

    async def producers() -> Producers:
        framing, end = framing_of(info.spec), status.require_end()
        assert framing is not None, "only asked where there is one"
        found = await journals.producer_index(name, end)
        index = index_from(found.encoded, found.offset, framing=framing, journal=name, asked=end)
        if end - index.offset <= TAIL_BYTES_MAX:
            read = journals.read(name, index.offset, end=end, create_revision=info.create_revision)
            index = update(index, b"".join([chunk.data async for chunk in read]))
        begins = [state.begin for state in index.states.values() if state.begin != NOT_OPEN]
        return Producers(index.offset, len(index.states), len(begins), min(begins, default=None))

    return Description(
        info=info,
        status=status,
        fragments=await _or_reason(stored),
        registers=await _or_reason(lambda: journals.registers(name)),
        producers=None if framing_of(info.spec) is None else await _or_reason(producers),
    )


async def _or_reason(ask: Callable[[], Awaitable[T]]) -> T | str:
    try:
        return await ask()
    except BroadsheetError as error:
        return str(error)


def description_text(told: Description) -> str:
    """`told` as lines of a name and a value."""
    info, status = told.info, told.status
    rows: list[tuple[str, Any]] = [
        ("journal", info.name),
        ("created", f"at revision {info.create_revision}, changed at {info.mod_revision}"),
        ("state", f"{status.state}: {status.reason}" if status.reason else status.state),
        ("bytes", _span_text(status)),
        ("fragments", _fragments_text(told.fragments, status)),
        *_spec_rows(info.spec.fragment),
    ]
    rows += [("label", f"{label}={value}") for label, value in sorted(info.spec.labels.items())]
    match told.registers:
        case str():
            rows.append(("registers", f"not known: {told.registers}"))
        case Registers(values=values):
            rows += [("register", f"{key}={value}") for key, value in sorted(values.items())]
    match told.producers:
        case str():
            rows.append(("producers", f"not known: {told.producers}"))
        case Producers(offset=offset, count=count, open_count=open_count, open_begin=begin):
            pending = (
                f"{open_count} with pending messages, from {begin} on" if open_count else "none is pending"
            )
            rows.append(("producers", f"{count} up to offset {offset}; {pending}"))
    width = max(len(field) for field, _ in rows)
    return "\n".join(f"{field:<{width}}  {value}" for field, value in rows)


def _span_text(status: JournalStatus) -> str:
    if status.begin is None or status.end is None:
        return "not known before it is open"
    return f"[{status.begin}, {status.end}), {size_text(status.end - status.begin)}"


def _fragments_text(found: Stored | str, status: JournalStatus) -> str:
    open_one = f"{size_text(status.spool_bytes)} in the open one"
    if isinstance(found, str):
        return f"not known: {found}; {open_one}"
    closed = f"{found.count} closed, {size_text(found.bytes)}"
    if found.unstored_count:
        closed += f", of which {found.unstored_count}, {size_text(found.unstored_bytes)}, are not stored yet"
    return f"{closed}; {open_one}"


def _spec_rows(spec: FragmentSpec) -> list[tuple[str, str]]:
    flush = f"{spec.flush_interval / SECOND:g} s" if spec.flush_interval else "none"
    return [
        ("fragment length", size_text(spec.length)),
        ("codec", spec.codec.value),
        ("store", spec.store or "the node's own"),
        ("flush interval", flush),
        ("retention", f"{spec.retention / SECOND:g} s" if spec.retention else "none"),
        ("retained bytes", size_text(spec.retained_bytes) if spec.retained_bytes else "all"),
    ]


async def listing_text(client: Client, infos: Sequence[JournalInfo]) -> str:
    """A table of journals with their states, and their sum."""
    few = asyncio.Semaphore(ASKED_MAX)

    async def asked(info: JournalInfo) -> JournalStatus | None:
        async with few:
            try:
                return await client.journals.status(info.name)
            except NotFound:
                return None  # It was deleted meanwhile.

    found = await asyncio.gather(*map(asked, infos))
    told = [(info, status) for info, status in zip(infos, found, strict=True) if status is not None]
    rows = [
        (
            info.name,
            status.state,
            "" if status.end is None else size_text(status.end - (status.begin or 0)),
            "" if status.end is None else status.end,
            size_text(status.spool_bytes),
            ",".join(f"{label}={value}" for label, value in sorted(info.spec.labels.items())),
        )
        for info, status in told
    ]
    size = sum(status.end - (status.begin or 0) for _, status in told if status.end is not None)
    head = ("NAME", "STATE", "SIZE", "END", "OPEN FRAGMENT", "LABELS")
    return "\n".join([table(head, rows), f"{len(rows)} journals, {size_text(size)}"])


def fragments_text(found: Sequence[FragmentInfo]) -> str:
    """A table of fragments, and their sum."""
    rows = [
        (each.begin, each.end, size_text(each.end - each.begin), "yes" if each.is_stored else "no", each.name)
        for each in found
    ]
    total = size_text(sum(each.end - each.begin for each in found))
    return "\n".join(
        [table(("BEGIN", "END", "SIZE", "STORED", "NAME"), rows), f"{len(rows)} fragments, {total}"]
    )


async def verified(client: Client, name: str, advance: Callable[[int], None]) -> Verified:
    """Read each closed fragment of journal `name` through its node, and compare its sum with its name.

    Args:
        advance: called with the number of bytes that were read.
    """
    info = await client.journals.get(name)
    damaged: list[Damage] = []
    holes: list[tuple[int, int]] = []
    looked, at = list[FragmentInfo](), None
    for each in await client.journals.fragments(name):
        if at is not None and each.begin > at:
            holes.append((at, each.begin))
        at = max(each.end, at or 0)
        if error := await _damage(client, info, each, advance):
            if each.end <= ((await client.journals.status(name)).begin or 0):
                continue  # A trim or a retention removed it meanwhile.
            damaged.append(Damage(each.name, each.begin, each.end, error))
        looked.append(each)
    return Verified(info.name, len(looked), sum(e.end - e.begin for e in looked), damaged, holes)


async def _damage(
    client: Client, info: JournalInfo, each: FragmentInfo, advance: Callable[[int], None]
) -> str:
    """What is wrong with one fragment; empty if nothing is."""
    fragment = parse_name(each.name)
    if fragment is None:
        return "its name is not a fragment's"
    digest = hashlib.sha1(usedforsecurity=False)
    reading = client.journals.read(
        info.name, each.begin, end=each.end, is_whole=True, create_revision=info.create_revision
    )
    try:
        async for chunk in reading:
            digest.update(chunk.data)
            advance(len(chunk.data))
    except UNREAD as error:
        return str(error)
    if digest.digest() != fragment.sum:
        return f"its content has the SHA-1 {digest.hexdigest()}"
    return ""


def verified_text(told: Verified) -> str:
    """The damaged fragments, the holes, and how many fragments are sound."""
    lines = [f"damaged: {each.name}: {each.error}" for each in told.damaged]
    lines += [
        f"hole: no fragment has [{begin}, {end}), {size_text(end - begin)}" for begin, end in told.holes
    ]
    sound = told.count - len(told.damaged)
    lines.append(
        f"{told.journal}: {sound} of {told.count} closed fragments are sound, {size_text(told.bytes)} in all"
    )
    return "\n".join(lines)
