"""The dashboard and the alerts ask for metrics that a node has, and each alert is explained."""

import json
import re
from pathlib import Path

import pytest

from broadsheet.cli.checks import CHECKS
from broadsheet.cli.fragment_check import fragments_check
from tests.project.node_metrics import node_labels, node_metrics
from tests.project.rules import ROOT

OPERATIONS = ROOT / "docs" / "operations"
METRIC = re.compile(r"\b(?:broadsheet|process)_[a-z_]+")
SUFFIXES = ("_bucket", "_count", "_sum")


def bare(name: str) -> str:
    """The metric that a series of a histogram belongs to."""
    return next((name.removesuffix(each) for each in SUFFIXES if name.endswith(each)), name)


@pytest.mark.parametrize("page", ["dashboard.json", "alerts.yml", "monitoring.md"])
def test_a_page_names_metrics_that_a_node_has(page: str) -> None:
    """An alert over a metric that nobody gives never fires, and nobody sees that."""
    known = {name for name, _, _ in node_metrics()}
    named = {bare(each) for each in METRIC.findall((OPERATIONS / page).read_text())}

    assert named <= known, sorted(named - known)
    assert named or page == "monitoring.md"


def expressions() -> list[str]:
    """Every expression of the dashboard and of the alerts."""
    board = json.loads((OPERATIONS / "dashboard.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return asked + re.findall(r"expr: '([^']+)'", (OPERATIONS / "alerts.yml").read_text())


@pytest.mark.parametrize("asked", expressions())
def test_an_expression_asks_for_labels_that_its_series_have(asked: str) -> None:
    """A histogram that is summed by a label that it lacks is one line; one that is chosen by it is empty."""
    of_scrape = ("instance", "job")
    for name, chosen in re.findall(METRIC.pattern.replace("\\b", "(", 1) + r")(?:\{([^}]*)\})?", asked):
        for label, value in re.findall(r'(\w+)="([^"]*)"', chosen):
            assert label in of_scrape or (name, label, value) in node_labels(), (name, label, value)
    for labels in re.findall(r"by \(([^)]*)\)", asked):
        (name,) = set(METRIC.findall(asked))
        has = {label for each, label, _ in node_labels() if each == name}
        assert set(labels.split(", ")) <= has | set(of_scrape), (name, labels)


def test_the_dashboard_is_one_that_can_be_imported() -> None:
    """Panels that lie over each other, or ask for nothing, are found when somebody needs them."""
    board = json.loads((OPERATIONS / "dashboard.json").read_text())

    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in board["panels"]]
    assert len(set(places)) == len(places) >= 10
    assert len({each["id"] for each in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert all(target["expr"].count("(") == target["expr"].count(")") for target in panel["targets"])
        assert panel["targets"]
    assert {each["name"] for each in board["templating"]["list"]} == {"source", "instance"}


def test_each_alert_says_what_to_do() -> None:
    """Who is woken at night needs a sentence, and the page on which it stands."""
    text = (OPERATIONS / "alerts.yml").read_text()
    alerts = re.findall(
        r"- alert: (\w+)\n +expr: '([^']+)'\n +for: \d+m\n(?: +.*\n){3} +summary: \"(.+)\"\n", text
    )
    explained = re.findall(
        r"^\| `(\w+)` \| .+ \| .+ \|$", (OPERATIONS / "monitoring.md").read_text(), re.MULTILINE
    )

    assert [name for name, _, _ in alerts] == explained
    assert len(alerts) == text.count("- alert:")
    assert all(summary.endswith(".") for _, _, summary in alerts)


def test_each_check_of_doctor_is_explained(tmp_path: Path) -> None:
    """Who reads `warn room` looks the word up; nobody reads of a check that is gone."""
    section = (
        (OPERATIONS / "monitoring.md").read_text().split("## What doctor finds", 1)[1].split("## ", 1)[0]
    )
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| ")][1:]
    explained = [name.split("(")[0].strip() for row in rows for name in row.split(",")]
    made = [check(tmp_path).check for check in (*CHECKS, fragments_check)]

    assert sorted(explained) == sorted([*made, "named directory"])


def test_an_acceptor_without_a_vote_wakes_somebody() -> None:
    """The others go on without it, so nobody sees it before the next one fails."""
    assert "expr: 'broadsheet_metastore_is_member == 0'" in (OPERATIONS / "alerts.yml").read_text()


def test_a_metric_has_a_meaning() -> None:
    """A name alone is a guess."""
    assert all(meaning.endswith(".") and len(meaning) > 8 for _, _, meaning in node_metrics())
