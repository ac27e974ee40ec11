"""An object store that speaks as much of S3 as a checkpoint needs, on this machine and in memory."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"


class ObjectStore(ThreadingHTTPServer):
    """Objects by `bucket/key`. If `is_read_only`, nobody has the right to write."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.is_read_only = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def remove(self, url: str) -> bool:
        """What Spark does with a file `s3a://bucket/key`."""
        return self.objects.pop(url.removeprefix("s3a://"), None) is not None


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    thread = threading.Thread(target=store.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.shutdown()
        store.server_close()
        thread.join()


class _Requests(BaseHTTPRequestHandler):
    server: ObjectStore
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name.
        """Nothing: a test's output is its own."""

    def do_HEAD(self) -> None:
        self._give(self.server.objects.get(self._key()))

    def do_GET(self) -> None:
        key = self._key()
        if key == BUCKET:
            self._list(self._asked()["prefix"][0])
        else:
            self._give(self.server.objects.get(key))

    def do_PUT(self) -> None:
        content, asked = self._body(), self._asked()
        if self._is_denied():
            return
        if "uploadId" in asked:
            self.server.parts[asked["uploadId"][0]][int(asked["partNumber"][0])] = content
        else:
            self.server.objects[self._key()] = content
        self._answer(200, ETag='"e"')

    def do_POST(self) -> None:
        self._body()
        key, asked = self._key(), self._asked()
        if self._is_denied():
            return
        if "uploads" in asked:
            upload = f"upload-{len(self.server.parts)}"
            self.server.parts[upload] = {}
            self._xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        else:
            parts = self.server.parts[asked["uploadId"][0]]
            self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
            self._xml("CompleteMultipartUploadResult", '<ETag>"e"</ETag>')

    def do_DELETE(self) -> None:
        if not self._is_denied():
            self.server.objects.pop(self._key(), None)
            self._answer(204)

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def _asked(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _is_denied(self) -> bool:
        if self.server.is_read_only:
            self._xml("Error", "<Code>AccessDenied</Code><Message>read only</Message>", status=403)
        return self.server.is_read_only

    def _list(self, prefix: str) -> None:
        keys = [each.removeprefix(f"{BUCKET}/") for each in [*self.server.objects]]
        below = [each.removeprefix(prefix) for each in keys if each.startswith(prefix)]
        files = "".join(
            f"<Contents><Key>{prefix}{each}</Key><Size>{self._size(prefix + each)}</Size></Contents>"
            for each in below
            if "/" not in each
        )
        folders = dict.fromkeys(each.split("/")[0] for each in below if "/" in each)
        prefixes = "".join(f"<Prefix>{prefix}{each}/</Prefix>" for each in folders)
        common = f"<CommonPrefixes>{prefixes}</CommonPrefixes>" if prefixes else ""
        self._xml("ListBucketResult", f"<KeyCount>{len(below)}</KeyCount>{files}{common}")

    def _size(self, key: str) -> int:
        return len(self.server.objects.get(f"{BUCKET}/{key}", b""))

    def _give(self, content: bytes | None) -> None:
        if content is None:
            self._xml("Error", "<Code>NoSuchKey</Code>", status=404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            self._answer(200, content)
            return
        begin, end = int(asked[1]), min(int(asked[2]) + 1, len(content))
        self._answer(206, content[begin:end], **{"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"})

    def _xml(self, name: str, inner: str, *, status: int = 200) -> None:
        self._answer(status, f"<?xml version='1.0'?><{name}>{inner}</{name}>".encode())

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 15:00:00 GMT")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
