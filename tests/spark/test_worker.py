"""What Spark's collections of garbage walk in a worker."""

import subprocess
import sys

IMPORTS = """
import gc
from broadsheet.spark.worker import freeze_imported
counts = [gc.get_freeze_count()]
for module in ("gc", "sqlite3", "gc"):
    __import__(module)
    kept = [[] for _ in range(1000)]
    freeze_imported()
    counts.append(gc.get_freeze_count())
print(*counts)
"""


def test_what_a_task_imports_after_it_began_is_frozen_before_the_next_one() -> None:
    """Spark walked all of pandas after each task: a third of the CPU of a micro-batch in the workers."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)

    begin, first, second, third = map(int, done.stdout.split())
    assert begin == 0
    assert first > 1000
    assert second > first
    assert third <= second
