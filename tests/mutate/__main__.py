"""`python -m tests.mutate`: draw a sample, change the code place by place, and write a page of the survivors.

A run is resumable: its session holds the sample and every verdict, its workers the code as it was when the
sample was drawn. Ctrl-C, then the same command, goes on.
"""

import difflib
import os
import sys
from argparse import ArgumentParser, Namespace
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from random import Random

from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult

from tests.mutate.sites import mutated, sample, sites
from tests.mutate.targets import ROOT, TARGETS
from tests.mutate.work import GRACE_SECONDS, TIMES_BASELINE, Command, ask, commands, copy_tree

HOME = ROOT / ".mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.md")


class Session:
    """One sample of one seed, its workers' copies and their verdicts."""

    def __init__(self, given: Namespace) -> None:
        targets = [each for each in TARGETS if not given.targets or each.name in given.targets]
        name = "-".join([f"seed{given.seed}", f"sample{given.sample}", *given.targets])
        self.home, self.workers = HOME / name, int(given.workers)
        self.tree = self.home / "tree"
        self.home.mkdir(parents=True, exist_ok=True)
        is_new = not (self.home / "drawn").exists()
        self.db = WorkDB(str(self.home / "session.sqlite"), WorkDB.Mode.create)
        if is_new:
            copy_tree(self.tree)
            found = [item for target in targets for module in target.paths() for item in sites(ROOT, module)]
            self.db.clear()
            self.db.add_work_items(sample(found, given.sample, Random(given.seed)))
            (self.home / "drawn").touch()
        self.target_of = {module: target for target in TARGETS for module in target.paths()}
        self.baselines: dict[Command, float] = {}

    def run(self) -> None:
        """Judge what has no verdict yet."""
        left = sorted(self.db.pending_work_items, key=lambda item: str(item.job_id))
        if not left:
            return
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(self.workers):
            directory = self.home / f"worker{number}"
            if not directory.exists():
                copy_tree(directory)
            free.put(directory)
        self._measure(left, free)
        done = count(len(self.db.work_items) - len(left) + 1)
        total = len(self.db.work_items)

        def judge(item: WorkItem) -> tuple[WorkItem, WorkResult]:
            directory = free.get()
            try:
                return item, self.judge(item, directory)
            finally:
                free.put(directory)

        with ThreadPoolExecutor(self.workers) as pool:
            for judged in as_completed([pool.submit(judge, item) for item in left]):
                item, result = judged.result()
                self.db.set_result(item.job_id, result)
                said = str(result.test_outcome and result.test_outcome.value)
                sys.stdout.write(f"{next(done)}/{total} {said} {item.job_id}\n")
                sys.stdout.flush()

    def judge(self, item: WorkItem, directory: Path) -> WorkResult:
        """Change the code of `directory`, ask everyone who may notice, and put it back."""
        (spec,) = item.mutations
        module = str(spec.module_path)
        code = (self.tree / module).read_text()
        changed = mutated(code, item)
        lines = difflib.unified_diff(code.splitlines(), changed.splitlines(), lineterm="", n=2)
        diff = "\n".join(list(lines)[2:])
        try:
            (directory / module).write_text(changed)
            for command in commands(self.target_of[module], module):
                noticed = ask(command, directory, seconds_max=self._seconds_max(command))
                if not noticed.is_quiet:
                    said = f"{command}\n{noticed.text}"
                    return WorkResult(WorkerOutcome.NORMAL, said, TestOutcome.KILLED, diff)
        finally:
            (directory / module).write_text(code)
        return WorkResult(WorkerOutcome.NORMAL, "", TestOutcome.SURVIVED, diff)

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

    def _measure(self, left: list[WorkItem], free: "SimpleQueue[Path]") -> None:
        """How long each command takes without a change. A command that fails so would prove nothing."""
        modules = dict.fromkeys(str(item.mutations[0].module_path) for item in left)
        needed = dict.fromkeys(
            each for module in modules for each in commands(self.target_of[module], module)
        )
        directory = free.get()
        for command in needed:
            found = ask(command, directory, seconds_max=3600)
            if not found.is_quiet:
                raise SystemExit(f"without any change this fails:\n{command}\n{found.text}")
            self.baselines[command] = found.seconds
            sys.stdout.write(f"{found.seconds:6.1f} s  {' '.join(command.words[-4:])}\n")
            sys.stdout.flush()
        free.put(directory)

    def _seconds_max(self, command: Command) -> float:
        baseline = self.baselines[command]
        return TIMES_BASELINE * baseline + GRACE_SECONDS


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
