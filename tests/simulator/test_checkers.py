"""The checkers accept what an atomic object answers, and refuse what it cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.checkers.agreement import LogAgreement
from simulator.checkers.conservation import check_exactly_once, check_sums
from simulator.checkers.linearizable import check_linearizable
from simulator.checkers.pipelines import Ledger, check_pipeline
from simulator.checkers.versioned import check_versioned
from simulator.entropy import stream
from simulator.history import Operation, Outcome
from simulator.workload import Violation


def op(
    name: str,
    span: tuple[int, int | None],
    argument: object = None,
    result: object = None,
    *,
    key: str = "x",
    version: int | None = None,
    outcome: Outcome | None = None,
) -> Operation:
    """An operation from its call to its return; no return means that nobody knows."""
    is_known = span[1] is not None
    outcome = outcome or (Outcome.OK if is_known else Outcome.UNKNOWN)
    return Operation(0, "c", key, name, argument, span[0], result, outcome, span[1], version)


def atomic(seed: int, *, count: int, clients: int, keys: int, unknown: float = 0.0) -> list[Operation]:
    """A history of a truly atomic register: each operation takes effect somewhere between its ends."""
    draw = stream("atomic", seed)
    free, planned = [0] * clients, []
    for value in range(count):
        client = min(range(clients), key=lambda index: free[index])
        begin = free[client] + draw.randrange(1, 20)
        end = begin + draw.randrange(1, 1000)
        free[client] = end + 1
        planned.append(
            (draw.randrange(begin, end + 1), begin, end, draw.choice(["read", "write", "cas"]), value)
        )
    state: dict[str, int] = {}
    versions: dict[str, int] = {}
    made = []
    for _, begin, end, name, value in sorted(planned):
        key, is_lost = f"k{draw.randrange(keys)}", draw.random() < unknown
        argument: object = None
        result: object = None
        if name == "read":
            result = state.get(key)
        elif name == "write":
            argument, state[key] = value, value
            versions[key] = versions.get(key, 0) + 1
        else:
            argument = (state.get(key) if draw.random() < 0.5 else -1, value)
            result = argument[0] == state.get(key)
            if result:
                state[key] = value
                versions[key] = versions.get(key, 0) + 1
        made.append(
            op(name, (begin, None if is_lost else end), argument, None if is_lost else result, key=key)
        )
    return made


def test_a_stale_read_is_not_linearizable() -> None:
    """The smallest violation."""
    with pytest.raises(Violation, match="not linearizable"):
        check_linearizable([op("write", (0, 1), 1), op("read", (2, 3), result=None)])


def test_concurrent_operations_may_take_effect_in_either_order() -> None:
    """A read that overlaps a write may see it or not."""
    for result in (None, 1):
        check_linearizable([op("write", (0, 10), 1), op("read", (5, 6), result=result)])


def test_an_unknown_write_may_come_late_but_not_go_away_again() -> None:
    """Unknown is not failed (C2)."""
    lost = op("write", (0, None), 1)
    check_linearizable([lost, op("read", (2, 3)), op("read", (4, 5), result=1)])

    with pytest.raises(Violation):
        check_linearizable([lost, op("read", (2, 3), result=1), op("read", (4, 5), result=None)])


def test_a_rejected_write_never_takes_effect() -> None:
    """A refusal that was none is a violation."""
    refused = op("write", (0, 1), 1, outcome=Outcome.REJECTED)

    with pytest.raises(Violation):
        check_linearizable([refused, op("read", (2, 3), result=1)])


def test_a_search_without_verdict_does_not_pass() -> None:
    """A bound that passes what it did not check would hide everything."""
    with pytest.raises(Violation, match="no verdict"):
        check_linearizable(atomic(1, count=60, clients=8, keys=1), steps_max=50)


@given(seed=st.integers(0, 10**6), unknown=st.sampled_from([0.0, 0.05]))
def test_histories_of_an_atomic_register_pass(seed: int, unknown: float) -> None:
    """Oracle: the register itself."""
    check_linearizable(atomic(seed, count=60, clients=4, keys=2, unknown=unknown))


@given(seed=st.integers(0, 10**6))
def test_a_read_of_a_value_never_written_is_found(seed: int) -> None:
    """One wrong answer anywhere fails the history."""
    history = atomic(seed, count=40, clients=4, keys=2)
    reads = [index for index, each in enumerate(history) if each.name == "read"]
    if not reads:
        return
    history[reads[seed % len(reads)]].result = -77

    with pytest.raises(Violation):
        check_linearizable(history)


def test_versions_find_what_search_finds_in_a_long_history() -> None:
    """Twenty thousand operations on one key: far beyond the search."""
    good = [
        op(
            "write" if i % 2 else "read",
            (10 * i, 10 * i + 25),
            i if i % 2 else _value(i),
            _value(i),
            version=i // 2 + i % 2,
        )
        for i in range(20_000)
    ]
    check_versioned(good)

    stale = op("read", (150_000, 150_001), result=_value(200), version=100)
    with pytest.raises(Violation, match="older than"):
        check_versioned([*good, stale])


def _value(i: int) -> int | None:
    """What a read in the middle of the history sees: the last odd number."""
    return i - 1 if i else None


def test_versions_find_doubles_and_strangers() -> None:
    """Two writers of one version, two values of one version, a value from nowhere."""
    write = op("write", (0, 1), 5, version=1)
    for bad, match in (
        (op("write", (2, 3), 6, version=1), "was taken by"),
        (op("read", (2, 3), result=6, version=1), "written by"),
        (op("read", (2, 3), result=9, version=2), "nobody wrote"),
        (op("read", (-5, -4), result=5, version=1), "not asked for yet"),
    ):
        with pytest.raises(Violation, match=match):
            check_versioned([write, bad])


def test_an_unknown_write_may_explain_a_read() -> None:
    """It may have taken any version."""
    check_versioned([op("write", (0, None), 5), op("read", (2, 3), result=5, version=7)])


def test_exactly_once_counts_what_is_lost_doubled_or_strange() -> None:
    """And fails where nothing was proven at all."""
    assert "acknowledged 2, unknown 1 of which 1" in check_exactly_once(acked="ab", unknown="c", found="cab")
    for found, match in (("b", "1 lost"), ("aab", "1 doubled"), ("abz", "from nowhere"), ("abcc", "doubled")):
        with pytest.raises(Violation, match=match):
            check_exactly_once(acked="ab", unknown="c", found=found)
    with pytest.raises(Violation, match="at least 1000"):
        check_exactly_once(acked="ab", unknown="", found="ab", acked_min=1000)
    check_sums({"a": 3}, {"a": 3})
    with pytest.raises(Violation, match="a: 3 in, 2 out"):
        check_sums({"a": 3}, {"a": 2})


def test_logs_agree_on_every_committed_position_for_ever() -> None:
    """Another entry, or a missing one, is a loss."""
    logs = LogAgreement()
    logs.whole("s", ["a", "b"], by="n1")

    with pytest.raises(Violation, match=r"s\[1\]"):
        logs.committed("s", 1, "c", by="n2")
    with pytest.raises(Violation, match="2 were committed"):
        logs.whole("s", ["a"], by="n2")


class TestPipeline:
    """The checker of the exactly-once pipeline."""

    OUTPUT = "out"

    def ledger(self, *batches: tuple[str, int, int]) -> Ledger:
        ledger, content = Ledger(), b""
        for number, (fence, begin, end) in enumerate(batches):
            content += b'{"type":"fence","fence":"%s"}\n' % fence.encode()
            content += b'{"type":"commit","fence":"%s","batch":%d,"digest":"%d:%d"}\n' % (
                fence.encode(),
                number,
                begin,
                end,
            )
        ledger.read(content)
        return ledger

    def shown(self, *rows: tuple[int, int, str]) -> bytes:
        return b"".join(
            b'{"row":%d,"batch":%d,"fence":"%s"}\n' % (row, batch, fence.encode())
            for row, batch, fence in rows
        )

    def check(self, ledger: Ledger, content: bytes, **excused: int) -> None:
        check_pipeline(ledger, {self.OUTPUT: content}, excused=excused, place=lambda _: self.OUTPUT)

    def test_each_row_of_each_batch_once_is_right(self) -> None:
        """And what a deleted journal took is excused up to its deletion."""
        ledger = self.ledger(("f1", 0, 2), ("f2", 2, 3))
        self.check(ledger, self.shown((0, 0, "f1"), (1, 0, "f1"), (2, 1, "f2")))
        self.check(ledger, self.shown((2, 1, "f2")), out=0)

    @pytest.mark.parametrize(
        ("rows", "said"),
        [
            (((0, 0, "f1"),), "is not shown"),
            (((0, 0, "f1"), (1, 0, "f1"), (1, 0, "f1")), "shown twice"),
            (((0, 0, "f1"), (1, 0, "f0")), "is committed as"),
            (((0, 0, "f1"), (1, 0, "f1"), (2, 1, "f1")), "are committed"),
        ],
    )
    def test_what_is_wrong_is_said(self, rows: tuple[tuple[int, int, str], ...], said: str) -> None:
        """Lost, doubled, of another run of the batch, not committed."""
        with pytest.raises(Violation, match=said):
            self.check(self.ledger(("f1", 0, 2)), self.shown(*rows))

    def test_batches_follow_each_other_by_their_authors(self) -> None:
        """A gap in the rows, a batch twice, a fenced driver."""
        line = b'{"type":"commit","fence":"%s","batch":%d,"digest":"%d:9"}\n'
        for wrong, said in (
            (line % (b"f1", 1, 3), "ends at 2"),
            (line % (b"f1", 0, 2), "where batch 1 follows"),
            (line % (b"f0", 1, 2), "while f1 is the author"),
        ):
            ledger = self.ledger(("f1", 0, 2))
            with pytest.raises(Violation, match=said):
                ledger.read(b" " * ledger.end + wrong)
