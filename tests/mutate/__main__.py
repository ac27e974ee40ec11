"""`python -m tests.mutate`: draw a sample, change the code place by place, and write a page of the survivors.

A run is resumable: its session holds the sample and every verdict, and the code as it was when the sample was
drawn. Ctrl-C, then the same command, goes on. What the tests run is measured once for each state of the tree.
"""

import difflib
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from random import Random

from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult

from tests.mutate.covering import Covering
from tests.mutate.sites import mutated, sample, sites
from tests.mutate.targets import ROOT, TARGETS
from tests.mutate.work import Worker, ask, copy_tree, folders, listed, measure, simulations

HOME = ROOT / ".mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.md")
SIMULATION_SECONDS_MAX = 300


class Session:
    """One sample of one seed, its workers' copies and their verdicts."""

    def __init__(self, given: Namespace) -> None:
        targets = [each for each in TARGETS if not given.targets or each.name in given.targets]
        name = "-".join([f"seed{given.seed}", f"sample{given.sample}", *given.targets])
        self.home, self.workers_count = HOME / name, int(given.workers)
        self.tree, self.measured = self.home / "tree", self.home / "measured"
        self.home.mkdir(parents=True, exist_ok=True)
        is_new = not (self.home / "drawn").exists()
        self.db = WorkDB(str(self.home / "session.sqlite"), WorkDB.Mode.create)
        if is_new:
            copy_tree(self.tree)
            found = [item for target in targets for module in target.paths() for item in sites(ROOT, module)]
            self.db.clear()
            self.db.add_work_items(sample(found, given.sample, Random(given.seed)))
            (self.home / "drawn").write_text(_digest())
        self.measured = HOME / f"measured-{(self.home / 'drawn').read_text()}"
        self.target_of = {module: target for target in TARGETS for module in target.paths()}
        self.tests = folders(targets)
        self.covering: Covering | None = None

    def run(self) -> None:
        """Judge what has no verdict yet."""
        left = sorted(self.db.pending_work_items, key=lambda item: str(item.job_id))
        if not left:
            return
        with ThreadPoolExecutor(self.workers_count) as pool:
            for each in [pool.submit(self._measure, tests) for tests in self.tests]:
                each.result()
        self.covering = Covering(self.measured / _folder(tests) for tests in self.tests)
        free: SimpleQueue[Worker] = SimpleQueue()
        workers = [
            Worker(self.home / f"worker{number}", self.tree, self.tests)
            for number in range(self.workers_count)
        ]
        for worker in workers:
            free.put(worker)
        done = count(len(self.db.work_items) - len(left) + 1)
        total = len(self.db.work_items)

        def judge(item: WorkItem) -> tuple[WorkItem, WorkResult, float]:
            worker, began = free.get(), time.monotonic()
            try:
                return item, self.judge(item, worker), time.monotonic() - began
            finally:
                free.put(worker)

        with ThreadPoolExecutor(self.workers_count) as pool:
            for judged in as_completed([pool.submit(judge, item) for item in left]):
                item, result, seconds = judged.result()
                self.db.set_result(item.job_id, result)
                said = str(result.test_outcome and result.test_outcome.value)
                by = str(result.output).partition("\n")[0]
                sys.stdout.write(f"{next(done)}/{total} {said} {seconds:.1f} s {item.job_id} {by}\n")
                sys.stdout.flush()
        for worker in workers:
            worker.close()

    def judge(self, item: WorkItem, worker: Worker) -> WorkResult:
        """Change the code of `worker`, ask everyone who may notice, and put it back."""
        (spec,) = item.mutations
        module = str(spec.module_path)
        code = (self.tree / module).read_text()
        changed = mutated(code, item)
        lines = difflib.unified_diff(code.splitlines(), changed.splitlines(), lineterm="", n=2)
        diff = "\n".join(list(lines)[2:])
        file = worker.directory / module
        try:
            file.write_text(changed)
            said = self._noticed(worker, module, code, spec.start_pos)
        finally:
            file.write_text(code)
        outcome = TestOutcome.KILLED if said else TestOutcome.SURVIVED
        return WorkResult(WorkerOutcome.NORMAL, said, outcome, diff)

    def page(self) -> str:
        """What survived, and what is known to change nothing."""
        known = equivalents(EQUIVALENT.read_text())
        results = dict(self.db.results)
        survivors = [
            (job, each) for job, each in results.items() if each.test_outcome == TestOutcome.SURVIVED
        ]
        open_ones = [(job, each) for job, each in survivors if essence(job, each.diff or "") not in known]
        killed = len(results) - len(survivors)
        judged = len(results) - (len(survivors) - len(open_ones))
        share = 100 * killed / judged if judged else 0.0
        told = f"{len(results)} of {len(self.db.work_items)} changes judged: {killed} killed, "
        told += f"{len(open_ones)} survived, {len(survivors) - len(open_ones)} known as equivalent: "
        told += f"{share:.1f} % of {judged} killed."
        lines = [f"# Survivors of {self.home.name}", "", told]
        for job, result in sorted(open_ones):
            lines += [
                "",
                f"## {job}",
                "",
                "```diff",
                result.diff or "",
                "```",
                "",
                essence(job, result.diff or ""),
            ]
        return "\n".join(lines) + "\n"

    def _measure(self, tests: str) -> None:
        began = time.monotonic()
        measure(self.tree, tests, self.measured / _folder(tests))
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  measured {tests}\n")
        sys.stdout.flush()

    def _noticed(self, worker: Worker, module: str, code: str, place: tuple[int, int]) -> str:
        """What noticed the change, or nothing."""
        assert self.covering is not None
        target = self.target_of[module]
        tests = self.covering.tests(target, module, code, place)
        notice = partial(worker.noticed, is_of_loading=self.covering.is_of_loading(module, code, place))
        while tests:
            failed = notice(module, self._seconds(tests))
            if failed is None:
                break
            by, text = failed
            if by not in tests or notice(module, self._seconds([by]), patience=2) is not None:
                return f"{by}\n{text}"
            tests = tests[tests.index(by) + 1 :]  # It failed by chance: the machine has other work too.
        for words in simulations(target):
            noticed = ask(words, worker.directory, seconds_max=SIMULATION_SECONDS_MAX)
            if not noticed.is_quiet:
                return f"{' '.join(words)}\n{noticed.text}"
        return ""

    def _seconds(self, tests: list[str]) -> dict[str, float]:
        assert self.covering is not None
        return {each: self.covering.seconds[each] for each in tests}


def _folder(tests: str) -> str:
    return tests.replace("/", "-")


def _digest() -> str:
    """The state of the tree, in short."""
    told = sha256()
    for name in listed():
        if name.startswith(("src/", "tests/")):
            told.update(name.encode() + b"\0" + sha256((ROOT / name).read_bytes()).digest())
    return told.hexdigest()[:16]


def equivalents(text: str) -> set[str]:
    """The essences that a page of equivalents names: its lines of code."""
    return {line.strip().strip("`") for line in text.splitlines() if line.startswith("`")}


def essence(job: str, diff: str) -> str:
    """A change in one line that does not depend on where in its file it stands."""
    changed = [line for line in diff.splitlines() if line[:1] in "+-"]
    told = " ".join(line[0] + " " + " ".join(line[1:].split()) for line in changed)
    return f"{job.partition(':')[0]}: {told}"


def main() -> None:
    """Draw or resume, judge, and write the page."""
    parser = ArgumentParser(prog="python -m tests.mutate")
    parser.add_argument(
        "targets", nargs="*", help=f"of {', '.join(each.name for each in TARGETS)}; all if none"
    )
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    unknown = [name for name in given.targets if name not in {each.name for each in TARGETS}]
    if unknown:
        parser.error(f"unknown targets {', '.join(unknown)}")
    session = Session(given)
    try:
        session.run()
    finally:
        page = session.home / "survivors.md"
        page.write_text(session.page())
        sys.stdout.write(f"{page.read_text().splitlines()[2]}\n{page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
