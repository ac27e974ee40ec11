"""Prints the table of abuse: `python -m tests.doors.abuse [--seconds 4] [--source CHECKOUT] [--only a,b]`."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.doors.abuse.corners import SHAPES
from tests.doors.abuse.raw import Raw
from tests.doors.abuse.site import Site, Target

OTHERS = 5000
"""Journals that the attackers may not see."""


def prepared(site: Site, *, others: int = OTHERS) -> None:
    """Have the journals that the attacks are about."""
    site.create("other/x", "mine/a", "mine/full", *[f"mine/s{number}" for number in range(6)])
    site.create_many("many/j", others)
    writer = Raw(site.target.native, site.target.token)
    for _ in range(20):
        writer.call("journal.append", {"journal": "mine/full"}, bytes(100_000))
    writer.close()


def main() -> None:
    """One attack, or the table of all."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--shape", default="")
    arguments.add_argument("--target", default="")
    arguments.add_argument("--seconds", type=float, default=4.0)
    arguments.add_argument("--source", default="")
    arguments.add_argument("--only", default="")
    given = arguments.parse_args()
    if given.shape:
        SHAPES[given.shape](Target(*json.loads(given.target)), given.seconds)
        return
    names = given.only.split(",") if given.only else list(SHAPES)
    print("| client behaviour | health p50 | p99 | max ms | failed | appends/s | stall ms | rss MiB |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in ["nothing", *names]:
        with tempfile.TemporaryDirectory() as root, Site(Path(root), source=given.source) as site:
            prepared(site)
            seen = site.measure(
                (lambda seconds: __import__("time").sleep(seconds))
                if name == "nothing"
                else site.attack(name),
                given.seconds,
            )
            row = [
                name,
                f"{seen.health_ms_p50:.1f}",
                f"{seen.health_ms_p99:.0f}",
                f"{seen.health_ms_max:.0f}",
            ]
            row += [str(seen.failures), f"{seen.appends_per_second:.0f}", f"{seen.stall_ms_max:.0f}"]
            row += [f"{seen.rss_mib_max:.0f}" + ("" if site.is_alive else " (died)")]
            print("| " + " | ".join(row) + " |", flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
