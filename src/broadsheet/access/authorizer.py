"""Authorizer: the one check that stands in front of every door's method table (access.2).

OFF (no keys; every caller is `ANYONE`) or ON (a valid token or nothing), for the process's life. From
where callers come is not decided here (`exposure`). It does not look at what exists: a name outside the grant
is refused before anybody looks it up, so that a refusal tells nothing. Source: access.2-5.
"""

from typing import Final

from broadsheet.access.capability import Capability
from broadsheet.access.principal import ANYONE, Principal
from broadsheet.access.tokens import Tokens
from broadsheet.errors import NotAllowed, Unauthenticated
from broadsheet.ports import Time

CLUSTER_WIDE: Final = Capability.ADMIN | Capability.REPLICATE
"""These capabilities concern every name, so a grant of some names is not enough."""
EXPIRED: Final = "the token has expired: connect again with a newer one"
"""The refusal of a caller whose connection outlived its token."""


class Authorizer:
    """Verifies tokens, and checks what their bearers may do."""

    def __init__(self, tokens: Tokens | None, *, time: Time) -> None:
        """Check against the keys of `tokens`; None turns authorization off."""
        self._tokens, self._time = tokens, time

    def authenticate(self, token: str) -> Principal:
        """The principal that bears `token`; an empty string means no token.

        Raises:
            Unauthenticated: the token is missing, expired, forged, or meant for another cluster.
        """
        if self._tokens is None:
            return ANYONE
        if not token:
            raise Unauthenticated(
                "this node wants a token: set BROADSHEET_TOKEN for the command line, or pass token=. "
                "`broadsheet token mint` makes one, and docs/operations/tokens.md says how"
            )
        return self._tokens.verify(token, now=self._time.wall())

    def authorize(self, principal: Principal, capability: Capability, name: str | None) -> None:
        """Let `principal` use `capability` on `name`, or on no particular name.

        Raises:
            Unauthenticated: the principal's token has expired.
            NotAllowed: it lacks the capability, or `name` is outside its grant. The message is the
                same whether `name` exists or not.
        """
        if principal is ANYONE:
            return
        if principal.expires is not None and self._time.wall() >= principal.expires:
            raise Unauthenticated(EXPIRED)
        if capability & ~principal.capabilities:
            raise NotAllowed(f"the token lacks {capability.name}")
        if name is None and capability & CLUSTER_WIDE and not principal.covers_everything:
            raise NotAllowed(f"{capability.name} is of the whole cluster, and the token's grant is narrower")
        if name is not None and not principal.covers(name):
            raise NotAllowed("the name is outside of the token's grant")
