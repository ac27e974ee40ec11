"""A node to attack, in a process of its own, and what is measured beside the attack.

Health is asked over HTTP every 10 ms by a thread of this process, a bystander appends 100 bytes at a time by
another, and the attacker is a third process, which gives way to the node where a core is short.
"""

import base64
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import jwt

from broadsheet.access.capability import Capability
from broadsheet.wire import frame as f
from tests.doors.abuse.raw import Gone, Raw

KEY = b"0123456789abcdef0123456789abcdef"
MINE = {"include": {"labels": [{"name": "name", "value": "mine/", "prefix": True}]}}
"""The attackers' grant."""

CONFIG = """
[node]
data_dir = "data"
[native]
address = "127.0.0.1:0"
keys_file = "keys"
[http]
address = "127.0.0.1:0"
[journals]
used_percent_max = 100
free_bytes_min = 0
"""


def token(capabilities: int, selector: object = None) -> str:
    """A token for ten minutes."""
    now = int(time.time())
    claims: dict[str, Any] = {"cap": capabilities, "iat": now - 1, "exp": now + 1800, "aud": "local"}
    if selector is not None:
        claims["sel"] = selector
    return jwt.encode(claims, KEY, "HS256")


class Target(NamedTuple):
    """What an attacker is told."""

    native: int
    http: int
    token: str
    """LIST, APPLY, READ and APPEND on `mine/`."""


class Seen(NamedTuple):
    """What others noticed of an attack."""

    health_ms_p50: float
    health_ms_p99: float
    health_ms_max: float
    failures: int
    """Health that was not told, and newcomers that were not let in."""
    appends_per_second: float
    stall_ms_max: float
    rss_mib_max: float


class Site:
    """A node with its bystanders."""

    def __init__(self, root: Path, *, source: str = "") -> None:
        """Serve the code under `source` (a checkout), or our own."""
        self.root, self.source = root, source
        (root / "keys").write_text(base64.b64encode(KEY).decode())
        (root / "node.toml").write_text(CONFIG)
        self.process: subprocess.Popen[bytes] | None = None
        self.target = Target(0, 0, "")

    def __enter__(self) -> Self:
        """Start the node."""
        ready, write = os.pipe()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("BROADSHEET_")}
        if self.source:
            environment["PYTHONPATH"] = str(Path(self.source) / "src")
        command = [sys.executable, "-m", "broadsheet", "serve"]
        command += ["--config", str(self.root / "node.toml"), "--ready-fd", str(write)]
        with (self.root / "node.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, pass_fds=[write], env=environment, stdout=log, stderr=log, cwd=self.root
            )
        os.close(write)
        _prefer(self.process.pid)
        told = os.read(ready, 65536)
        os.close(ready)
        addresses = json.loads(told)["addresses"]
        native, http_port = (int(addresses[door].rpartition(":")[2]) for door in ("native", "http"))
        grant = Capability.LIST | Capability.APPLY | Capability.READ | Capability.APPEND
        self.target = Target(native, http_port, token(int(grant), MINE))
        return self

    def __exit__(self, *_: object) -> None:
        """End the node, as an operator would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether the node still runs."""
        return self.process is not None and self.process.poll() is None

    def create(self, *names: str) -> None:
        """Make journals."""
        caller = Raw(self.target.native, token(int(Capability.APPLY)))
        for name in names:
            caller.call("journal.create", {"spec": {"name": name}})
        caller.close()

    def create_many(self, prefix: str, count: int) -> None:
        """Make many journals, in batches."""
        caller = Raw(self.target.native, token(int(Capability.APPLY)))
        caller.sock.settimeout(60)
        for begin in range(0, count, 200):
            frames = [
                caller.request(f.CALL, "journal.create", {"spec": {"name": f"{prefix}{begin + number:05d}"}})[
                    1
                ]
                for number in range(min(200, count - begin))
            ]
            caller.sock.sendall(b"".join(frames))
            answered = 0
            while answered < len(frames):
                answered += caller.read()[0] in (f.REPLY, f.REFUSE)
        caller.close()

    def measure(self, attack: Callable[[float], None], seconds: float) -> Seen:
        """What others notice while `attack` goes on."""
        stop = threading.Event()
        watch = _Watch(self, stop)
        _prefer(0)
        threads = [threading.Thread(target=each) for each in (watch.health, watch.append, watch.memory)]
        for thread in threads:
            thread.start()
        try:
            attack(seconds)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            watch.bystander.close()
        return watch.seen(seconds)

    def attack(self, shape: str) -> Callable[[float], None]:
        """An attack by a process of its own."""

        def run(seconds: float) -> None:
            command = [sys.executable, "-m", "tests.doors.abuse", "--shape", shape, "--seconds", str(seconds)]
            command += ["--target", json.dumps(self.target)]
            root = Path(__file__).parents[3]
            environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
            done = subprocess.run(
                ["nice", "-n", "15", *command], env=environment, check=False, capture_output=True
            )
            if done.returncode:
                raise AssertionError(f"{shape}: {done.stderr.decode()[-2000:]}")

        return run


def _prefer(pid: int) -> None:
    """Have a process run before others where we may: a busy machine must not be taken for a busy node."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, -10)


class _Watch:
    """The bystanders of one attack."""

    def __init__(self, site: Site, stop: threading.Event) -> None:
        self.site, self.stop = site, stop
        self.latencies: list[float] = []
        self.failures = self.appended = 0
        self.stall = self.rss = self.renewed = 0.0
        self.bystander = Raw(site.target.native, token(int(Capability.APPEND)))

    def health(self) -> None:
        """Ask whether the node is healthy, every 10 ms."""
        while not self.stop.is_set():
            began = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", self.site.target.http, timeout=10)
            try:
                connection.request("GET", "/healthz")
                is_well = connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                is_well = False
            finally:
                connection.close()
            self.latencies.append(time.perf_counter() - began)
            self.failures += not is_well
            time.sleep(0.01)

    def append(self) -> None:
        """Append, one at a time."""
        while not self.stop.is_set():
            began = time.perf_counter()
            if began - self.renewed > 0.25:
                self._renew(began)
            try:
                self.bystander.call("journal.append", {"journal": "other/x"}, bytes(100))
                self.appended += 1
            except (Gone, OSError):
                time.sleep(0.01)
                self._renew(began)
            self.stall = max(self.stall, time.perf_counter() - began)

    def _renew(self, now: float) -> None:
        """Be a newcomer: a node whose old callers go on may still let nobody in."""
        self.renewed = now
        try:
            other = Raw(self.site.target.native, token(int(Capability.APPEND)), timeout=5)
        except (Gone, OSError):
            self.failures += 1
        else:
            self.bystander.close()
            self.bystander = other

    def memory(self) -> None:
        """Look at the node's memory."""
        assert self.site.process is not None
        status = Path(f"/proc/{self.site.process.pid}/status")
        while not self.stop.is_set() and status.exists():
            for line in status.read_text().splitlines():
                if line.startswith("VmRSS"):
                    self.rss = max(self.rss, int(line.split()[1]) / 1024)
            time.sleep(0.05)

    def seen(self, seconds: float) -> Seen:
        """The measurements."""
        ordered = sorted(self.latencies)
        return Seen(
            statistics.median(ordered) * 1e3,
            ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3,
            ordered[-1] * 1e3,
            self.failures,
            self.appended / seconds,
            self.stall * 1e3,
            self.rss,
        )
