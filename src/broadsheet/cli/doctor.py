"""Doctor: `broadsheet doctor`, which finds what is wrong on this machine and names the remedies."""

from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from broadsheet.cli.checks import CHECKS
from broadsheet.cli.findings import Finding, Verdict
from broadsheet.cli.fragment_check import fragments_check
from broadsheet.node import NodeConfig

app = typer.Typer(add_completion=False)

SIGNS: Final = {Verdict.GOOD: "ok  ", Verdict.WARNING: "warn", Verdict.BAD: "BAD "}


@app.command()
def doctor(
    *,
    data_dir: Annotated[
        Path | None, typer.Option(help="The data directory of `up` or `serve`. Default: `.broadsheet`.")
    ] = None,
    fragments: Annotated[
        bool, typer.Option("--fragments", help="Also verify every stored fragment, which may take long.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print an object instead of lines.")] = False,
) -> None:
    """Find problems that would keep a node from starting or from keeping its promises."""
    root = Path(NodeConfig().data_dir) if data_dir is None else data_dir
    found = [check(root) for check in (*CHECKS, *((fragments_check,) if fragments else ()))]
    if data_dir is not None and not data_dir.exists():
        found.append(Finding("named directory", Verdict.BAD, f"there is no {data_dir}", "name another"))
    if json:
        print(msgspec.json.encode({"findings": found}).decode())
    else:
        for each in found:
            remedy = f"  -> {each.remedy}" if each.remedy and each.verdict is not Verdict.GOOD else ""
            print(f"{SIGNS[each.verdict]} {each.check}: {each.text}{remedy}")
    if any(each.verdict is Verdict.BAD for each in found):
        raise typer.Exit(1)
