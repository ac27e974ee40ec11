"""The bytes of docs/protocols/native.md: what a client in another language is written against."""

import re
import struct
from pathlib import Path

import pytest

from broadsheet.base.time import Instant
from broadsheet.wire import frame as f
from broadsheet.wire.events import CallsReceived, HelloReceived, RunReceived
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.listening_machine import ListenerConnection
from broadsheet.wire.method import EMPTY

GOLDEN = Path(__file__).parent / "golden" / "native-v2.txt"
DOCUMENT = Path(__file__).parents[2] / "docs" / "protocols" / "native.md"


def with_payload(kind: int, stream: int, body: bytes, payload: bytes) -> bytes:
    return f.header(kind, stream, body_bytes=len(body), payload_bytes=len(payload)) + body + payload


FRAMES = {
    "HELLO of a dialler": f.frame(
        f.HELLO, 0, f.encode(f.Hello("broadsheet", 2, 2, "tok", 4 << 20, 16 << 20, "c", "local"))
    ),
    "HELLO of a listener": f.frame(
        f.HELLO, 0, f.encode(f.Welcome(2, 4 << 20, 16 << 20, 1024, 65_536, {"node.status": 8}, "n1", "local"))
    ),
    "GOAWAY": f.frame(f.GOAWAY, 0, f.encode(f.GoAway(20, "leaving", 7))),
    "PING": f.frame(f.PING, 0),
    "PONG": f.frame(f.PONG, 0),
    "CALL": with_payload(f.CALL, 1, f.CALL_HEAD.pack(8, 30_000) + f.encode(EMPTY), b"payload"),
    "OPEN": f.frame(f.OPEN, 3, f.CALL_HEAD.pack(56, 0) + f.encode(EMPTY)),
    "OPEN_RUN": f.frame(f.OPEN_RUN, 5, f.CALL_HEAD.pack(55, 0) + f.encode(EMPTY)),
    "OPENED": f.frame(f.OPENED, 5, f.encode(EMPTY)),
    "REPLY": with_payload(f.REPLY, 1, f.encode(EMPTY), b"answer"),
    "REFUSE": f.frame(f.REFUSE, 1, f.encode(f.Refusal(8, "there is no a/b", "127.0.0.1:6740"))),
    "CANCEL": f.frame(f.CANCEL, 3),
    "MESSAGE": with_payload(f.MESSAGE, 3, f.encode(EMPTY), b"bytes"),
    "WINDOW": f.frame(f.WINDOW, 3, f.U32.pack(65_536)),
    "FINISH": f.frame(f.FINISH, 3),
    "RUN": with_payload(f.RUN, 5, struct.pack("<QII", f.AT_HEAD, 2, 3), b"abcde"),
    "RUN at an offset": with_payload(f.RUN, 5, struct.pack("<QI", 1000, 4), b"abcd"),
    "RUN_ACK": f.frame(f.RUN_ACK, 5, f.RUN_ACK_BODY.pack(1, 2, 106, 111)),
    "RUN_REFUSE": f.frame(f.RUN_REFUSE, 5, f.encode(f.RunRefusal(3, 1, 12, "the head is at 111"))),
}


def golden() -> dict[str, bytes]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    pairs = [line.rpartition(": ") for line in lines if line and not line.startswith("#")]
    return {name: bytes.fromhex(value) for name, _, value in pairs}


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_a_frame_has_the_golden_bytes(name: str) -> None:
    """Version 2 is what it is: a change of bytes is another version (wire.1)."""
    assert FRAMES[name] == golden()[name]


def test_every_kind_has_golden_bytes_and_stands_in_the_document() -> None:
    """A kind that nobody wrote down cannot be spoken by others."""
    text = DOCUMENT.read_text(encoding="utf-8")
    named = {name.split()[0] for name in golden()}

    assert named == set(f.FRAME_NAMES.values())
    for kind, name in f.FRAME_NAMES.items():
        assert re.search(rf"^\| {kind} \| {name} \|", text, re.MULTILINE), f"{name} is missing in native.md"
    for name, frame in FRAMES.items():
        assert frame.hex() in text, f"the bytes of {name} in native.md are stale"


def test_a_listener_understands_the_golden_bytes() -> None:
    """Decoding is pinned as well as encoding."""
    frames = golden()
    listener = ListenerConnection(WireLimits(), now=Instant(0))
    feed(listener, frames["HELLO of a dialler"])
    (hello,) = listener.events
    assert isinstance(hello, HelloReceived)
    assert (hello.hello.token, hello.hello.cluster) == ("tok", "local")
    listener.say_welcome({})
    listener.events.clear()
    feed(listener, frames["CALL"] + frames["OPEN_RUN"])
    listener.accept_run(5, b"")
    feed(listener, frames["RUN"] + frames["RUN at an offset"])
    call, _, run, at = listener.events

    assert isinstance(call, CallsReceived)
    assert (list(call.streams), call.method, call.timeout_ms) == ([1], 8, 30_000)
    assert (bytes(call.view[24:25]), bytes(call.view[25:])) == (b"\x90", b"payload")
    assert isinstance(run, RunReceived)
    assert (run.sequence, run.count, run.at, bytes(run.content)) == (0, 2, None, b"abcde")
    assert isinstance(at, RunReceived)
    assert (at.sequence, at.at) == (2, 1000)


def feed(listener: ListenerConnection, data: bytes) -> None:
    buffer = bytearray(data)
    assert listener.receive(buffer, memoryview(buffer), 0, len(buffer), Instant(0)) == len(buffer)


if __name__ == "__main__":
    lines = [f"{name}: {frame.hex()}" for name, frame in FRAMES.items()]
    GOLDEN.write_text(
        "# Frames of the native wire, version 2, in hex.\n" + "\n".join(lines) + "\n", encoding="utf-8"
    )
