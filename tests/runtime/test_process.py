"""Ends of a process: by an assertion, with its story; by a failpoint, as kill -9 would; and forks of one."""

import os
import signal
import subprocess
import sys

import pytest

from broadsheet.runtime.entropy import Entropy
from broadsheet.runtime.failpoints import VARIABLE
from broadsheet.runtime.process import EXIT_WRONG

WRONG = """
from broadsheet.base.machine import Tick
from broadsheet.observe.story import Story
from broadsheet.runtime.process import end_process
from broadsheet.runtime.host import Host
from broadsheet.runtime.time import SystemTime
class Wrong:
    state = "wrong"
    def step(self, event, now):
        assert not isinstance(event, Tick), "never ticked"
        return []
    def deadline(self): return None
    def check(self): pass
class Fine(Tick.__mro__[1], frozen=True): pass
host = Host(Wrong(), {}, time=SystemTime(), timers=None, crash=end_process, story=Story("wrong machine"))
host.deliver(Fine())
host.deliver(Tick())
print("went on")
"""


def test_an_assertion_in_a_machine_ends_the_process_with_its_story() -> None:
    """A node that is wrong must stop before it writes more; the supervisor starts it again."""
    done = subprocess.run([sys.executable, "-c", WRONG], capture_output=True, text=True, check=False)

    assert done.returncode == EXIT_WRONG
    assert done.stdout == ""
    assert "AssertionError: never ticked" in done.stderr
    assert "story of wrong machine" in done.stderr
    assert "Fine() [wrong -> wrong] -> []" in done.stderr


@pytest.mark.parametrize(("failpoint", "survives"), [("here:3", 2), ("here", 0), ("elsewhere:1", 5)])
def test_a_failpoint_kills_at_its_count(failpoint: str, survives: int) -> None:
    """A kill at a labelled place is how the windows of a crash are tried one by one."""
    code = """
from broadsheet.runtime.failpoints import passed
for number in range(5):
    passed("here")
    print(number, flush=True)
"""
    environment = {**os.environ, VARIABLE: failpoint}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )

    assert len(done.stdout.split()) == survives
    assert done.returncode == (0 if survives == 5 else -signal.SIGKILL)


def test_a_forked_child_draws_other_numbers() -> None:
    """Spark forks its workers: with equal producer ids one's messages were duplicates of another's.

    Source: code.8.
    """
    code = """
import os
from broadsheet.runtime.entropy import Entropy
stream = Entropy()("producer")
stream.random()
if (child := os.fork()) == 0:
    print("child", stream.getrandbits(64), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent", stream.getrandbits(64), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    drawn = dict(line.split() for line in done.stdout.splitlines())

    assert drawn["child"] != drawn["parent"]


def test_two_streams_of_one_purpose_differ() -> None:
    """In production a purpose is a name, not a seed: a restart draws anew."""
    entropy = Entropy()

    assert entropy("nonce").randbytes(16) != entropy("nonce").randbytes(16)


def test_an_error_outside_of_machines_ends_the_process_too() -> None:
    """A task of a scope has no story: what went wrong must be said all the same."""
    code = "from broadsheet.runtime.process import end_process; end_process(OSError(5, 'sync failed'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == EXIT_WRONG
    assert done.stderr.endswith("OSError: [Errno 5] sync failed\n")
