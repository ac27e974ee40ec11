"""Registers: small names and values of a journal, checked and set with an append.

`version` counts changes from 0 (never set); `at` is the end of the append that made the last change. The
check and the change of an append are evaluated against the state after every earlier adopted append,
committed or not. The pipeline decides when readers see a change. Source: journals.11, journals.12; J6.
"""

from typing import Annotated, Final

import msgspec

from broadsheet.base.types import ByteOffset
from broadsheet.errors import InvalidArgument
from broadsheet.journal.core.attempts import validate_attempt

REGISTERS_MAX: Final = 16
NAME_CHARS_MAX: Final = 64
VALUE_CHARS_MAX: Final = 256
REGISTERS_BYTES_MAX: Final = REGISTERS_MAX * (NAME_CHARS_MAX + VALUE_CHARS_MAX)
"""Bytes of all names and values, as UTF-8. The key space keeps room for them (`map_reserve_bytes`)."""


# The decoder refuses a map far above `REGISTERS_MAX`, before it takes the loop's time.
_Few: Final = msgspec.Meta(max_length=16 * REGISTERS_MAX)


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What must hold for an append to be accepted, and which registers it changes."""

    offset: ByteOffset | None = None
    """The append must begin exactly here; None: at the head, wherever that is."""
    check: Annotated[dict[str, str | None], _Few] | None = None
    """Each register must have this value; None: it must be absent."""
    union: Annotated[dict[str, str], _Few] | None = None
    """Registers set with the append, after `subtract`."""
    subtract: Annotated[dict[str, str], _Few] | None = None
    """Registers removed with the append if they have exactly this value."""
    attempt: bytes = b""
    """The attempt id: 16 bytes, the same for every try of one call; empty if its client will not ask."""
    is_strict: bool = True
    """False: Gazette's rule, by which a journal that never had registers passes every check (journals.12)."""

    @property
    def may_change_registers(self) -> bool:
        """Whether the append sets or removes registers."""
        return bool(self.union or self.subtract)


class RegisterState(msgspec.Struct, frozen=True):
    """The registers of a journal after some append."""

    values: dict[str, str]
    version: int
    at: ByteOffset
    attempt: bytes = b""
    """The attempt id of the append that made the last change (journals.11)."""


POSITION_REGISTER: Final = "at"
"""By this register an author says where its newest commit stands: a retention keeps all from there on."""
COMMITS_BYTES: Final = 64 << 10
"""So much before the newest commit is kept as well: authors look there for producers (pipelines.8)."""


def needed_from(state: RegisterState) -> ByteOffset | None:
    """The offset from which on the journal's author needs it, by its register `at`; None if it has none."""
    text = state.values.get(POSITION_REGISTER, "")
    if not (text.isascii() and text.isdigit()):
        return None  # Absent, or -1: nothing is committed yet.
    return ByteOffset(max(0, int(text) - COMMITS_BYTES))


NO_REGISTERS: Final = RegisterState(values={}, version=0, at=ByteOffset(0))
"""The state of a journal that never had registers."""


def validate_condition(condition: Condition) -> None:
    """Check a condition: its offset and attempt, how many registers it names, their names and values.

    Raises:
        InvalidArgument: the message says which one and why.
    """
    if condition.offset is not None and not 0 <= condition.offset < 1 << 63:
        raise InvalidArgument(f"append offset {condition.offset} is not in [0, 2**63)")
    if condition.attempt:
        validate_attempt(condition.attempt)
    for what in (condition.check, condition.union, condition.subtract):
        if what is None:
            continue
        if len(what) > REGISTERS_MAX:
            raise InvalidArgument(
                f"{len(what)} registers in one request: at most {REGISTERS_MAX} are allowed"
            )
        for name, value in what.items():
            if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
                raise InvalidArgument(
                    f"register name {name[:80]!r}: 1 to {NAME_CHARS_MAX} printable characters are allowed"
                )
            if value is not None and (len(value) > VALUE_CHARS_MAX or not value.isprintable()):
                raise InvalidArgument(
                    f"register {name}: a value has at most {VALUE_CHARS_MAX} printable characters"
                )


def is_met(condition: Condition, state: RegisterState) -> bool:
    """Whether the check of `condition` holds at `state`."""
    if not condition.check:
        return True
    if not condition.is_strict and state.version == 0:
        return True
    return all(state.values.get(name) == value for name, value in condition.check.items())


def changed(condition: Condition, state: RegisterState, at: ByteOffset) -> RegisterState | None:
    """The registers after an append with `condition` that ends at `at`; None if they do not change."""
    values = dict(state.values)
    for name, value in (condition.subtract or {}).items():
        if values.get(name) == value:
            del values[name]
    values.update(condition.union or {})
    if values == state.values:
        return None  # An unchanged state is no new version, and needs no put of the registers key.
    return RegisterState(
        values=dict(sorted(values.items())), version=state.version + 1, at=at, attempt=condition.attempt
    )


def is_within_limits(state: RegisterState) -> bool:
    """Whether the number and the bytes of the registers are within the limits of a journal."""
    held = sum(len(name.encode()) + len(value.encode()) for name, value in state.values.items())
    return len(state.values) <= REGISTERS_MAX and held <= REGISTERS_BYTES_MAX
