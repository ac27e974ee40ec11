"""The registry of planted bugs: what each takes out, and who must notice.

A mutant replaces one function or method, or one entry of a class's table, while a run lasts. Where a module
has imported a function by name, the target is that module's name for it.
"""

import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import tests.mutants
from simulator.plan import Tier

PLANS = Path(__file__).parent / "plans"


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    name: str
    """Its file name, in words: `ack_before_sync`."""
    guard: str
    """One sentence: which guard is gone."""
    target: str
    """`module:function`, `module:Class.method`, or `module:Class.TABLE[Key]` for a table's entry."""
    replacement: Callable[[Any], Any]
    """From what stands there to what shall stand there: it may wrap the original."""
    workload: str = ""
    """Whose checker must catch it; empty where `hunt` does."""
    tier: Tier = Tier.MACHINES
    hunt: Callable[[], str | None] | None = None
    """Another harness (crash states, say): what it found, or None.

    It must find nothing without the mutant.
    """

    plans: Path = PLANS
    """The folder of its stored plan."""
    seen: tuple[str, ...] = ("Violation", "Corrupt")
    """What counts: a checker's verdict, or a node that refuses what it wrote itself; no crash by chance."""

    @property
    def plan_path(self) -> Path:
        """The stored plan that catches it."""
        return self.plans / f"{self.name}.json"

    @contextmanager
    def planted(self) -> Generator[None, None, None]:
        """While this lasts, the bug is in."""
        module, _, path = self.target.partition(":")
        owner: Any = import_module(module)
        *owners, last = path.split(".")
        for name in owners:
            owner = getattr(owner, name)
        if last.endswith("]"):
            table_name, _, key_name = last.removesuffix("]").partition("[")
            table = getattr(owner, table_name)
            (key,) = [key for key in table if getattr(key, "__name__", str(key)) == key_name]
            before = table[key]
            table[key] = self.replacement(before)
            try:
                yield
            finally:
                table[key] = before
            return
        before = owner.__dict__[last]
        plain = before.__func__ if isinstance(before, (staticmethod, classmethod)) else before
        check_called(plain, owner, import_module(module))
        after = self.replacement(plain)
        setattr(owner, last, type(before)(after) if plain is not before else after)
        try:
            yield
        finally:
            setattr(owner, last, before)


def check_called(function: Any, *owners: Any) -> None:
    """A function that stands in a table is called from there: replaced by its name, it would still be called.

    Raises:
        ValueError: nothing would be planted.
    """
    for owner in owners:
        for name, table in vars(owner).items():
            if isinstance(table, dict) and not name.startswith("__"):
                keys = [key for key, value in table.items() if value is function]
                if keys:
                    raise ValueError(
                        f"{function.__qualname__} is called as {name}[{keys[0]}]: name that entry"
                    )


def edited(old: str, new: str) -> Callable[[Any], Any]:
    """A replacement: the function's own source with `old`, which stands there once, written as `new`."""

    def plant(function: Any) -> Any:
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(old) != 1:  # No assertion: under -O nothing would be planted, and nobody told.
            raise ValueError(f"{function.__qualname__} has {source.count(old)} times {old!r}")
        found: dict[str, Any] = {}
        exec(
            compile(source.replace(old, new), f"<{function.__qualname__}>", "exec"),
            function.__globals__,
            found,
        )
        return found[function.__name__]

    return plant


def mutants() -> list[Mutant]:
    """Every registered mutant, by name."""
    found: list[Mutant] = []
    for module in pkgutil.iter_modules(tests.mutants.__path__):
        if module.name.startswith("planted_"):
            found += import_module(f"tests.mutants.{module.name}").MUTANTS
    names = [mutant.name for mutant in found]
    assert len(names) == len(set(names)), f"two mutants of one name: {sorted(names)}"
    return sorted(found, key=lambda mutant: mutant.name)
