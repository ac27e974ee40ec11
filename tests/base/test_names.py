"""A name that was accepted can become a path, a key or a URL without leaving its place."""

import os.path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.names import FILE_NAME_MAX, check_file_name, check_prefix, journal_name
from broadsheet.errors import InvalidArgument


@pytest.mark.parametrize(
    "name", ["abcd", "a/b-c_d+e.f=g%h/1", "flights/carrier=AA", "x" * 255 + "/" + "y" * 255]
)
def test_good_names_are_taken_as_they_are(name: str) -> None:
    """Gazette's names are ours."""
    assert journal_name(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("abc", "3 characters, not 4 to 512"),
        ("x" * 513, "513 characters"),
        ("/abc", "no clean relative path"),
        ("abc/", "no clean relative path"),
        ("a//bc", "no clean relative path"),
        ("a/../bc", "no clean relative path"),
        ("a/./bc", "no clean relative path"),
        ("a b c", "a character outside"),
        ("abcd;meta", "a character outside"),
        ("ab\\cd", "a character outside"),
        ("ab\0cd", "a character outside"),
        ("ab\ncd", "a character outside"),
        ("abcd\n", "a character outside"),
        ("äbcd", "a character outside"),
        ("a" * 256 + "/b", "a segment above 255"),
        ("-/kv/x", "reserved segment '-'"),
        ("metrics", "reserved segment 'metrics'"),
        ("healthz/x", "reserved segment 'healthz'"),
        ("readyz/x", "reserved segment 'readyz'"),
    ],
)
def test_bad_names_are_refused_with_the_reason(name: str, why: str) -> None:
    """The user learns what to change, and control characters do not reach a log."""
    with pytest.raises(InvalidArgument) as caught:
        journal_name(name)
    assert why in str(caught.value)
    assert str(caught.value).isprintable()


@given(st.text(alphabet="ab./-%\\\0~$é ", max_size=12) | st.text(max_size=20))
def test_an_accepted_name_stays_below_its_root(name: str) -> None:
    """Oracle: the path that the operating system would make of it."""
    try:
        check_file_name(name)
    except InvalidArgument:
        return
    assert os.path.normpath(os.path.join("/base", name)) == f"/base/{name}"  # noqa: PTH118 - the oracle.
    assert name.isascii()
    assert len(name) <= FILE_NAME_MAX


@given(st.text(alphabet="ab./-", max_size=8), st.text(alphabet="ab./-", max_size=8))
def test_every_prefix_of_a_good_name_is_a_good_prefix(head: str, tail: str) -> None:
    """A listing by any beginning of a name must find it."""
    try:
        check_file_name(head + tail)
    except InvalidArgument:
        return
    segment = head.rpartition("/")[2]
    check_prefix(head)
    assert segment == "" or head.endswith(segment)


@pytest.mark.parametrize("prefix", ["/", "a//", "../", "a/../b", "a b", "x" * 1025])
def test_a_prefix_of_no_name_is_refused(prefix: str) -> None:
    """It would list nothing, and hide a mistake."""
    with pytest.raises(InvalidArgument):
        check_prefix(prefix)
