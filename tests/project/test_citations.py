"""Whatever the repository cites can be opened by a stranger who has only the clone."""

import pytest

from tests.project.citations import citing, complaints, rules, standing, unresolved


def test_each_citation_leads_somewhere() -> None:
    """A reason that stands in a document of ours is no reason to anybody else."""
    assert complaints() == []


def test_each_rule_of_what_is_built_is_cited_by_a_test_or_a_contract() -> None:
    """The page of rules and their tests had four without any, and the page before it said that none is."""
    assert [rule for rule in standing() if not citing().get(rule)] == []


def test_rules_are_found_in_every_part_that_stands() -> None:
    """A check that reads nothing finds nothing."""
    assert {"log.11", "wire.4", "node.2", "access.2", "control.6", "journals.30", "pipelines.9"} <= set(
        rules()
    )


@pytest.mark.parametrize(
    "text",
    [
        "Source: log" + ".99.",
        "See ADR" + " 9999.",
        "Source: DESIGN" + " 3",
        "reliability" + " 2.7",
        "`test_that" + "_is_gone`",
    ],
)
def test_a_citation_that_leads_nowhere_is_found(text: str) -> None:
    """The check can fail."""
    assert list(unresolved(text))
