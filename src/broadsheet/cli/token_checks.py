"""Token checks: the checks of `broadsheet doctor` that look at keys and tokens. They never show a secret."""

import base64
import binascii
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from broadsheet.access.capability import Capability
from broadsheet.access.tokens import Tokens, parse_keys
from broadsheet.base.time import WallTime
from broadsheet.cli.calling import TOKEN_VARIABLE
from broadsheet.cli.findings import Check, Finding, Verdict
from broadsheet.cli.node_faults import faults_of_nodes, settings_of_node
from broadsheet.errors import ConfigError, Unauthenticated
from broadsheet.node import Settings

TOKEN_BYTES_MAX: Final = 64 << 10


class _Claims(msgspec.Struct):
    exp: float | None = None


def secrets_check(root: Path) -> Finding:
    """The files of keys and tokens that settings name can be read and used."""
    good = Finding("keys", Verdict.GOOD, "those that settings name can be used")
    remedy = "put the file there (docs/operations/tokens.md), or change the setting"
    return faults_of_nodes(good, root, _secret_fault, remedy)


def token_check(root: Path) -> Finding:
    """The token in the environment, if there is one, is one that nodes take, as far as their keys tell."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        return Finding("token", Verdict.GOOD, f"{TOKEN_VARIABLE} is not set")
    remedy = f"mint another one (`broadsheet token mint`), or unset {TOKEN_VARIABLE}"
    if fault := _form_fault(token):
        return Finding("token", Verdict.BAD, f"what {TOKEN_VARIABLE} holds {fault}", remedy)
    good = Finding("token", Verdict.GOOD, "it has not expired, and no node whose keys are known refuses it")
    return faults_of_nodes(good, root, lambda path, node: _refusal_of(token, path, node), remedy)


TOKEN_CHECKS: Final[tuple[Check, ...]] = (secrets_check, token_check)


def _secret_fault(path: Path, node: str) -> str:
    settings = settings_of_node(path, node)
    faults = []
    for name, place in (
        ("native.keys_file", settings.native.keys_file),
        ("metastore.token_file", settings.metastore.token_file),
    ):
        if not place:
            continue
        try:
            text = Path(place).read_text(encoding="ascii")
            if name == "native.keys_file" and not parse_keys(text):
                faults.append(f"{name} {place} holds no key")
            elif not text.strip():
                faults.append(f"{name} {place} is empty")
            elif Path(place).stat().st_mode & 0o077:
                faults.append(f"{name} {place} can be read by others: chmod 600 {place}")
            elif name == "metastore.token_file" and (fault := _peer_fault(text.strip(), settings)):
                faults.append(f"{name} {place} {fault}")
        except (OSError, ValueError, ConfigError) as error:
            faults.append(f"{name} {place} cannot be used: {error}")
    return "; ".join(faults)


def _peer_fault(token: str, settings: Settings) -> str:
    """What keeps a node's token from its peers; they have the keys that the node has."""
    if fault := _form_fault(token):
        return fault
    if refusal := _refusal(token, settings, needed=Capability.REPLICATE):
        return f"would be refused by its peers: {refusal}"
    return ""


def _form_fault(token: str) -> str:
    """What is wrong with a token that can be seen without a key; empty if nothing is."""
    try:
        _, body, _ = token[:TOKEN_BYTES_MAX].split(".")
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Claims)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        return "is no token"
    if claims.exp is not None and claims.exp <= time.time():
        return f"expired {time.time() - claims.exp:.0f} s ago"
    return ""


def _refusal_of(token: str, path: Path, node: str) -> str:
    settings = settings_of_node(path, node)
    refusal = _refusal(token, settings)
    return f"node {settings.node.id} would refuse the one in {TOKEN_VARIABLE}: {refusal}" if refusal else ""


def _refusal(token: str, settings: Settings, *, needed: Capability = Capability.NONE) -> str:
    """Why a node with these settings would refuse `token`; empty if its keys cannot be read here."""
    place = settings.native.keys_file
    if not place:
        return ""  # It asks for none.
    try:
        keys, life = parse_keys(Path(place).read_text(encoding="ascii")), settings.native.token_life_max
        tokens = Tokens(keys, audience=settings.node.cluster, lifetime_max=life)
    except (OSError, ValueError, ConfigError):
        return ""  # `secrets_check` says so.
    try:
        principal = tokens.verify(token, now=WallTime(time.time_ns()))
    except Unauthenticated as error:
        return str(error)
    if needed not in principal.capabilities:
        return f"it lacks the capability {needed.name}"
    return ""
