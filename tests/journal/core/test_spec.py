"""What a journal may be told to be is checked before anything is written."""

import pytest
from msgspec.structs import replace

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.errors import InvalidArgument
from broadsheet.journal.core.fragment import Codec, Fragment
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec, validate_spec

SPEC = JournalSpec(name=JournalName("logs/web"), labels={"content-type": "application/x-ndjson"})

STORED = Fragment(ByteOffset(0), ByteOffset(2_000), bytes(20), Codec.ZSTANDARD).name
"""A directory of this name in the store keeps the fragment out for ever."""


def test_a_legal_spec_is_itself() -> None:
    """Labels are those that selectors know, by the same rules (journals.23)."""
    assert validate_spec(SPEC) is SPEC


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (replace(SPEC, name=JournalName("logs//web")), "logs//web"),
        (replace(SPEC, name=JournalName(".broadsheet/x")), "which stores use themselves"),
        (replace(SPEC, name=JournalName(".partial/x")), "which stores use themselves"),
        (replace(SPEC, name=JournalName(f"logs/web/{STORED}")), "the name of a fragment's file"),
        (replace(SPEC, name=JournalName(f"logs/{STORED.upper()}/x")), "the name of a fragment's file"),
        (replace(SPEC, name=JournalName(f"logs/web/{16 * '0'}-{8 * 'f'}.index")), "a fragment's file"),
        (replace(SPEC, fragment=FragmentSpec(length=1)), "1024 to"),
        (replace(SPEC, fragment=FragmentSpec(length=(1 << 30) + 1)), "to 1073741824 bytes"),
        (replace(SPEC, fragment=FragmentSpec(flush_interval=Duration(59 * SECOND))), "0, or a minute to 366"),
        (replace(SPEC, fragment=FragmentSpec(flush_interval=Duration(-1))), "0, or a minute to 366"),
        (replace(SPEC, labels={"x": "y"}), "2 to 64 characters"),
        (replace(SPEC, labels={"colour": "rosé"}), "characters of"),
        (replace(SPEC, labels={"name": "c"}), "selectors"),
        (replace(SPEC, labels={"prefix": "c/"}), "selectors"),
        (replace(SPEC, labels={f"label-{n}": "" for n in range(257)}), "limit of 256"),
        (replace(SPEC, labels={"broadsheet.dev/durability": "replicated"}), "fsynced"),
        (replace(SPEC, labels={"broadsheet.dev/framing": "csv"}), "one of json-lines, fixed"),
        (replace(SPEC, is_deleting=True), "delete"),
    ],
)
def test_a_spec_that_is_not_legal_is_refused_with_the_reason(spec: JournalSpec, said: str) -> None:
    """A name becomes a path, a label an answer to a selector: none of them is believed (node.5)."""
    with pytest.raises(InvalidArgument, match=said):
        validate_spec(spec)
