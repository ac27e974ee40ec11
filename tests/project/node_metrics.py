"""The metrics of a node: what its own `/metrics` page lists, read from a node that was just started."""

import asyncio
import io
import tempfile
from functools import cache
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from broadsheet.control import role as metastore_role
from broadsheet.doors.native.door import NativeConfig
from broadsheet.node import Node, NodeConfig, Settings
from broadsheet.observe.logs import Logs
from broadsheet.observe.metrics import Metrics
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.process import end_process
from broadsheet.runtime.system import system_ports

Row = tuple[str, str, str]
"""A metric's name, its type, and what it means."""


@cache
def node_metrics() -> tuple[Row, ...]:
    """The metrics of a node that is alone, and of the metastore of a node among peers."""
    families = text_string_to_metric_families(_text())
    rows = [
        (f"{each.name}_total" if each.type == "counter" else each.name, each.type, each.documentation)
        for each in families
        if not each.name.endswith("_created")
    ]
    rows += [
        (f"broadsheet_metastore_{field}", "gauge", f"{meaning} Only where the node has peers.")
        for field, meaning in metastore_role.GAUGES.items()
    ]
    return tuple(sorted(rows))


@cache
def node_labels() -> frozenset[tuple[str, str, str]]:
    """The series of a node that is alone: each sample's name with each of its labels, and the value."""
    return frozenset(
        (sample.name, label, value)
        for family in text_string_to_metric_families(_text())
        for sample in family.samples
        for label, value in sample.labels.items()
    )


@cache
def _text() -> str:
    return asyncio.run(_page())


async def _page() -> str:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "data"
        root.mkdir(mode=0o700)
        settings = Settings(
            node=NodeConfig(id="n1", cluster="c1"),
            native=NativeConfig(address="127.0.0.1:0"),
            http=msgspec.structs.replace(Settings().http, address="127.0.0.1:0"),
        )
        ports = system_ports(LocalDisk(root), crash=end_process)
        node = Node(settings, ports, logs=Logs(io.StringIO(), wall=ports.time.wall, is_console=False))
        await node.start()
        try:
            return node.services.one(Metrics).page().decode()
        finally:
            await node.close()
