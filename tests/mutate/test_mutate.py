"""The tool draws the same sample for a seed, changes one place, and leaves alone what only states."""

import ast
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.mutate.__main__ import equivalents, essence
from tests.mutate.covering import Covering, statement
from tests.mutate.replacing import MustBeLoadedError, replace
from tests.mutate.sites import mutated, sample, sites
from tests.mutate.targets import ROOT, TARGETS, Target
from tests.mutate.work import Worker, ask, folders, measure, simulations

CODE = '''"""A module."""
from typing import Final

LIMIT: Final = 10
GAP_BYTES = 16 << 10
Either = int | str


class Thing(Struct, gc=False):
    def check(self) -> None:
        assert self.a < self.b, "never"

    def add(self, x: int | None = None, *, sure: bool = False) -> bool:
        """Add."""
        assert x != 3
        if x is None:
            return sure
        self.logger.warning("thing.added", x=1)
        self.total = self.total + x
        self.touch()
        return self.total > LIMIT
'''


@pytest.fixture
def changes(tmp_path: Path) -> list[str]:
    """The module with each change that there is."""
    (tmp_path / "thing.py").write_text(CODE)
    return [mutated(CODE, item) for item in sites(tmp_path, "thing.py")]


def test_every_module_and_every_test_that_a_target_names_is_there() -> None:
    """Half of the wire was judged no more after its modules had got other names, and nobody was told."""
    for target in TARGETS:
        for glob in target.modules:
            assert list((ROOT / "src/broadsheet").glob(glob)), f"{target.name}: no module {glob}"
        for name in target.tests:
            assert (ROOT / name).exists(), f"{target.name}: no tests {name}"


def test_each_change_is_python_and_another_one(changes: list[str]) -> None:
    """What does not parse is noticed by anybody."""
    for changed in changes:
        ast.parse(changed)

    assert CODE not in changes
    assert len(set(changes)) == len(changes)


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("self.touch()", "pass"),
        ("self.total = self.total + x", "pass"),
        ("self.total = self.total + x", "self.total = self.total - x"),
        ("return sure", "pass"),
        ("if x is None:", "if x is not None:"),
        ("return self.total > LIMIT", "return self.total >= LIMIT"),
        ("sure: bool = False", "sure: bool = True"),
    ],
)
def test_what_a_tired_engineer_might_write_is_among_them(line: str, becomes: str, changes: list[str]) -> None:
    """A guard that is left out, a boundary that is off by one, a condition turned round."""
    assert CODE.replace(line, becomes) in changes


STAYS = (
    "16 << 10",
    "Either = int | str",
    "self.a < self.b",
    "assert x != 3",
    "int | None",
    "= 10",
    "gc=False",
)


def test_what_only_states_is_left_alone(changes: list[str]) -> None:
    """A weaker assertion, another limit and a missing line of the log would survive, and teach nothing."""
    for changed in changes:
        for stays in (*STAYS, '"thing.added", x=1'):
            assert stays in changed


def test_a_seed_draws_one_change_a_place_and_always_the_same(tmp_path: Path) -> None:
    """A run is resumed, and its share is told with its seed."""
    (tmp_path / "thing.py").write_text(CODE)
    items = sites(tmp_path, "thing.py")
    drawn = sample(items, 5, Random(1))

    assert [item.job_id for item in drawn] == [
        item.job_id for item in sample(list(reversed(items)), 5, Random(1))
    ]
    assert len({item.mutations[0].start_pos for item in drawn}) == 5
    assert len(sample(items, 1000, Random(1))) < len(items)


def test_every_target_names_modules_and_tests_that_exist() -> None:
    """A renamed folder must not leave the tool with nothing to do."""
    for target in TARGETS:
        assert target.paths(), target.name
        for test in target.tests:
            assert (ROOT / test).exists(), test
        assert all("simulator" in words for words in simulations(target))
    assert "tests/control" in folders(TARGETS)
    assert "tests/control/core" not in folders(TARGETS)


def test_a_command_that_hangs_has_noticed_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    """A change that makes a loop endless is no survivor."""
    (tmp_path / "src").mkdir()

    assert not ask(("-c", "import time; time.sleep(60)"), tmp_path, seconds_max=0.2).is_quiet
    assert ask(("-c", "0"), tmp_path, seconds_max=60).is_quiet
    assert not ask(("-c", "1 / 0"), tmp_path, seconds_max=60).is_quiet


FUNCTIONS = """
def outer(x):
    def inner(y):
        return y + 1
    return inner(x)

class Thing:
    size = 1
    def ask(self, more=2):
        return self.size + more
"""


def test_a_changed_function_keeps_its_identity() -> None:
    """Machines keep handlers in tables, and tests import them by name: each must run the changed code."""
    names: dict[str, Any] = {}
    exec(FUNCTIONS, names)
    outer, thing = names["outer"], names["Thing"]()
    ask_thing = thing.ask
    functions = [outer, names["Thing"].ask]

    replace(FUNCTIONS, FUNCTIONS.replace("y + 1", "y - 1"), functions)
    assert outer(5) == 4
    replace(FUNCTIONS, FUNCTIONS.replace("self.size + more", "self.size - more"), functions)
    assert ask_thing() == -1


@pytest.mark.parametrize("change", [("size = 1", "size = 2"), ("more=2", "more=3"), ("(Thing)", "(Other)")])
def test_what_happened_while_the_module_was_loaded_needs_another_load(change: tuple[str, str]) -> None:
    """A default that changes only in the code of its function would survive everybody."""
    code = FUNCTIONS.replace("class Thing", "class Thing(Thing)")

    with pytest.raises(MustBeLoadedError):
        replace(code, code.replace(*change), [])


def test_the_head_of_a_loop_is_no_part_of_its_body() -> None:
    """Tests that only enter a branch are not asked about what is in another."""
    code = (
        "for x in (\n    1,\n):\n    if x:\n        y = (\n            2\n        )\n    else:\n        z = 3"
    )

    assert statement(code, (2, 4)) == (1, 4)
    assert statement(code, (4, 7)) == (4, 5)
    assert statement(code, (6, 12)) == (5, 8)
    assert statement(code, (8, 4)) == (8, 9)
    assert statement(code, (9, 8)) == (9, 10)


MODULE = """LIMIT = 3


def is_small(x):
    return x < LIMIT


def forgotten():
    return 1


def table():
    return [7]


TABLE = table()


def is_known(x):
    return x in TABLE
"""
TESTS = """
import sys

from broadsheet import named, thing

def test_named():
    assert named.SIZE == 5

def test_small():
    assert thing.is_small(2)

def test_large():
    assert not thing.is_small(4)

def test_limit():
    assert thing.LIMIT == 3

def test_table():
    assert thing.is_known(7)

def test_hurry():
    assert "tests.mutate.measuring" not in sys.modules
"""


def test_a_change_is_judged_by_the_tests_that_run_it(tmp_path: Path) -> None:
    """A survivor is one whose line runs unnoticed, or never: a fork must see all that a plain run would."""
    tree, measured = tmp_path / "tree", tmp_path / "measured"
    module = "src/broadsheet/thing.py"
    for folder in ("src/broadsheet", "tests/thing", "tests/mutate", "tests/plugins"):
        (tree / folder).mkdir(parents=True)
    for name in ("mutate", "plugins"):
        for path in (ROOT / "tests" / name).glob("*.py"):
            (tree / "tests" / name / path.name).write_text(path.read_text())
    (tree / "tests/__init__.py").touch()
    (tree / "src/broadsheet/__init__.py").touch()
    (tree / "pytest.ini").write_text("[pytest]\npythonpath = src .\n")
    (tree / module).write_text(MODULE)
    (tree / "src/broadsheet/named.py").write_text("SIZE = 5\n")
    (tree / "tests/thing/test_thing.py").write_text(TESTS)
    target = Target("thing", ("thing.py",), ("tests/thing",))
    measure(tree, "tests/thing", measured)
    covering = Covering([measured])
    worker = Worker(tmp_path / "worker", tree, ["tests/thing"])

    def noticed(place: tuple[int, int], was: str, will: str) -> str | None:
        tests = covering.tests(target, module, MODULE, place)
        (worker.directory / module).write_text(MODULE.replace(was, will))
        found = worker.noticed(
            module,
            {each: covering.seconds[each] for each in tests},
            is_of_loading=covering.is_of_loading(module, MODULE, place),
        )
        return found and found[0].rpartition("::")[2]

    try:
        assert covering.failed == {}
        assert [each.partition("::")[2] for each in covering.tests(target, module, MODULE, (5, 13))] != []
        assert covering.tests(target, module, MODULE, (9, 4)) == []
        assert noticed((5, 13), "x < LIMIT", "x > LIMIT") in ("test_small", "test_large")
        assert noticed((5, 13), "x < LIMIT", "x <= LIMIT") is None
        assert noticed((5, 4), "return x < LIMIT", "while True: pass") in ("test_small", "test_large")
        assert noticed((1, 8), "LIMIT = 3", "LIMIT = 1") is not None
        assert noticed((1, 8), "LIMIT = 3", "LIMIT = = 1") == "loading"
        assert noticed((13, 12), "[7]", "[8]") == "test_table", "the function has run when a fork begins"
        (worker.directory / module).write_text(MODULE)
        (worker.directory / "src/broadsheet/named.py").write_text("SIZE = 6\n")
        found = worker.noticed("src/broadsheet/named.py", covering.seconds)
        assert found is not None  # A module without a function has nothing that could be replaced.
        assert found[0].endswith("::test_named")
    finally:
        worker.close()


def test_an_equivalent_change_is_known_wherever_it_stands() -> None:
    """Lines move; the page of equivalents must not rot at each of them."""
    diff = "@@ -1 +1 @@\n context\n-    if a <  b:\n+    if a <= b:\n other"
    known = equivalents(f"text\n\n`{essence('src/x.py:3:4:op:0', diff)}`\nA reason.\n")

    assert essence("src/x.py:9:9:op:1", diff.replace("@@ -1", "@@ -70")) in known
    assert essence("src/y.py:3:4:op:0", diff) not in known
