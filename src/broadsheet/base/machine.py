"""Machine: the contract of every protocol machine: events in, effects out, no IO (code.1-7).

A machine is stepped by exactly one host, on one thread. `step` is total and runs to completion. An exception
other than `AssertionError` means that the *input* was illegal and that nothing changed; an `AssertionError`
means that we are wrong, and the host ends the node.
"""

from typing import Protocol, TypeVar

import msgspec

from broadsheet.base.time import Instant


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that happened to a machine. Named in the past tense, and never changed afterwards.

    Plain values; one that refers to an object says `gc=True`, or the two may keep each other for ever.
    """


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Something that a machine's host must now do. Named in the imperative. Plain values, as above."""


class Tick(Event, frozen=True):
    """The machine's deadline has come. Nothing else did, so a machine may be ticked at any time."""


E_contra = TypeVar("E_contra", contravariant=True)
F = TypeVar("F")


class Machine(Protocol[E_contra, F]):
    """A protocol as a deterministic function of its events."""

    def step(self, event: E_contra, now: Instant) -> list[F]:
        """Apply one event; return what the host must now do, in order.

        Raises:
            RemoteProtocolError: the event breaks the protocol. Nothing changed.
        """
        ...

    def deadline(self) -> Instant | None:
        """The time of the next `step(Tick())`, computed from state; None for never."""
        ...

    def check(self) -> None:
        """Assert every invariant. The simulator and the tests call it after each step."""
        ...
