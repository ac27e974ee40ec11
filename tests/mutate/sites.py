"""Sites: every place where a module can be changed, and how; a sample of them by a seed.

A place is drawn first, then one of the changes that fit there, so that a comparison, which has many, is no
likelier than a number. What states rather than does is left alone: assertions, `check`, annotations, log
lines, marks, and constants of a module (a limit that is another limit).
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.work_item import MutationSpec, WorkItem
from parso.python import tree

OURS = "ours/RemoveStatement"
COMPARISONS = (
    "Lt_LtE LtE_Lt Gt_GtE GtE_Gt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is Lt_Gt Gt_Lt Lt_NotEq GtE_Eq LtE_Eq"
)
ARITHMETIC = "Add_Sub Sub_Add Mul_FloorDiv FloorDiv_Mul Mod_FloorDiv LShift_RShift RShift_LShift"
BITS = "BitAnd_BitOr BitOr_BitAnd BitXor_BitAnd"
PLAIN = (
    "AddNot NumberReplacer ReplaceAndWithOr ReplaceOrWithAnd ReplaceTrueWithFalse ReplaceFalseWithTrue "
    "ReplaceBreakWithContinue ReplaceContinueWithBreak ZeroIterationForLoop "
    "ReplaceUnaryOperator_Delete_Not ReplaceUnaryOperator_Delete_USub"
)
OPERATORS = (
    *(f"core/{name}" for name in PLAIN.split()),
    *(f"core/ReplaceComparisonOperator_{name}" for name in COMPARISONS.split()),
    *(f"core/ReplaceBinaryOperator_{name}" for name in f"{ARITHMETIC} {BITS}".split()),
    OURS,
)
STATES = ("check", "__repr__", "__str__")
"""Functions that say what is so."""


class RemoveStatement(Operator):  # type: ignore[misc]  # cosmic-ray has no types.
    """A call, an assignment to a field, a raise or an early return is left out: the forgotten guard."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Where it can be."""
        if isinstance(node, tree.PythonNode) and node.type == "simple_stmt" and _may_go(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Put `pass` in its place."""
        first = node.children[0]
        node.children[0] = tree.Keyword("pass", first.start_pos, first.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> Iterable[Any]:
        """None: its test is ours."""
        return ()


def _may_go(statement: Any) -> bool:
    if statement.type in ("atom_expr", "raise_stmt", "await_expr"):
        return True
    if statement.type == "expr_stmt":
        return bool(statement.children[0].type == "atom_expr")  # A field; without a local all would fail.
    suite = statement.parent.parent
    return bool(statement.type == "return_stmt" and suite.type == "suite" and suite.parent.type == "if_stmt")


def operator_of(name: str) -> Operator:
    """An operator by its name."""
    return RemoveStatement() if name == OURS else plugins.get_operator(name)()


def mutated(code: str, item: WorkItem) -> str:
    """`code` with the one change of `item`."""
    (spec,) = item.mutations
    made: str | None = mutate_code(code, operator_of(spec.operator_name), spec.occurrence)
    assert made is not None, f"{spec} changes nothing: the code is another than when it was drawn"
    return made


def sites(root: Path, module: str) -> list[WorkItem]:
    """Every change of `module` that counts, in order."""
    code = (root / module).read_text()
    left_alone = list(_left_alone(ast.parse(code)))
    nodes = list(ast_nodes(get_ast(code)))
    found: list[WorkItem] = []
    for name in OPERATORS:
        operator = operator_of(name)
        places = (place for node in nodes for place in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(places):
            if any(begin <= start <= stop for begin, stop in left_alone):
                continue
            spec = MutationSpec(module, name, occurrence, start, end)
            item = WorkItem.single(f"{module}:{start[0]}:{start[1]}:{name}:{occurrence}", spec)
            if "Mul_" in name and not _is_python(mutated(code, item)):
                continue  # The star of `*arguments` is no multiplication.
            found.append(item)
    return found


def sample(items: list[WorkItem], count: int, random: Random) -> list[WorkItem]:
    """`count` places, one change at each."""
    places: dict[tuple[Path, tuple[int, int]], list[WorkItem]] = {}
    for item in sorted(items, key=lambda each: str(each.job_id)):
        (spec,) = item.mutations
        places.setdefault((spec.module_path, spec.start_pos), []).append(item)
    drawn = random.sample(list(places.values()), min(count, len(places)))
    return [random.choice(changes) for changes in drawn]


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def _is_told(function: str) -> bool:
    """Whether a call only tells: a mark, a label, a line of the log, a type."""
    return function in ("hit", "passed", "cast", "TypeVar", "assert_never") or "logger." in function


def _is_name(node: ast.AST) -> bool:
    """Whether it names a union of types, or a number: a limit that is another limit."""
    if not isinstance(node, ast.Assign) or node.col_offset or not isinstance(node.value, ast.BinOp):
        return False
    numbers = all(isinstance(part, ast.Constant) for part in (node.value.left, node.value.right))
    return numbers or isinstance(node.value.op, ast.BitOr)


def _left_alone(module: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(module):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Assert):
            parts = [node]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            parts = [node.returns, *(each.annotation for each in arguments)]
            if node.name in STATES:
                parts = [node]
        elif isinstance(node, ast.AnnAssign):
            is_stated = ast.unparse(node.annotation).startswith(("Final", "TypeAlias"))
            parts = [node if is_stated else node.annotation]
        elif (
            (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
            or (isinstance(node, ast.Call) and _is_told(ast.unparse(node.func)))
            or (isinstance(node, ast.keyword) and node.arg == "gc")
            or _is_name(node)
        ):
            parts = [node]
        for part in parts:
            if part is not None:
                span: Any = part
                yield (span.lineno, span.col_offset), (span.end_lineno, span.end_col_offset)
