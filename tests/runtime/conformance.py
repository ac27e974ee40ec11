"""One conformance suite for every implementation of every port: the registry that its tests take them from.

A test is a *story*: a coroutine function that is given one port and asserts what `ports.py` says of it. An
implementation brings its own loop: `run(story, directory)` makes the port in the empty `directory` (a
simulation ignores it), runs the story to its end on a loop of its own, raises what the story raises, and
cleans up.

To add implementations, write a module with

    def provide() -> Iterable[tuple[str, Implementation]]:
        yield DISKS, Implementation("simulated", run_on_simulated_disk)

and list it in `PROVIDERS`. Nothing else changes: each test of that port then runs over it as well, under
its name.

What a story is given, by port:
    TIMES     a `Clocks`: `time: Time` and `timers: Timers` of the loop that the story runs on
    RANDOMS   a `Callable[[str], Random]`, as `Ports.random`
    DISKS     a `Disk` whose root is empty
    NETWORKS  a `Network`, on which `address` may be listened on (port 0: choose one)
    OBJECTS   an empty `ObjectStore`
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from broadsheet.ports import Time, Timers

TIMES: Final = "times"
RANDOMS: Final = "randoms"
DISKS: Final = "disks"
NETWORKS: Final = "networks"
OBJECTS: Final = "objects"

LISTEN_AT: Final = "127.0.0.1:0"

PROVIDERS: Final = (
    "tests.runtime.provide_production",
    "tests.support.provide_faulty",
    "tests.simulator.provide_simulated",
)

Story = Callable[[Any], Awaitable[None]]


class Clocks(NamedTuple):
    """What a story about time is given."""

    time: Time
    timers: Timers


@dataclass(frozen=True)
class Implementation:
    """One way to have a port."""

    name: str
    run: Callable[[Story, Path], None]
    traits: frozenset[str] = frozenset()
    """What sets it apart, for the few tests that need it: "real" (wall time, threads, the kernel)."""


def implementations(port: str, *, trait: str | None = None) -> list[Implementation]:
    """Every implementation of `port`, those with `trait` only where one is named."""
    return [
        implementation
        for module in PROVIDERS
        if _is_there(module)
        for kind, implementation in _provided(module)
        if kind == port and (trait is None or trait in implementation.traits)
    ]


def over(port: str, *, trait: str | None = None) -> pytest.MarkDecorator:
    """Run a test once per implementation, as its argument `implementation`."""
    found = implementations(port, trait=trait)
    return pytest.mark.parametrize("implementation", found, ids=[each.name for each in found])


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _provided(module: str) -> Iterable[tuple[str, Implementation]]:
    provided: Iterable[tuple[str, Implementation]] = import_module(module).provide()
    return provided
