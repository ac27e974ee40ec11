"""Transaction: compares, then puts and deletes, over the key space (control.17).

Keys are text, ordered by code point, which is the order of their UTF-8 bytes. Values are bytes. Revisions
count committed transactions from 1; 0 means absent. Plain values: nothing here has state. This module does
not evaluate compares (`core.store`), and does no IO. Source: design/control.md control.16 and control.17;
the subset of etcd's transactions that brokers need.
"""

from collections.abc import Sequence

import msgspec

from broadsheet.base.types import Revision
from broadsheet.errors import InvalidArgument, Refused, TooLarge, Unsupported


class KeyValue(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A key of the key space with its value at some revision."""

    key: str
    value: bytes
    create_revision: Revision
    """The revision that created the key."""
    mod_revision: Revision
    """The revision of the last put of the key."""


class Absent(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """The compare of a transaction that holds if `key` is absent."""

    key: str


class CreateRevisionIs(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """The compare that holds if `key` was created at `revision`; revision 0 means absent."""

    key: str
    revision: Revision


class ModRevisionIs(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """The compare that holds if `key` was last put at `revision`; revision 0 means absent."""

    key: str
    revision: Revision


class ValueIs(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """The compare that holds if `key` is present and its value equals `value`."""

    key: str
    value: bytes


Compare = Absent | CreateRevisionIs | ModRevisionIs | ValueIs


class Put(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """The operation of a transaction that sets `key` to `value`; it creates the key if it is absent."""

    key: str
    value: bytes
    lease: int = 0
    """The live lease to which the key is attached; 0 for none. `keyspace/local` supports only 0."""


class Delete(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """The operation of a transaction that removes `key`; changes nothing if the key is absent."""

    key: str


Operation = Put | Delete


class Outcome(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The result of a transaction; success and failed compares alike are durable when they are answered."""

    succeeded: bool
    """True: every compare held and every operation was done. False: no operation was done."""
    revision: Revision
    """The transaction's own revision if it changed something, otherwise that of the state that it read."""


class Limits(msgspec.Struct, frozen=True):
    """Bounds of one transaction of the key space and of its whole map."""

    key_bytes_max: int = 4096
    """UTF-8 bytes of one key."""
    value_bytes_max: int = 1 << 20
    """Bytes of one value."""
    compares_max: int = 8192
    """Compares of one transaction."""
    operations_max: int = 8192
    """Puts and deletes of one transaction; never below 4,096 (control.17)."""
    transaction_bytes_max: int = 4 << 20
    """Keys and values of one transaction."""
    map_bytes_max: int = 64 << 20
    """Keys and values of the whole map, so that a snapshot of it fits into the log."""
    map_reserve_bytes: int = 64 << 20
    """Bytes above `map_bytes_max` that only upkeep of present keys may use. The default has room for the
    epochs and the largest registers of 10,000 journals."""
    in_flight_max: int = 4096
    """Transactions that may wait for the disk at once."""

    def __post_init__(self) -> None:
        """Refuse limits of the key space that contradict each other."""
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"keyspace.limits.{name} must be at least 1, not {getattr(self, name)}")
        if self.operations_max < 4096:
            raise ValueError(
                f"keyspace.limits.operations_max must be at least 4096 (control.17), "
                f"not {self.operations_max}"
            )
        if self.transaction_bytes_max > self.map_bytes_max:
            raise ValueError(
                f"keyspace.limits: transaction_bytes_max {self.transaction_bytes_max} is above "
                f"map_bytes_max {self.map_bytes_max}"
            )
        if self.key_bytes_max + self.value_bytes_max > self.transaction_bytes_max:
            raise ValueError(
                f"keyspace.limits: a pair of key_bytes_max {self.key_bytes_max} and value_bytes_max "
                f"{self.value_bytes_max} does not fit into transaction_bytes_max {self.transaction_bytes_max}"
            )


def refusal(compares: Sequence[Compare], operations: Sequence[Operation], limits: Limits) -> Refused | None:
    """Why this transaction of the key space is invalid, or None if it is valid. Changes nothing.

    A key may occur in one operation only, so that the order of operations within a transaction has no effect.
    """
    if len(compares) > limits.compares_max:
        return TooLarge(
            f"a transaction's {len(compares)} compares are above compares_max "
            f"{limits.compares_max}: split them"
        )
    if len(operations) > limits.operations_max:
        return TooLarge(
            f"a transaction's {len(operations)} operations are above operations_max "
            f"{limits.operations_max}: split them"
        )
    total = 0
    for compare in compares:
        if (bad := _key_refusal(compare.key, limits)) is not None:
            return bad
        total += key_size(compare.key) + (len(compare.value) if isinstance(compare, ValueIs) else 0)
    written: dict[str, None] = {}
    for operation in operations:
        if (bad := _key_refusal(operation.key, limits)) is not None:
            return bad
        if operation.key in written:
            return InvalidArgument(f"key {operation.key!r} is in two operations of one transaction: keep one")
        written[operation.key] = None
        total += key_size(operation.key)
        if isinstance(operation, Put):
            if operation.lease:
                return Unsupported(
                    f"lease {operation.lease} of key {operation.key!r}: leases are not supported, use lease 0"
                )
            if len(operation.value) > limits.value_bytes_max:
                return TooLarge(
                    f"value of key {operation.key!r} has {len(operation.value)} bytes, "
                    f"above value_bytes_max {limits.value_bytes_max}"
                )
            total += len(operation.value)
    if total > limits.transaction_bytes_max:
        return TooLarge(
            f"a transaction's {total} bytes are above transaction_bytes_max "
            f"{limits.transaction_bytes_max}: split them"
        )
    return None


def key_size(key: str) -> int:
    """The bytes of a key, as UTF-8."""
    return len(key) if key.isascii() else len(key.encode())


def _key_refusal(key: str, limits: Limits) -> Refused | None:
    if not key:
        return InvalidArgument("a key of the key space must not be empty")
    try:
        length = key_size(key)
    except UnicodeEncodeError:
        return InvalidArgument(f"key {key!r} of the key space is not valid Unicode text")
    if length > limits.key_bytes_max:
        return TooLarge(
            f"key space: key of {length} bytes is above key_bytes_max {limits.key_bytes_max}: {key[:40]!r}..."
        )
    return None
