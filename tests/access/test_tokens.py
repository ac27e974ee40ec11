"""Tokens say who may do what, and nothing else makes one."""

import base64
import hashlib
import hmac
import json

import jwt
import pytest

from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.access.tokens import Tokens, key_id, parse_keys
from broadsheet.base.time import SECOND, Duration, WallTime
from broadsheet.errors import ConfigError, Unauthenticated

KEY, OTHER = b"k" * 32, b"o" * 32
NOW = WallTime(1_800_000_000 * SECOND)
HOUR = Duration(3600 * SECOND)
LATER = NOW // SECOND + 60
BY_NAME = {"name": "name", "value": "a"}


def tokens(*keys: bytes, audience: str = "c1") -> Tokens:
    return Tokens(keys or (KEY,), audience=audience)


def at(seconds: int) -> WallTime:
    return WallTime(NOW + seconds * SECOND)


def claims(**changes: object) -> dict[str, object]:
    whole = {"cap": 8, "aud": "c1", "iat": NOW // SECOND, "exp": NOW // SECOND + 60}
    return {key: value for key, value in {**whole, **changes}.items() if value is not None}


def part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def nested(opening: bytes) -> str:
    return part(opening * 4000) if opening == b"[" else part(b'{"a":' * 500)


def signed_part(content: bytes) -> str:
    """A token with a right signature over `content`."""
    head = f"{part(json.dumps({'alg': 'HS256', 'typ': 'JWT'}).encode())}.{part(content)}"
    return f"{head}.{part(hmac.new(KEY, head.encode(), hashlib.sha256).digest())}"


def including(*labels: dict[str, str]) -> dict[str, object]:
    return {"include": {"labels": labels}}


def test_a_token_carries_its_capabilities_and_prefixes() -> None:
    """What was signed comes back, and no more."""
    token = tokens().sign(
        Capability.READ | Capability.LIST, prefixes=["logs/"], names=["a/b"], now=NOW, lifetime=HOUR
    )
    principal = tokens().verify(token, now=NOW)

    assert principal.capabilities == Capability.READ | Capability.LIST
    assert [principal.covers(name) for name in ("logs/x", "a/b", "a/bc", "log", "logs")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_token_without_names_covers_everything() -> None:
    """An empty selector matches all (access.5)."""
    principal = tokens().verify(tokens().sign(EVERYTHING, now=NOW, lifetime=HOUR), now=NOW)

    assert principal.covers("anything")


def test_excluded_names_are_taken_out_again() -> None:
    """Exclusion wins over inclusion."""
    sel = {
        "include": {"labels": [{"name": "prefix", "value": "a/"}]},
        "exclude": {"labels": [{"name": "name", "value": "a/secret", "prefix": True}]},
    }
    principal = tokens().verify(jwt.encode(claims(sel=sel), KEY, "HS256"), now=NOW)

    assert principal.covers("a/x")
    assert not principal.covers("a/secret/x")


def test_a_rotated_key_still_verifies_and_the_first_one_signs() -> None:
    """Keys rotate by adding in front and removing at the end."""
    old = tokens(OTHER).sign(Capability.READ, now=NOW, lifetime=HOUR)
    both = tokens(KEY, OTHER)
    new = both.sign(Capability.READ, now=NOW, lifetime=HOUR)

    assert both.verify(old, now=NOW).capabilities
    assert tokens(KEY).verify(new, now=NOW).capabilities
    with pytest.raises(Unauthenticated):
        tokens(KEY).verify(old, now=NOW)


@pytest.mark.parametrize(
    ("name", "token", "when"),
    [
        ("expired", jwt.encode(claims(), KEY, "HS256"), 66),
        ("from the future", jwt.encode(claims(iat=LATER, exp=LATER + 30), KEY, "HS256"), 0),
        ("too long a life", jwt.encode(claims(exp=NOW // SECOND + 3601), KEY, "HS256"), 0),
        ("another cluster", jwt.encode(claims(aud="c2"), KEY, "HS256"), 0),
        ("no audience", jwt.encode(claims(aud=None), KEY, "HS256"), 0),
        ("no expiry", jwt.encode(claims(exp=None), KEY, "HS256"), 0),
        ("no issue time", jwt.encode(claims(iat=None), KEY, "HS256"), 0),
        ("no capabilities", jwt.encode(claims(cap=None), KEY, "HS256"), 0),
        ("capabilities of another type", jwt.encode(claims(cap="8"), KEY, "HS256"), 0),
        ("another key", jwt.encode(claims(), OTHER, "HS256"), 0),
        ("another algorithm", jwt.encode(claims(), KEY * 2, "HS512"), 0),
        ("a label we cannot judge", jwt.encode(claims(sel=including({"name": "region"})), KEY, "HS256"), 0),
        ("too many labels", jwt.encode(claims(sel=including(*[BY_NAME] * 65)), KEY, "HS256"), 0),
        ("a selector of another type", jwt.encode(claims(sel=[1]), KEY, "HS256"), 0),
        ("not valid yet", jwt.encode(claims(nbf=NOW // SECOND + 30), KEY, "HS256"), 0),
        ("nbf of another type", jwt.encode({**claims(), "nbf": "1"}, KEY, "HS256"), 0),
        ("a misspelt include", jwt.encode(claims(sel={"includes": {"labels": [BY_NAME]}}), KEY, "HS256"), 0),
        ("misspelt labels", jwt.encode(claims(sel={"include": {"labelz": [BY_NAME]}}), KEY, "HS256"), 0),
        ("an unknown field", jwt.encode(claims(sel=including({**BY_NAME, "regex": "."})), KEY, "HS256"), 0),
        ("no selector but null", jwt.encode({**claims(), "sel": None}, KEY, "HS256"), 0),
        ("a negative capability", jwt.encode(claims(cap=-1), KEY, "HS256"), 0),
        ("a capability of 33 bits", jwt.encode(claims(cap=1 << 32 | 8), KEY, "HS256"), 0),
        ("a negative issue time", jwt.encode(claims(iat=-(10**18)), KEY, "HS256"), 0),
        ("an expiry of 80 bits", jwt.encode(claims(exp=1 << 80), KEY, "HS256"), 0),
        ("a broken expiry", jwt.encode({**claims(), "exp": NOW / SECOND + 60.5}, KEY, "HS256"), 0),
        ("a subject that is no text", jwt.encode(claims(sub="\ud800"), KEY, "HS256"), 0),
        ("a name that is no text", jwt.encode(claims(sel=including({**BY_NAME, "value": "\ud800"})), KEY), 0),
        ("a header that nests", ".".join([nested(b"["), nested(b"{"), "x"]), 0),
        ("a payload that nests", signed_part(b"[" * 4000), 0),
        ("a number of 5,000 digits", part(b'{"alg":"HS256","kid":' + b"9" * 5000 + b"}") + ".e30.x", 0),
        ("a critical extension", jwt.encode(claims(), KEY, "HS256", headers={"crit": ["x"], "x": 1}), 0),
        ("no token", "x", 0),
        ("empty parts", "..", 0),
        ("too long", "a" * 9000, 0),
        ("not ASCII", "é.é.é", 0),
    ],
)  # fmt: skip
def test_a_token_that_is_not_right_is_refused(name: str, token: str, when: int) -> None:
    """Every way in which a token can be wrong, and none of it is repeated in the message."""
    with pytest.raises(Unauthenticated) as caught:
        tokens().verify(token, now=at(when))

    assert token not in str(caught.value) or len(token) < 3, name


def test_a_token_is_valid_from_its_nbf_on() -> None:
    """A token for tomorrow's job must not work today; five seconds of clock difference are forgiven."""
    token = jwt.encode(claims(nbf=NOW // SECOND + 30), KEY, "HS256")

    with pytest.raises(Unauthenticated, match="not valid yet"):
        tokens().verify(token, now=at(24))
    assert tokens().verify(token, now=at(25)).capabilities


def unsigned(header: dict[str, object]) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in (header, claims())
    ]
    return ".".join([*parts, ""])


@pytest.mark.parametrize("header", [{"alg": "none"}, {"alg": "None"}, {"alg": "HS256"}, {"alg": "RS256"}, {}])
def test_an_unsigned_token_is_refused_whatever_it_says(header: dict[str, object]) -> None:
    """The algorithm is pinned here and never read from a token."""
    with pytest.raises(Unauthenticated):
        tokens().verify(unsigned(header), now=NOW)


def test_a_key_of_less_than_256_bits_is_refused() -> None:
    """A guessable key is none."""
    with pytest.raises(ConfigError, match="16 bytes"):
        tokens(b"k" * 16)
    with pytest.raises(ConfigError):
        Tokens([], audience="c1")


def test_a_life_above_the_limit_is_not_signed() -> None:
    """A token cannot be withdrawn, so it must end soon."""
    with pytest.raises(ConfigError, match="3600 s"):
        tokens().sign(Capability.READ, now=NOW, lifetime=Duration(HOUR + SECOND))


def test_keys_are_read_as_base64_separated_by_space_or_comma() -> None:
    """Gazette's format, so that a key file serves both."""
    text = f"{base64.b64encode(KEY).decode()},\n {base64.b64encode(OTHER).decode()}\n"

    assert parse_keys(text) == [KEY, OTHER]
    with pytest.raises(ConfigError):
        parse_keys("not base64!")
    assert key_id(KEY) != key_id(OTHER)
