"""Workloads by name and tier. Each domain adds one line for each of its own.

Classes are named by `module:class` and imported when they are used, so that one broken domain does not stop
the others.
"""

from importlib import import_module
from typing import Final

from broadsheet.errors import ConfigError
from simulator.plan import Tier
from simulator.workload import Workload

WORKLOADS: Final[dict[tuple[str, Tier], str]] = {
    ("append", Tier.MACHINES): "simulator.workloads.append_machine:AppendWorkload",
    ("append", Tier.SERVICES): "simulator.workloads.append:AppendServiceWorkload",
    ("canary", Tier.MACHINES): "simulator.workloads.canary:CanaryWorkload",
    ("journal", Tier.CRASHES): "simulator.workloads.journal:JournalWorkload",
    ("keyspace", Tier.SERVICES): "simulator.workloads.keyspace:KeyspaceWorkload",
    ("keyspace", Tier.CRASHES): "simulator.workloads.keyspace_crashes:KeyspaceCrashes",
    ("lifecycle", Tier.CRASHES): "simulator.workloads.lifecycle:LifecycleWorkload",
    ("log", Tier.CRASHES): "simulator.workloads.log:LogWorkload",
    ("metastore", Tier.MACHINES): "simulator.workloads.metastore:MetastoreWorkload",
    ("metastore", Tier.SERVICES): "simulator.workloads.metastore_service:MetastoreServiceWorkload",
    ("metastore-file", Tier.SERVICES): "simulator.workloads.metastore_file:MetastoreFileWorkload",
    ("pipeline", Tier.MACHINES): "simulator.workloads.pipeline:PipelineWorkload",
    ("publish", Tier.SERVICES): "simulator.workloads.publish:PublishWorkload",
    ("register", Tier.MACHINES): "simulator.workloads.register:RegisterWorkload",
    ("register", Tier.SERVICES): "simulator.workloads.register_service:RegisterServiceWorkload",
    ("wire", Tier.SERVICES): "simulator.workloads.wire:WireWorkload",
}


def make(name: str, tier: Tier) -> Workload:
    """A fresh workload for one run.

    Raises:
        ConfigError: there is none of that name in that tier; the message lists what there is.
    """
    path = WORKLOADS.get((name, tier))
    if path is None:
        there = ", ".join(f"{known} (tier {at.value})" for known, at in WORKLOADS)
        raise ConfigError(f"no workload {name!r} in tier {tier.value}; there are: {there}")
    module, _, attribute = path.partition(":")
    found: Workload = getattr(import_module(module), attribute)()
    return found
