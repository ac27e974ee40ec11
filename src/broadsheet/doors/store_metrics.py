"""Store metrics: how long the calls to the fragment stores of a node took; read at each scrape."""

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from broadsheet.base.time import SECOND
from broadsheet.journal.store_health import StoreTimes
from broadsheet.runtime.role import Services


class StoreMetrics(Collector):
    """The metrics of all fragment stores together: the page needs no token, and their URLs are paths."""

    def __init__(self, services: Services) -> None:
        """Read what the journals among `services` have counted."""
        self._services = services

    def collect(self) -> list[Metric]:
        """A histogram for each sort of call."""
        family = HistogramMetricFamily(
            "broadsheet_store_call_seconds",
            "How long a fragment store took to answer a call. Calls that failed are not in it: they are"
            " broadsheet_journals_store_errors_total.",
            labels=["call"],
        )
        for times in self._services.every(StoreTimes):
            for call, seen in times.items():
                family.add_metric([call.value], seen.cumulative(), seen.sum_ns / SECOND)
        return [family]
