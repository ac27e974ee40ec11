"""Services are found by their class, in the order in which roles offered them."""

import pytest
from msgspec import structs

from broadsheet.base.types import NodeId
from broadsheet.runtime.caller import CallerPorts
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.role import Services


def test_what_is_offered_is_found() -> None:
    """A later role finds what an earlier one offers; two nodes of one process share nothing."""
    services, others = Services(), Services()
    services.offer(int, 1)
    services.offer(str, "one")
    services.offer(str, "two")

    assert services.one(int) == 1
    assert services.every(str) == ["one", "two"]
    assert others.every(str) == []
    for kind in (str, float):
        with pytest.raises(ValueError, match="values to unpack"):
            services.one(kind)


async def test_a_caller_has_all_that_a_dial_needs() -> None:
    """A client has no disk and no stores; clocks, sockets and entropy it has."""
    ports = CallerPorts(crash=lambda _: None)

    assert ports.random("wire.client").random() != ports.random("wire.client").random()
    assert ports.time.now() > 0
    assert None not in (ports.timers, ports.network, ports.turn, ports.crash)


def test_a_cluster_of_one_node_is_alone() -> None:
    """It waits for nobody: its own log is authoritative."""
    one = Identity(node=NodeId("a"), cluster="c", peers={NodeId("a"): ""}, version="1")

    assert one.is_alone
    assert not structs.replace(one, peers={NodeId("a"): "", NodeId("b"): ""}).is_alone


def test_a_node_that_says_nothing_of_it_serves_no_stranger_in_plain_text() -> None:
    """Whoever forgets the field must not open doors without TLS beyond this machine."""
    one = Identity(node=NodeId("a"), cluster="c", peers={NodeId("a"): ""}, version="1")

    assert not one.is_insecure
