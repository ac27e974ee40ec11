"""Bench: `broadsheet bench`, which runs one benchmark or all, each in a process of its own."""

import json
import subprocess
import sys
from typing import Annotated

import typer

from broadsheet.bench import scripts, summary
from broadsheet.errors import ConfigError

app = typer.Typer(add_completion=False)

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=PASSED_ON)
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A benchmark's name, `list` or `all`.")] = "list",
) -> None:
    """Run benchmarks, which measure ratios. Further options, such as --json, are passed to the benchmark."""
    found = scripts()
    if name == "list":
        if "--json" in context.args:
            print(json.dumps({"benchmarks": {each: summary(path) for each, path in found.items()}}))
            return
        for each, path in found.items():
            print(f"{each:<16} {summary(path)}")
        return
    if name != "all" and name not in found:
        raise ConfigError(f"there is no benchmark {name!r}: {', '.join(found) or 'none is installed'}")
    chosen = found if name == "all" else {name: found[name]}
    failed = []
    for each, path in chosen.items():
        print(f"== {each}: {summary(path)}", file=sys.stderr, flush=True)
        if subprocess.run([sys.executable, str(path), *context.args], check=False).returncode:  # noqa: S603
            failed.append(each)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)
