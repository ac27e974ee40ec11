"""Metrics: one registry per node, made by the node and handed on, never prometheus-client's global one.

A domain declares all its metrics in one place at the top of its service, with units in their names
(`broadsheet_journal_append_seconds`, `..._total`). Gauges read fields of machines at scrape; machines do not
count.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of one node. Metrics are declared with its `registry`."""

    def __init__(self, *, version: str, node: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        info = Gauge("broadsheet_build_info", "Always 1.", ["version", "node"], registry=self.registry)
        info.labels(version=version, node=node).set(1)
        ProcessCollector(registry=self.registry)

    def page(self) -> bytes:
        """All metrics, in Prometheus's text format."""
        return generate_latest(self.registry)
