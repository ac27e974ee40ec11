"""Routed: calls that find their node, with hints, deadlines, and retries with a jittered back-off.

A refused call may be sent again, to another node or later, because it was not executed. A call whose outcome
is `Unknown` is sent again only if its caller marked it idempotent (C1). The final error is a refusal only if
no attempt can have been executed (C2). A node that failed is asked last. Source: wire.10; C1, C2; ADR 0042.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NoReturn, TypeVar

import msgspec

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import MILLISECOND, Duration, Instant, after, in_seconds
from broadsheet.base.types import Buffer
from broadsheet.errors import LocalProtocolError, Refused, Retry, Unknown, Unreachable
from broadsheet.wire.client import ClientConnection, ClientRunStream, ClientStream
from broadsheet.wire.pool import Pool

R = TypeVar("R", bound=msgspec.Struct)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how fast a routed call is sent again."""

    attempts_max: int = 16
    """Attempts in all, including the first one."""
    hints_max: int = 8
    """Hints that are followed without a pause: two nodes may name each other for a while."""
    pause_min: Duration = Duration(10 * MILLISECOND)
    """The first pause is a random part of this; the bound doubles with each later pause."""
    pause_max: Duration = Duration(1000 * MILLISECOND)
    """The bound of a pause never exceeds this."""
    answer_min: Duration = Duration(100 * MILLISECOND)
    """A repeated attempt begins with this much time for its answer, or a tenth of the call's if that is less.

    Else the call often ends in a deadline, which says less than the refusal before it.
    """


DEFAULT_POLICY: Final = RetryPolicy()


class Routed:
    """A `Caller` over several nodes."""

    def __init__(self, pool: Pool, addresses: Sequence[str], *, policy: RetryPolicy = DEFAULT_POLICY) -> None:
        """Call the nodes at `addresses` (at least one), and the nodes that they give as hints."""
        assert addresses, "at least one address"
        self.pool, self.policy = pool, policy
        self._addresses = tuple(dict.fromkeys(addresses))
        self._next = 0
        self._random = pool.ports.random("wire.routed")

    async def call(
        self,
        method: str,
        request: msgspec.Struct,
        payload: Sequence[Buffer] = (),
        *,
        reply: type[R],
        timeout: Duration | None = None,
        patience: Duration | None = None,
        is_idempotent: bool = False,
    ) -> tuple[R, memoryview]:
        """One unary call, wherever it is served.

        Args:
            timeout: for all attempts together.
            patience: for how long attempts are begun: what is refused then is refused. None: as `timeout`.
            is_idempotent: two executions have the effect of one, so a call is repeated after `Unknown`.

        Raises:
            Refused: no attempt was executed.
            Unknown: an attempt may have been executed.
        """
        limit = self.pool.limits.call_timeout if timeout is None else timeout
        attempt = _Attempts(self, limit, patience=patience, is_idempotent=is_idempotent)
        while True:
            try:
                connection = await attempt.connection()
                return await connection.call(
                    method,
                    request,
                    payload,
                    reply=reply,
                    timeout=attempt.left(),
                    is_idempotent=is_idempotent,
                )
            except (Refused, Unknown) as error:
                await attempt.after(error)

    async def open(
        self,
        method: str,
        request: msgspec.Struct,
        *,
        timeout: Duration | None = None,
        is_repeated: bool = True,
    ) -> ClientStream:
        """Open a STREAM. The node's refusal arrives later, with the reply of the stream.

        Args:
            is_repeated: False: one attempt, because the caller has a loop of its own. After a failure the
                next one asks another node.

        Raises:
            Refused: no node could be reached.
        """
        attempt = _Attempts(self, self.pool.limits.call_timeout, is_idempotent=False)
        while True:
            try:
                connection = await attempt.connection()
                return await connection.open(method, request, timeout=timeout)
            except (Refused, Unknown) as error:
                if not is_repeated:
                    attempt.turn_away()
                    raise
                await attempt.after(error)

    async def open_run(
        self,
        method: str,
        request: msgspec.Struct,
        *,
        reply: type[R],
        timeout: Duration | None = None,
    ) -> tuple[R, ClientRunStream]:
        """Open a RUN stream at a node that accepts it. An opening may be repeated: it changes nothing.

        Raises:
            Refused: no node accepts it.
            Unknown: no node answered in time.
        """
        limit = self.pool.limits.call_timeout if timeout is None else timeout
        attempt = _Attempts(self, limit, is_idempotent=True)
        while True:
            try:
                connection = await attempt.connection()
                return await connection.open_run(method, request, reply=reply, timeout=attempt.left())
            except (Refused, Unknown) as error:
                await attempt.after(error)

    @property
    def address(self) -> str:
        """The address to ask first."""
        return self._addresses[self._next % len(self._addresses)]

    def turn_away_from(self, address: str) -> None:
        """Ask another node next."""
        if self.address == address:
            self._next += 1

    def backoff(self) -> Backoff:
        """The pauses of one call."""
        return Backoff(self.policy.pause_min, self.policy.pause_max, random=self._random)


class _Attempts:
    """The attempts of one routed call."""

    def __init__(
        self, routed: Routed, timeout: Duration, *, patience: Duration | None = None, is_idempotent: bool
    ) -> None:
        self._routed, self._is_idempotent = routed, is_idempotent
        self._patience = timeout if patience is None else min(patience, timeout)
        now = routed.pool.ports.time.now()
        self._ends, self._begins_until = after(now, timeout), after(now, self._patience)
        self._answer_min = min(routed.policy.answer_min, timeout // 10)
        self._address = routed.address
        self._count = self._hints = 0
        self._backoff: Backoff | None = None
        self._undecided: Unknown | None = None

    def left(self) -> Duration:
        """The time that is left for an answer."""
        return self._until(self._ends)

    def patience_left(self) -> Duration:
        """The time that is left to begin an attempt."""
        return self._until(self._begins_until)

    def _until(self, end: Instant) -> Duration:
        return Duration(max(0, end - self._routed.pool.ports.time.now()))

    async def connection(self) -> ClientConnection:
        """A connection to the node of the next attempt.

        Raises:
            LocalProtocolError: the client is closed. Unknown: it is, and an earlier attempt is undecided.
        """
        self._count += 1
        try:
            return await self._routed.pool.connection(self._address, within=self.patience_left())
        except LocalProtocolError as error:
            self._give_up(error)

    def turn_away(self) -> None:
        """Ask another node next."""
        self._routed.turn_away_from(self._address)

    async def after(self, error: Refused | Unknown) -> None:
        """Wait for the next attempt, or raise the final error of the call.

        Raises:
            Refused: there is no further attempt, and none was executed.
            Unknown: there is no further attempt, and one may have been executed.
        """
        if isinstance(error, Unknown):
            self._undecided = error
            if not self._is_idempotent:
                raise error
        elif error.retry is Retry.NEVER:
            self._give_up(error)
        if self._count >= self._routed.policy.attempts_max or self._routed.pool.is_closed:
            self._give_up(error)
        hint = error.hint if isinstance(error, Refused) and error.retry is Retry.ELSEWHERE else ""
        if hint and self._hints < self._routed.policy.hints_max and self.patience_left():
            self._hints += 1
            self._address = hint
            return
        self.turn_away()
        self._address = self._routed.address
        self._backoff = self._backoff or self._routed.backoff()
        left = min(self.patience_left(), self.left() - self._answer_min)
        if self._backoff.pause >= left:
            self._give_up(error)
        await asyncio.sleep(in_seconds(self._backoff.next()))

    def _give_up(self, error: Refused | Unknown | LocalProtocolError) -> NoReturn:
        """Raise `error`; but `Unknown`, if an earlier attempt may have been executed (C2)."""
        if self._undecided is not None and not isinstance(error, Unknown):
            raise Unknown(
                f"an earlier attempt may have been executed; the last was refused: {error}"
            ) from self._undecided
        if isinstance(error, Unreachable) and not self.patience_left():
            raise Unreachable(
                f"no node could be reached in {self._patience // MILLISECOND} ms: {error}"
            ) from error
        raise error


__all__ = ["DEFAULT_POLICY", "RetryPolicy", "Routed"]
