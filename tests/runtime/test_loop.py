"""A process runs on uvloop where it is installed, and on asyncio where it is asked to."""

import asyncio
import subprocess
import sys

import pytest

from broadsheet.runtime.loop import run


@pytest.mark.parametrize(("asked", "module"), [({}, "uvloop"), ({"plain": True}, "asyncio.unix_events")])
def test_the_loop_is_the_one_that_was_asked_for(asked: dict[str, bool], module: str) -> None:
    """The first is a third faster, the second is everywhere."""

    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(main(), **asked) == module


def test_the_loop_is_closed_whatever_main_raises() -> None:
    """A command that fails must leave no task and no socket."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        raise KeyError("main")

    with pytest.raises(KeyError):
        run(main())
    assert loops[0].is_closed()


NO_DESCRIPTOR = """
import resource
from broadsheet.runtime.loop import run
import asyncio.unix_events

async def main():
    pass

resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
try:
    run(main(), plain=True)
except OSError as error:
    print(error.strerror)
"""


def test_a_main_that_never_began_is_closed() -> None:
    """Without a descriptor, or after a Ctrl-C this early, Python warned that nobody had awaited it."""
    done = subprocess.run([sys.executable, "-c", NO_DESCRIPTOR], check=False, capture_output=True, text=True)

    assert done.stdout == "Too many open files\n"
    assert "never awaited" not in done.stderr
