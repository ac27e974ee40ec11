"""Metrics: one registry per node, made by the node and handed on, never prometheus-client's global one.

A role names the numbers of its status that are metrics, with units (`GAUGES`); the native door has a
collector of its own. Each is read at scrape; machines do not count.
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
