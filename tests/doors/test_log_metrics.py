"""The metrics of a log tell what its batches did, and an append pays nothing for them (code.18)."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import broadsheet
from broadsheet.base.time import SECOND, Duration
from broadsheet.doors.status import Status
from broadsheet.observe.metrics import Metrics
from broadsheet.wal.step_times import BUCKETS, StepTimes
from tests.doors.test_http import door


@given(st.lists(st.integers(0, 3 * BUCKETS[-1]) | st.sampled_from(BUCKETS)))
def test_a_bucket_counts_all_that_took_no_longer(durations: list[int]) -> None:
    """Oracle: the durations, counted one by one; an end belongs to its bucket (`le`)."""
    times = StepTimes()
    for each in durations:
        times.seen(Duration(each))

    *finite, (last, count) = times.cumulative()
    assert (last, count) == ("+Inf", len(durations))
    assert times.sum_ns == sum(durations)
    assert finite == [(str(end / SECOND), sum(each <= end for each in durations)) for end in BUCKETS]


async def test_each_batch_of_a_log_is_counted_once_in_every_step(tmp_path: Path) -> None:
    """An operator who sees slow appends asks whether they queue or sync."""
    async with door(tmp_path) as (_, _, node):
        address = node.services.one(Status).read().addresses["native"]
        async with broadsheet.connect(address) as client:
            await client.journals.create("metrics-of/a")
            for number in range(20):
                await client.journals.append("metrics-of/a", b"%d" % number * 1000)
        page = node.services.one(Metrics).page().decode()

    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    for log in ("journals", "keyspace"):
        batches = found["broadsheet_log_batches_total", log]
        assert found["broadsheet_log_batch_seconds_count", log, "queue"] == batches
        assert found["broadsheet_log_batch_seconds_count", log, "sync"] == batches
        assert found["broadsheet_log_batch_seconds_sum", log, "sync"] > 0
    assert found["broadsheet_log_batches_total", "journals"] >= 20
    assert found["broadsheet_log_records_total", "journals"] >= 20
    assert found["broadsheet_log_bytes_total", "journals"] > 20_000
    assert found["broadsheet_journals_store_errors_total",] == 0
