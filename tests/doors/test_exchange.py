"""The HTTP exchange answers one request, whatever bytes it is made of, and then is done."""

from hypothesis import given
from hypothesis import strategies as st

from broadsheet.doors.http.exchange import REASONS, REQUEST_BYTES_MAX, Exchange, Page


def answer(path: str) -> Page:
    return Page(body=f"page {path}".encode()) if path == "/" else Page(body=b"none", status=404)


def ask(request: bytes) -> bytes | None:
    return Exchange(answer).received(request)


def test_a_request_is_answered_with_its_page() -> None:
    """The length is stated and the connection closes, so that any client knows where the page ends."""
    found = ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

    assert found is not None
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 6\r\n" in head
    assert head.endswith(b"Connection: close")
    assert body == b"page /"


def test_head_says_the_length_and_sends_no_body() -> None:
    """RFC 9110 9.3.2: the same head as of a GET."""
    found = ask(b"HEAD / HTTP/1.0\r\n\r\n") or b""

    assert b"Content-Length: 6\r\n" in found
    assert found.endswith(b"\r\n\r\n")


def test_a_request_in_pieces_is_answered_once_it_is_whole() -> None:
    """A network cuts where it likes."""
    exchange = Exchange(answer)

    answers = [exchange.received(bytes([byte])) for byte in b"GET / HTTP/1.1\r\n\r\n"]

    assert [found is not None for found in answers] == [False] * 17 + [True]


def test_a_head_above_the_limit_is_refused_before_it_is_kept() -> None:
    """Memory of one connection is bounded."""
    assert (ask(b"GET / HTTP/1.1\r\nX: " + b"a" * REQUEST_BYTES_MAX) or b"").startswith(b"HTTP/1.1 431")


def test_other_methods_are_refused_by_name() -> None:
    """Nothing can be changed through this door."""
    found = ask(b"DELETE / HTTP/1.1\r\n\r\n") or b""

    assert found.startswith(b"HTTP/1.1 405")
    assert b"Allow: GET, HEAD" in found


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_answered_at_most_once_with_a_known_status(noise: bytes, cut: int) -> None:
    """No peer can make it raise, or make it speak twice."""
    exchange = Exchange(answer)
    request = noise + b"\r\n\r\n"

    answers = [exchange.received(request[at : at + cut]) for at in range(0, len(request), cut)]

    found = [each for each in answers if each is not None]
    assert len(found) == 1
    assert int(found[0].split(b" ")[1]) in REASONS
