"""Alteration: changes the spec of a journal that lives, as far as that can be changed.

What is stored already stays as it is: its codec, its length, its place. Where the change would make the
journal another one, or its messages others, it is refused: the name, the store, the framing. The broker has
one change made at a time. The key of the spec is put under its revision, so that none is made of a journal
that is deleted meanwhile.
Source: journals.23; `docs/protocols/journals.md`.
"""

from typing import Final

from msgspec.structs import asdict, replace

from broadsheet.errors import InvalidArgument, NotFound
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec, framing_of, spec_key, validate_spec
from broadsheet.journal.keys import decode_info, encode_spec, is_retention_doubtful
from broadsheet.journal.messages import JournalInfo, SpecChange
from broadsheet.journal.remedies import retention_rests
from broadsheet.keyspace.core.transaction import ModRevisionIs, Put
from broadsheet.keyspace.port import Keyspace
from broadsheet.runtime.failpoints import passed

FRAGMENT_FIELDS: Final = ("length", "codec", "flush_interval", "retention", "retained_bytes")


def altered(spec: JournalSpec, change: SpecChange) -> JournalSpec:
    """The journal's `spec` after `change`.

    Raises:
        InvalidArgument: a field cannot be changed, or its new value is not legal.
    """
    if change.store is not None and change.store != spec.fragment.store:
        stays = spec.fragment.store or "the node's own"
        raise InvalidArgument(
            f"fragment.store of journal {spec.name} stays {stays}: what is stored there would not be found;"
            " `broadsheet journals export`, then `broadsheet journals import` into one in the other store"
        )
    wanted = {name: value for name, value in asdict(change).items() if name in FRAGMENT_FIELDS}
    fragment = replace(spec.fragment, **{name: value for name, value in wanted.items() if value is not None})
    labels = {name: value for name, value in {**spec.labels, **change.labels}.items() if value is not None}
    found = validate_spec(replace(spec, fragment=fragment, labels=labels))
    if (framing := framing_of(spec)) != framing_of(found):
        stays = framing.kind.value if framing is not None else "none"
        raise InvalidArgument(
            f"the labels of journal {spec.name} would change how its messages are framed, which stays"
            f" {stays}: make another journal"
        )
    return found


async def put_altered(keyspace: Keyspace, journal: JournalInfo, change: SpecChange) -> JournalInfo:
    """Put the altered spec of a journal durably. No other alteration of it is under way.

    Raises:
        InvalidArgument: as `altered`; or its retention rests, and is not said again. NotFound: it was deleted
            meanwhile. Nothing changed.
        Unknown: it may have been put.
    """
    key = spec_key(journal.name)
    pair = keyspace.get(key)
    info = decode_info(pair) if pair is not None else journal
    if pair is None or info.create_revision != journal.create_revision or info.spec.is_deleting:
        raise NotFound(f"journal {journal.name} was deleted meanwhile")
    spec, is_doubtful = altered(info.spec, change), is_retention_doubtful(keyspace, info)
    if is_doubtful and not _says_retention(change, info.spec.fragment):
        raise InvalidArgument(f"journal {journal.name}: {retention_rests(journal.name)}; nothing changed")
    if spec == info.spec and not is_doubtful:
        return info
    passed("journal.alter.before_put")
    put = Put(key, encode_spec(spec, created=info.create_revision))
    outcome = await keyspace.transact([ModRevisionIs(key, info.mod_revision)], [put])
    passed("journal.alter.after_put")
    if not outcome.succeeded:
        raise NotFound(f"journal {journal.name} was deleted meanwhile")
    return replace(info, spec=spec, mod_revision=outcome.revision)


def _says_retention(change: SpecChange, kept: FragmentSpec) -> bool:
    """Whether it tells each retention that there is: its put ends what keeps them from acting."""
    is_age_said = change.retention is not None or not kept.retention
    return is_age_said and (change.retained_bytes is not None or not kept.retained_bytes)
