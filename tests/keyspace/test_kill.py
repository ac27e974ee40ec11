"""kill -9 of a process that holds a key space, at every failpoint: nothing that was answered is lost."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broadsheet.keyspace.core.transaction import Put
from tests.keyspace.real import SMALL, opened
from tests.support.failpoints import labels_of

TRANSACTIONS_MAX = 3_000
VALUE_BYTES = 4_000


async def work(directory: Path) -> None:
    """In the process that dies: transactions without end, each told once it is answered."""
    async with opened(directory, SMALL) as keyspace:
        for n in range(TRANSACTIONS_MAX):
            value = b"%d" % n
            puts = [Put("last", value), Put(f"k{n % 5}", value.ljust(VALUE_BYTES, b"."))]
            outcome = await keyspace.transact([], puts)
            os.write(1, b"%d %d\n" % (n, outcome.revision))


@pytest.mark.parametrize("label", labels_of("keyspace", least=4))
async def test_a_process_killed_at_this_point_loses_nothing(label: str, tmp_path: Path) -> None:
    """Every answered transaction is there, whole, with its revision; at most one more."""
    count = 2 if label in ("keyspace.snapshot", "keyspace.trim") else 40
    child = [sys.executable, "-m", "tests.keyspace.test_kill", str(tmp_path)]
    done = await asyncio.to_thread(
        subprocess.run,
        child,
        env={**os.environ, "BROADSHEET_FAILPOINT": f"{label}:{count}"},
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9, f"{label} was not passed {count} times"
    told = [tuple(map(int, line.split())) for line in done.stdout.decode().splitlines()]
    last, revision = told[-1]

    async with opened(tmp_path, SMALL) as keyspace:
        assert keyspace.revision in (revision, revision + 1)
        shown = keyspace.get("last")
        assert shown is not None
        assert int(shown.value) == last + (keyspace.revision - revision)
        for k in range(5):
            pair = keyspace.get(f"k{k}")
            newest = max(n for n in range(int(shown.value) + 1) if n % 5 == k)
            assert pair is not None
            assert (int(pair.value.rstrip(b".")), pair.mod_revision) == (newest, newest + 1)
        assert (await keyspace.transact([], [Put("more", b"")])).revision == keyspace.revision


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1])))
