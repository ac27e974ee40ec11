"""Workloads by name and tier. Each domain adds one line for each of its own.

Classes are named by `module:class` and imported when asked for, so that one broken domain does not stop the
others.
"""

from importlib import import_module
from typing import Final

from broadsheet.errors import ConfigError
from broadsheet.sim.plan import Tier
from broadsheet.sim.workload import Workload

WORKLOADS: Final[dict[tuple[str, Tier], str]] = {
    ("append", Tier.MACHINES): "broadsheet.sim.workloads.append_machine:AppendWorkload",
    ("append", Tier.SERVICES): "broadsheet.sim.workloads.append:AppendServiceWorkload",
    ("canary", Tier.MACHINES): "broadsheet.sim.workloads.canary:CanaryWorkload",
    ("keyspace", Tier.SERVICES): "broadsheet.sim.workloads.keyspace:KeyspaceWorkload",
    ("log", Tier.CRASHES): "broadsheet.sim.workloads.log:LogWorkload",
    ("metastore", Tier.MACHINES): "broadsheet.sim.workloads.metastore:MetastoreWorkload",
    ("metastore", Tier.SERVICES): "broadsheet.sim.workloads.metastore_service:MetastoreServiceWorkload",
    ("metastore-file", Tier.SERVICES): "broadsheet.sim.workloads.metastore_file:MetastoreFileWorkload",
    ("pipeline", Tier.MACHINES): "broadsheet.sim.workloads.pipeline:PipelineWorkload",
    ("register", Tier.MACHINES): "broadsheet.sim.workloads.register:RegisterWorkload",
    ("register", Tier.SERVICES): "broadsheet.sim.workloads.register_service:RegisterServiceWorkload",
    ("wire", Tier.SERVICES): "broadsheet.sim.workloads.wire:WireWorkload",
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
