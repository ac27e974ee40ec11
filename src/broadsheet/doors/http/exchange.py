"""Exchange: one HTTP/1.1 request and its answer, after which the connection is closed.

READING HEAD --blank line--> ANSWERED; READING HEAD --too long, malformed--> ANSWERED with 4xx. Sizes are
bytes. The exchange reads no bodies, keeps no connection alive, and takes the page of a target, its query
included, from the function `answer`. Source: RFC 9112 sections 2-3, 6.3; ADR 0004.
"""

from collections.abc import Callable
from typing import Final

import msgspec

REQUEST_BYTES_MAX: Final = 16 * 1024
"""The longest head of a request: request line and headers together."""
HEAD_END: Final = b"\r\n\r\n"
REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Page(msgspec.Struct, frozen=True):
    """The answer to a request."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


class Exchange:
    """Collects one request, and makes its answer."""

    def __init__(self, answer: Callable[[str], Page]) -> None:
        """Begin. `answer` gives the page of a target, and is called when the head is whole."""
        self._answer = answer
        self._head = bytearray()
        self._is_answered = self._is_head = False

    def received(self, data: bytes) -> bytes | None:
        """Take the next bytes. Returns the whole answer as soon as there is one, and once only."""
        if self._is_answered:
            return None  # These bytes are a body or a second request, and the connection is closing.
        self._head += data
        if HEAD_END in self._head:
            return self._respond(self._page())
        if len(self._head) > REQUEST_BYTES_MAX:
            return self._respond(
                _error(431, f"request line and headers may have {REQUEST_BYTES_MAX} bytes at most")
            )
        return None

    def _page(self) -> Page:
        line = bytes(self._head.partition(b"\r\n")[0])
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[1].isascii():
            return _error(400, "this is not HTTP/1.1")
        method, target = words[0], words[1].decode("ascii")
        if method not in (b"GET", b"HEAD"):
            return _error(405, "only GET and HEAD are served here")
        self._is_head = method == b"HEAD"
        return self._answer(target)

    def _respond(self, page: Page) -> bytes:
        self._is_answered = True
        self._head.clear()
        head = (
            f"HTTP/1.1 {page.status} {REASONS[page.status]}\r\n"
            f"Content-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
        )
        if page.status == 405:
            head += "Allow: GET, HEAD\r\n"
        return head.encode("ascii") + b"\r\n" + (b"" if self._is_head else page.body)


def _error(status: int, text: str) -> Page:
    return Page(body=f"{text}\n".encode(), status=status)
