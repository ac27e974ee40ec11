"""Token: `broadsheet token`, which makes key files and tokens. It asks no node.

A token goes to standard output, so that a shell can put it into a variable; a key is never shown. A key file
is replaced whole, and only its owner may read it. Source: access.5; ADR 0043; `docs/operations/tokens.md`.
"""

import base64
import os
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from broadsheet.access.capability import EVERYTHING, Capability
from broadsheet.access.tokens import KEY_BYTES_MIN, KEY_COUNT_MAX, Tokens, key_id, parse_keys
from broadsheet.base.time import SECOND, WallTime
from broadsheet.cli.options import AsJSON
from broadsheet.config import duration_of, load
from broadsheet.errors import ConfigError
from broadsheet.node import Settings
from broadsheet.runtime.data_dir import sync_directory

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Tokens, and the keys that sign them.")

ALL: Final = "all"
KEYS_FILE_MODE: Final = 0o600
CLUSTER_WIDE: Final = Capability.ADMIN | Capability.REPLICATE


@app.command()
def mint(
    *,
    capabilities: Annotated[
        str,
        typer.Option(
            help="Of list, apply (create, alter, trim, delete, accept losses), read, append, replicate, "
            "admin; or all: `list,read`."
        ),
    ],
    prefix: Annotated[
        list[str] | None, typer.Option(help="For journals whose names begin with this; may be repeated.")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="For this journal; may be repeated. Without --prefix and --name: for every journal."
        ),
    ] = None,
    life: Annotated[
        str, typer.Option("--for", help="How long, as in `30d`; at most `native.token_life_max`.")
    ] = "1h",
    subject: Annotated[
        str, typer.Option(help="The bearer, to whose share of the node its requests count.")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(help="The node's TOML file, as `.broadsheet/n1.toml` of `up`.", dir_okay=False),
    ] = None,
    keys_file: Annotated[
        str | None, typer.Option(help="The key file; by default `native.keys_file` of the configuration.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The cluster; by default `node.cluster` of the configuration.")
    ] = None,
    json: AsJSON = False,
) -> None:
    """Print a new token, signed by the first key of the key file."""
    granted = _capabilities(capabilities)
    if granted & CLUSTER_WIDE and (prefix or name):
        raise typer.BadParameter("admin and replicate concern every name: leave out --prefix and --name")
    lifetime, now = duration_of(life, "--for"), WallTime(time.time_ns())
    flags = {"native.keys_file": keys_file, "node.cluster": cluster}
    settings = load(Settings, path=config, environment=os.environ, flags=flags).config
    if not settings.native.keys_file:
        raise ConfigError(
            "there is no key file: name it with --keys-file, or with --config the node's TOML file, which"
            " names it as native.keys_file; `broadsheet token keys FILE` makes one"
        )
    token = Tokens(
        _read(Path(settings.native.keys_file)),
        audience=settings.node.cluster,
        lifetime_max=settings.native.token_life_max,
    ).sign(granted, prefixes=prefix or (), names=name or (), subject=subject, now=now, lifetime=lifetime)
    if not json:
        print(token)
        return
    told = {
        "token": token,
        "expires": datetime.fromtimestamp(-(-(now + lifetime) // SECOND), UTC).isoformat(),
        "capabilities": [each.name.lower() for each in granted if each.name],
        "prefixes": prefix or ([] if name else [""]),
        "names": name or [],
    }
    print(msgspec.json.encode(told).decode())


@app.command()
def keys(
    file: Annotated[Path, typer.Argument(help="The key file.", dir_okay=False)],
    *,
    rotate: Annotated[
        bool,
        typer.Option("--rotate", help="Put a new key in front: it signs, and the older ones still verify."),
    ] = False,
    keep: Annotated[
        int | None, typer.Option(min=1, max=KEY_COUNT_MAX, help="Remove all keys behind the first so many.")
    ] = None,
    json: AsJSON = False,
) -> None:
    """Make a key file, or show the ids of its keys; no key is shown.

    Nodes read the file when they start: after a change start them again, before a token of a new key is used.
    """
    is_new = not file.exists()
    before = [] if is_new else _read(file)
    after = [secrets.token_bytes(KEY_BYTES_MIN), *before] if rotate or is_new else before
    after = after[:keep]
    if len(after) > KEY_COUNT_MAX:
        raise typer.BadParameter(
            f"{file} has {len(before)} keys, the most: --keep 1 removes all but the newest"
        )
    if after != before:
        _write(file, after, is_new=is_new)
    ids = [key_id(each) for each in after]
    text = "\n".join(
        f"{each} {'verifies' if number else 'signs and verifies'}" for number, each in enumerate(ids)
    )
    print(msgspec.json.encode({"file": str(file), "keys": ids}).decode() if json else text)


def _capabilities(text: str) -> Capability:
    if text == ALL:
        return EVERYTHING
    known = {each.name.lower(): each for each in EVERYTHING if each.name}
    granted = Capability.NONE
    for word in text.split(","):
        if word.strip() not in known:
            raise typer.BadParameter(f"capability {word.strip()!r} is none of {', '.join(known)}, {ALL}")
        granted |= known[word.strip()]
    return granted


def _read(file: Path) -> list[bytes]:
    """The keys of a file.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        found = parse_keys(file.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the key file {file}: {error}; `broadsheet token keys` makes one"
        ) from error
    if not found:
        raise ConfigError(
            f"the key file {file} is empty: remove it, and `broadsheet token keys` makes a new one"
        )
    return found


def _write(file: Path, keys: Sequence[bytes], *, is_new: bool) -> None:
    """Write the file durably, whole or not at all, for its owner only.

    Raises:
        ConfigError: a file came there meanwhile, so nothing was written.
    """
    content = "".join(base64.b64encode(key).decode() + "\n" for key in keys)
    new = file.with_name(f"{file.name}.{secrets.token_hex(8)}.new")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEYS_FILE_MODE), "w") as opened:
            if not is_new:
                os.fchmod(opened.fileno(), stat.S_IMODE(file.stat().st_mode))
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        if is_new:
            os.link(new, file)  # Unlike a rename it replaces nothing.
        else:
            new.replace(file)
    except FileExistsError:
        raise ConfigError(f"{file} was made by somebody else meanwhile: look at it, and repeat") from None
    finally:
        with suppress(FileNotFoundError):
            new.unlink()
    sync_directory(file.parent)
