"""Tokens: signing and verifying bearer tokens. The only importer of PyJWT.

A token is a JWT signed by HMAC-SHA256 with one of a list of keys: the first signs, any verifies, so that
keys rotate by adding in front and removing at the end. The algorithm is pinned here and never read from a
token. Claims: `cap` (capability bits), `sel` (Gazette's label selector, of which the meta-labels `name` and
`prefix` are understood), `iat`, `exp` (required, at most `lifetime_max` after `iat`), `nbf` (obeyed where it
stands), `aud` (the cluster's id). Source: access.5; ADR 0043.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import jwt
import msgspec

from broadsheet.access.capability import Capability
from broadsheet.access.principal import Principal
from broadsheet.base.time import SECOND, Duration, WallTime
from broadsheet.errors import ConfigError, Unauthenticated

KEY_BYTES_MIN: Final = 32
"""256 bits, the least for HMAC-SHA256."""
KEY_COUNT_MAX: Final = 16
"""Keys in rotation."""
TOKEN_BYTES_MAX: Final = 8 * 1024
"""Longer tokens are refused without decoding."""
LIFETIME_MAX: Final = Duration(3600 * SECOND)
"""Default of the longest life that a token may have."""
LEEWAY: Final = Duration(5 * SECOND)
"""How far the clocks of signer and verifier may differ (Gazette's)."""
GRANT_COUNT_MAX: Final = 64
"""Labels in one selector."""

Seconds = Annotated[int, msgspec.Meta(ge=0, lt=1 << 33)]
"""Since 1970, UTC, up to the year 2242: in nanoseconds it fits into 63 bits."""
Subject = Annotated[str, msgspec.Meta(max_length=256)]
Bits = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
"""Capability bits. A bit beyond the 32 of Gazette's claim is refused, not dropped."""

_ALGORITHM: Final = "HS256"


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One label of the selector in a token."""

    name: str
    value: str = ""
    prefix: bool = False


class LabelSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Labels of the selector in a token; those of one name are alternatives."""

    labels: tuple[Label, ...] = ()


class SelectorClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The claim of a token that is Gazette's selector, as its JSON.

    An unknown field is refused here and below: to ignore a misspelt `include` would grant everything.
    """

    include: LabelSet = LabelSet()
    exclude: LabelSet = LabelSet()


class Claims(msgspec.Struct, frozen=True):
    """The claims of a token that we read; others are ignored."""

    cap: Bits
    iat: Seconds
    exp: Seconds
    nbf: Seconds = 0
    """Not valid before this."""
    sub: Subject = ""
    """The bearer for whom it was made. Tokens of one subject and grant share one account of the node."""
    sel: SelectorClaim = SelectorClaim()


class Tokens:
    """The keys by which one cluster signs and verifies tokens."""

    def __init__(
        self, keys: Sequence[bytes], *, audience: str, lifetime_max: Duration = LIFETIME_MAX
    ) -> None:
        """Sign tokens with the first of `keys`, verify them with any.

        Args:
            audience: the cluster's id, so that a token of another cluster with the same key is refused.

        Raises:
            ConfigError: there is no key, one is shorter than 256 bits, or there are too many.
        """
        if not 1 <= len(keys) <= KEY_COUNT_MAX:
            raise ConfigError(f"between 1 and {KEY_COUNT_MAX} token keys are needed, not {len(keys)}")
        for number, key in enumerate(keys):
            if len(key) < KEY_BYTES_MIN:
                raise ConfigError(
                    f"token key {number} has {len(key)} bytes, and {KEY_BYTES_MIN} are the least"
                )
        self._keys = {key_id(key): key for key in keys}
        self._signing = key_id(keys[0])
        self._audience, self._lifetime_max = audience, lifetime_max

    def sign(
        self,
        capabilities: Capability,
        *,
        prefixes: Sequence[str] = (),
        names: Sequence[str] = (),
        subject: str = "",
        now: WallTime,
        lifetime: Duration,
    ) -> str:
        """A token for `capabilities` on `names` and `prefixes`; with neither, on everything.

        Args:
            subject: the bearer to whose share of the node its requests count.

        Raises:
            ConfigError: `lifetime` is above the limit, or the nodes would refuse the token for another
                reason. No token was made.
        """
        if not 0 < lifetime <= self._lifetime_max:
            raise ConfigError(
                f"a token may live {self._lifetime_max // SECOND} s at most, not {lifetime // SECOND} s:"
                " native.token_life_max of the nodes sets the limit"
            )
        issued = now // SECOND
        labels = [{"name": "name", "value": each, "prefix": True} for each in prefixes]
        labels += [{"name": "name", "value": each} for each in names]
        claims = {
            "cap": int(capabilities),
            "sel": {"include": {"labels": labels}, "exclude": {}},
            "aud": self._audience,
            "iat": issued,
            "exp": issued + -(-lifetime // SECOND),
        }
        if subject:
            claims["sub"] = subject
        token = jwt.encode(claims, self._keys[self._signing], _ALGORITHM, headers={"kid": self._signing})
        try:
            self.verify(token, now=now)
        except Unauthenticated as error:
            raise ConfigError(f"no node would take this token: {error}") from error
        return token

    def verify(self, token: str, *, now: WallTime) -> Principal:
        """The principal that `token` describes.

        Raises:
            Unauthenticated: `token` is not a valid token of this cluster at `now`. The message has no part of
                the token.
        """
        if len(token) > TOKEN_BYTES_MAX:
            raise Unauthenticated(
                f"the token has {len(token)} characters, above the limit of {TOKEN_BYTES_MAX}"
            )
        claims = self._decode(token)
        if claims.iat * SECOND > now + LEEWAY:
            raise Unauthenticated("the token is issued in the future: compare the clocks")
        if claims.nbf * SECOND > now + LEEWAY:
            raise Unauthenticated(
                f"the token is not valid yet: its nbf is {claims.nbf}, and the node's clock {now // SECOND} s"
            )
        if claims.exp * SECOND + LEEWAY <= now:
            raise Unauthenticated("the token has expired: get a newer one")
        if (claims.exp - claims.iat) * SECOND > self._lifetime_max:
            raise Unauthenticated(
                f"the token lives longer than the {self._lifetime_max // SECOND} s of the node's"
                " native.token_life_max"
            )
        return _principal(claims)

    def _decode(self, token: str) -> Claims:
        """The claims of a token that one of our keys has signed; the times are not checked here."""
        try:
            named = jwt.get_unverified_header(token).get("kid")
            candidates = [self._keys[named]] if named in self._keys else list(self._keys.values())
        except (jwt.PyJWTError, TypeError, ValueError, RecursionError):
            raise Unauthenticated("this is not a token") from None
        for key in candidates:
            try:
                found = jwt.decode(token, key, [_ALGORITHM], audience=self._audience, options=_OPTIONS)
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, TypeError, ValueError, RecursionError):
                raise Unauthenticated("the token is malformed, or of another cluster") from None
            return _claims(found)
        raise Unauthenticated("the token is signed by none of this cluster's keys")


_OPTIONS: Final[Any] = {
    "require": ["exp", "iat", "aud"],
    "verify_exp": False,  # We compare with the port's wall clock, PyJWT would read the process's own.
    "verify_iat": False,
    "verify_nbf": False,
}


def key_id(key: bytes) -> str:
    """A short public name for a key, by which rotated keys are told apart. It reveals nothing of the key."""
    return hmac.new(key, b"broadsheet token key id", hashlib.sha256).hexdigest()[:16]


def parse_keys(text: str) -> list[bytes]:
    """The token keys as a file holds them: base64, separated by white space or commas (Gazette's format).

    Raises:
        ConfigError: one is not base64.
    """
    keys = []
    for number, word in enumerate(text.replace(",", " ").split()):
        try:
            keys.append(base64.b64decode(word, validate=True))
        except (binascii.Error, ValueError) as error:
            raise ConfigError(f"token key {number} is not base64") from error
    return keys


def _claims(found: Mapping[str, Any]) -> Claims:
    try:
        claims = msgspec.convert(found, Claims)
        msgspec.json.encode(claims)  # JSON can name half of a UTF-16 pair, which is no text.
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Unauthenticated(f"the token's claims are malformed: {error}") from None
    return claims


def _principal(claims: Claims) -> Principal:
    if len(claims.sel.include.labels) + len(claims.sel.exclude.labels) > GRANT_COUNT_MAX:
        raise Unauthenticated(f"the token's selector has more than {GRANT_COUNT_MAX} labels")
    names, prefixes = _grants(claims.sel.include.labels)
    excluded_names, excluded_prefixes = _grants(claims.sel.exclude.labels)
    if not claims.sel.include.labels:
        prefixes = ("",)
    return Principal(
        capabilities=Capability(claims.cap),
        names=names,
        prefixes=prefixes,
        expires=WallTime(claims.exp * SECOND + LEEWAY),
        excluded_names=excluded_names,
        excluded_prefixes=excluded_prefixes,
        account=_account(claims),
    )


def _account(claims: Claims) -> str:
    """A short name of the token's subject and grant, the same for each token that renews it."""
    what = msgspec.json.encode((claims.sub, claims.cap, claims.sel))
    return hashlib.sha256(what).hexdigest()[:16]


def _grants(labels: Sequence[Label]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names and the prefixes that the `labels` of a token's selector select.

    A label that we cannot judge refuses the token, never widens it.
    """
    names, prefixes = [], []
    for label in labels:
        if label.name == "prefix":
            prefixes.append(label.value)
        elif label.name != "name":
            raise Unauthenticated(
                f"the token selects by label {label.name!r}: only name and prefix are understood"
            )
        elif label.prefix or not label.value:  # An empty value means any (access.5).
            prefixes.append(label.value)
        else:
            names.append(label.value)
    return tuple(names), tuple(prefixes)
