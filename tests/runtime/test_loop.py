"""A process runs on uvloop where it is installed, and on asyncio where it is asked to."""

import asyncio

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
