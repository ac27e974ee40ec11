"""The doctor tells of a token or a key that some node would refuse, before a call is refused."""

import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import jwt
import pytest

from broadsheet.cli import token_checks
from broadsheet.cli.findings import Verdict
from tests.runtime.test_data_dir import take

KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a node that was started once, by `serve`."""
    take(tmp_path / "n1").release()
    return tmp_path / "n1"


@pytest.fixture
def keys(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its key file."""
    file = root.parent / "keys"
    file.write_bytes(b64encode(KEY))
    file.chmod(0o600)
    monkeypatch.setenv("BROADSHEET_NATIVE__KEYS_FILE", str(file))
    return file


def token(key: bytes = KEY, **claims: object) -> str:
    now = int(time.time())
    usual = {"aud": "local", "iat": now, "exp": now + 600, "sub": "x", "cap": 2}
    return jwt.encode({**usual, **claims}, key, algorithm="HS256")


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (None, 0o600, "No such file"),
        ("", 0o600, "holds no key"),
        ("not base64!", 0o600, "is not base64"),
        (b64encode(b"k" * 32).decode(), 0o644, "can be read by others: chmod 600"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, mode: int, said: str
) -> None:
    """A node would not start with it, or everybody on the machine could sign."""
    file = root.parent / "keys"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    monkeypatch.setenv("BROADSHEET_NATIVE__KEYS_FILE", str(file))

    finding = token_checks.secrets_check(root)

    assert (finding.verdict, said in finding.text) == (Verdict.BAD, True), finding.text


def test_a_missing_token_for_peers_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node starts, and has no majority."""
    monkeypatch.setenv("BROADSHEET_METASTORE__TOKEN_FILE", str(root.parent / "none"))

    assert "metastore.token_file" in token_checks.secrets_check(root).text


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("rubbish", "holds is no token"),
        ("a.b.c", "holds is no token"),
        (jwt.encode({"exp": 1}, "k" * 32), "expired"),
    ],
)
def test_a_token_that_no_node_takes_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, token: str, said: str
) -> None:
    """Every command is refused, and says only that it is."""
    monkeypatch.setenv("BROADSHEET_TOKEN", token)

    finding = token_checks.token_check(root)

    assert (finding.verdict, said in finding.text) == (Verdict.BAD, True)
    assert "token mint" in finding.remedy


def test_a_token_that_the_node_takes_is_no_fault(
    root: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is any, where the keys are another user's: only the node could tell."""
    monkeypatch.setenv("BROADSHEET_TOKEN", token())
    assert token_checks.token_check(root).verdict is Verdict.GOOD
    assert token_checks.secrets_check(root).verdict is Verdict.GOOD
    keys.unlink()
    monkeypatch.setenv("BROADSHEET_TOKEN", token(OTHER))

    assert token_checks.token_check(root).verdict is Verdict.GOOD


@pytest.mark.parametrize(
    ("minted", "said"),
    [
        (lambda: token(OTHER), "signed by none of this cluster's keys"),
        (lambda: token(aud="production"), "of another cluster"),
        (
            lambda: token(iat=int(time.time()) + 90_000, exp=int(time.time()) + 90_060),
            "issued in the future",
        ),
        (lambda: token(exp=int(time.time()) + 90_000), "lives longer than the 3600 s"),
    ],
)
@pytest.mark.usefixtures("keys")
def test_a_token_that_the_node_would_refuse_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, minted: Callable[[], str], said: str
) -> None:
    """It looks right: another cluster's, one of before the keys were changed, or of a clock that is wrong."""
    text = minted()
    monkeypatch.setenv("BROADSHEET_TOKEN", text)

    finding = token_checks.token_check(root)

    assert (finding.verdict, said in finding.text) == (Verdict.BAD, True), finding.text
    assert "node n1 would refuse the one in BROADSHEET_TOKEN" in finding.text
    assert text not in finding.text


@pytest.mark.parametrize(
    ("minted", "said"),
    [
        (lambda: "rubbish", "is no token"),
        (lambda: token(exp=1, iat=0), "expired"),
        (lambda: token(OTHER, cap=1 << 17), "would be refused by its peers: the token is signed by none"),
        (lambda: token(cap=2), "it lacks the capability REPLICATE"),
    ],
)
@pytest.mark.usefixtures("keys")
def test_a_token_that_peers_refuse_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, minted: Callable[[], str], said: str
) -> None:
    """The node starts, and has no majority: only its peers log why."""
    file = root.parent / "token"
    file.write_text(f"{minted()}\n")
    file.chmod(0o600)
    monkeypatch.setenv("BROADSHEET_METASTORE__TOKEN_FILE", str(file))

    finding = token_checks.secrets_check(root)

    assert (finding.verdict, f"metastore.token_file {file} " in finding.text) == (Verdict.BAD, True)
    assert said in finding.text, finding.text
