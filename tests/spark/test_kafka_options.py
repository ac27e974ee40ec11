"""Whoever moves a job from Kafka is told what to give, and what there is not."""

import re
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from broadsheet.errors import ConfigError
from broadsheet.spark import batch_sink, sink, source_options
from broadsheet.spark.batch_sink import BatchWriter
from broadsheet.spark.kafka_options import OF_SINK, OF_SOURCE, instead
from broadsheet.spark.sink import SinkWriter
from broadsheet.spark.source import BatchReader, StreamReader

X = StructType([StructField("x", LongType())])
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "concepts" / "spark-from-kafka.md"
IN_PLACE = re.compile(
    r"give option (\w+)|give the query a trigger|give (startingOffsets)|[Ll]eave the option out"
    r"|leave them out|let them be fields"
)


@pytest.mark.parametrize("name", sorted(OF_SOURCE))
def test_an_option_of_kafkas_source_is_refused_with_what_to_give(name: str) -> None:
    """The list of our options does not say which of them is meant."""
    given = name + "anything" if name.endswith(".") else name
    options = {"address": "h:1", "journals": "a/b", given.upper(): "7"}

    for reader in (StreamReader, BatchReader):
        with pytest.raises(ConfigError, match=re.escape(f"option {given}: {OF_SOURCE[name]}")):
            reader(options, X)


@pytest.mark.parametrize("name", sorted(OF_SINK))
def test_an_option_of_kafkas_sink_is_refused_with_what_to_give(name: str) -> None:
    """A topic that was ignored would send the rows nowhere."""
    given = name + "anything" if name.endswith(".") else name

    for writer in (SinkWriter, BatchWriter):
        with pytest.raises(ConfigError, match=re.escape(f"option {given}: {OF_SINK[name]}")):
            writer({"address": "h:1", "journal": "a/b", given: "7"}, X)


def test_what_is_given_in_place_of_an_option_exists() -> None:
    """A remedy that is refused in turn is worse than none."""
    for declined, known in ((OF_SOURCE, source_options.KNOWN), (OF_SINK, sink.KNOWN)):
        assert not {name.lower() for name in known} & set(declined)
        for text in declined.values():
            found = IN_PLACE.search(text)
            assert found is not None, text
            assert {each for each in found.groups() if each} <= set(known)
    assert not {name.lower() for name in batch_sink.KNOWN} & set(OF_SINK)
    assert instead(OF_SINK, "journal") is None


def rows_of_page() -> list[list[str]]:
    lines = [line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in cells] for cells in lines if cells[0].strip() != "Kafka"]


@pytest.mark.parametrize("row", rows_of_page(), ids=lambda row: row[0])
def test_each_row_of_the_comparison_is_tested_or_says_why_not(row: list[str]) -> None:
    """A page that compares two products is believed, so each of its claims is shown."""
    tests = {
        name
        for file in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }

    _, here, shown = row
    if shown == "-":
        assert re.search(r"\b(declined|not yet)\b[^:]*: \S", here)
    else:
        assert set(re.findall(r"`(\w+)`", shown)) <= tests
        assert "`" in shown


def test_an_error_gives_the_option_that_the_page_gives() -> None:
    """In place of a limit of a task's messages the error gave one of the whole batch, which became tiny."""
    compared = 0
    for name, here, _ in rows_of_page():
        for option in re.findall(r"`([\w.]+)`", name):
            text = OF_SOURCE.get(option.lower()) or OF_SINK.get(option.lower()) or ""
            if found := re.search(r"give option (\w+)", text):
                assert f"`{found[1]}`" in here, option
                compared += 1
    assert compared > 5
