"""The tool draws the same sample for a seed, changes one place, and leaves alone what only states."""

import ast
from pathlib import Path
from random import Random

import pytest

from tests.mutate.__main__ import equivalents, essence
from tests.mutate.sites import mutated, sample, sites
from tests.mutate.targets import ROOT, TARGETS
from tests.mutate.work import Command, ask, commands

CODE = '''"""A module."""
from typing import Final

LIMIT: Final = 10


class Thing:
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


def test_what_only_states_is_left_alone(changes: list[str]) -> None:
    """A weaker assertion, another limit and a missing line of the log would survive, and teach nothing."""
    for changed in changes:
        for stays in ("assert self.a < self.b", "assert x != 3", "int | None", "= 10", '"thing.added", x=1'):
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
        assert commands(target, target.paths()[0])


def test_a_command_that_hangs_has_noticed_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    """A change that makes a loop endless is no survivor."""
    (tmp_path / "src").mkdir()

    assert not ask(Command(("sleep", "60")), tmp_path, seconds_max=0.2).is_quiet
    assert ask(Command(("true",)), tmp_path, seconds_max=60).is_quiet
    assert not ask(Command(("false",)), tmp_path, seconds_max=60).is_quiet


def test_an_equivalent_change_is_known_wherever_it_stands() -> None:
    """Lines move; the page of equivalents must not rot at each of them."""
    diff = "@@ -1 +1 @@\n context\n-    if a <  b:\n+    if a <= b:\n other"
    known = equivalents(f"text\n\n`{essence('src/x.py:3:4:op:0', diff)}`\nA reason.\n")

    assert essence("src/x.py:9:9:op:1", diff.replace("@@ -1", "@@ -70")) in known
    assert essence("src/y.py:3:4:op:0", diff) not in known
