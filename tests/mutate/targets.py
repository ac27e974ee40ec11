"""Targets: which modules are changed, and who may notice: tests of their folder, then a short simulation."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

SLOW = (
    "test_kill.py",
    "test_power_cut.py",
    "test_processes.py",
    "test_replace_command.py",
    "test_mixed_deaths.py",
)
"""Files that start processes by the dozen: minutes for each change, and others tell sooner."""


EVERYWHERE = ("tests/base/test_structs.py",)
"""Tests that look at all modules, and may notice a change in what happens while any of them is loaded."""


@dataclass(frozen=True)
class Target:
    """Modules that are judged alike."""

    name: str
    modules: tuple[str, ...]
    """Globs below `src/broadsheet`."""
    tests: tuple[str, ...]
    """Files and folders of tests; those of their tests that run the changed line are asked."""
    simulations: tuple[tuple[str, int, int], ...] = ()
    """Workload, tier and how many seeds; run where the tests say nothing."""

    def paths(self) -> list[str]:
        """The modules, below the root of the repository."""
        found = [path for glob in self.modules for path in (ROOT / "src/broadsheet").glob(glob)]
        return sorted(
            str(path.relative_to(ROOT)) for path in dict.fromkeys(found) if path.name != "__init__.py"
        )


WIRE = (
    "frame connection_machine dialling_machine listening_machine stream inbound server_connection client"
    " columns run routed admission account turn_shares"
)

TARGETS = (
    Target(
        "metastore",
        ("control/core/*.py", "control/file.py", "control/majority.py", "control/document_chunks.py"),
        ("tests/control/core", "tests/control/test_file.py", "tests/control"),
        (("metastore", 1, 20), ("metastore", 2, 4)),
    ),
    Target("log", ("wal/*.py",), ("tests/wal",), (("keyspace", 2, 5), ("append", 2, 3))),
    Target(
        "keyspace",
        ("keyspace/core/*.py", "keyspace/local/*.py"),
        ("tests/keyspace",),
        (("keyspace", 2, 10),),
    ),
    Target(
        "journals",
        ("journal/core/*.py", "journal/spool_file.py", "journal/producer_indexing.py", "journal/replica.py"),
        ("tests/journal/core", "tests/journal"),
        (("append", 1, 20), ("append", 2, 4)),
    ),
    Target(
        "wire",
        tuple(f"wire/{name}.py" for name in WIRE.split()),
        ("tests/wire",),
        (("wire", 2, 8),),
    ),
    Target("messages", ("message/*.py",), ("tests/message",)),
    Target(
        "sink",
        ("sink/core/*.py", "spark/commits.py", "spark/sink.py", "spark/offsets.py"),
        (
            "tests/sink",
            "tests/spark/test_commits.py",
            "tests/spark/test_offsets.py",
            "tests/spark/test_options.py",
            "tests/spark/test_checkpoint.py",
        ),
        (("pipeline", 1, 20),),
    ),
    Target(
        "runtime", ("runtime/*.py", "base/*.py"), ("tests/base", "tests/runtime", "tests/wal/test_log.py")
    ),
)
