"""A key's journal is the same for every publisher, whatever wrote it."""

import pytest

from broadsheet.message.mapping import fnv1a32, modulo, modulo_each


def test_one_journal_takes_every_key() -> None:
    """Most users begin with one."""
    assert [modulo(key, 1) for key in (b"", b"a", b"key")] == [0, 0, 0]
    assert modulo_each([b"", b"a", b"key"], 1) == [0, 0, 0]


def test_no_journal_is_refused() -> None:
    """A selector that matches nothing yet."""
    with pytest.raises(ValueError, match="create one first"):
        modulo(b"a", 0)


def test_the_hash_is_the_published_one() -> None:
    """Programs in other languages must find the same journal."""
    assert [fnv1a32(key) for key in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]
    assert modulo_each([b"a", b"foobar", b"a"], 7) == [modulo(key, 7) for key in (b"a", b"foobar", b"a")]
