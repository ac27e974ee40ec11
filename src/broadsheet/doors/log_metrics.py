"""Log metrics: what the logs of a node's roles have written, and how long that took; read at each scrape."""

from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from broadsheet.base.time import SECOND
from broadsheet.runtime.role import Services
from broadsheet.wal.log import Log

ROOM: Final = {
    "segments": "Segment files of a log. It makes more of them as it needs them.",
    "segments_max": "Segment files of a log at most (`wal.segments_max` of its role).",
    "segments_free": "Segments of a log that can be filled next.",
    "pending_bytes": "Bytes in a log that wait for the disk.",
    "quarantined": "Streams of a log with damaged records that are not mended yet.",
}
"""The gauges of a log's status."""


class LogMetrics(Collector):
    """The metrics of all logs that roles have offered; `log` names the role."""

    def __init__(self, services: Services) -> None:
        """Read the logs among `services`."""
        self._services = services

    def collect(self) -> list[Metric]:
        """Histograms of the steps of a batch, counters of batches, records and bytes, gauges of its room."""
        steps = HistogramMetricFamily(
            "broadsheet_log_batch_seconds",
            "How long a batch of a log took: in the queue behind the batch before it, and its write with its"
            " sync. An append waits for both.",
            labels=["log", "step"],
        )
        batches = CounterMetricFamily(
            "broadsheet_log_batches",
            "Batches that a log has made durable, each with one sync.",
            labels=["log"],
        )
        records = CounterMetricFamily(
            "broadsheet_log_records", "Records of these batches: runs of appends, and others.", labels=["log"]
        )
        size = CounterMetricFamily(
            "broadsheet_log_bytes", "Bytes of these batches, headers and padding included.", labels=["log"]
        )
        for log in self._services.every(Log):
            name = log.directory.partition("/")[0]
            for step, times in log.step_times.items():
                steps.add_metric([name, step.value], times.cumulative(), times.sum_ns / SECOND)
            batches.add_metric([name], log.batch_count)
            records.add_metric([name], log.record_count)
            size.add_metric([name], log.synced_bytes)
        return [steps, batches, records, size, *self._room()]

    def _room(self) -> list[Metric]:
        gauges = {
            field: GaugeMetricFamily(f"broadsheet_log_{field}", meaning, labels=["log"])
            for field, meaning in ROOM.items()
        }
        for log in self._services.every(Log):
            status = log.status()
            for field, value in (
                ("segments", status.segment_count),
                ("segments_max", log.config.segments_max),
                ("segments_free", status.segment_free_count),
                ("pending_bytes", status.pending_bytes),
                ("quarantined", len(status.quarantined)),
            ):
                gauges[field].add_metric([log.directory.partition("/")[0]], float(value))
        return [*gauges.values()]
