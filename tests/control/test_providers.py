"""The metastore's providers on real disks and sockets: conformance, restarts, a cut off acceptor, size."""

import asyncio
import json
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from io import StringIO
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.capability import Capability
from broadsheet.access.tokens import Tokens
from broadsheet.base.time import MILLISECOND, SECOND, Duration, WallTime
from broadsheet.base.types import ClusterId, Incarnation, NodeId, Term
from broadsheet.control.core import value as module
from broadsheet.control.core.acceptor import Send
from broadsheet.control.core.document import Document, Member, Shard, decoded, encoded
from broadsheet.control.core.messages import Accept, AcceptedBallot, Held, Prepare, Read
from broadsheet.control.core.proposer import NO_SETS, State
from broadsheet.control.core.settings import ProposerConfig
from broadsheet.control.core.value import DOCUMENT_BYTES_WARN, NO_BALLOT, Acceptor, Ballot
from broadsheet.control.document_chunks import send_document
from broadsheet.control.file import FileMetastore
from broadsheet.control.majority import CALLS_PER_PEER_MAX, MajorityMetastore
from broadsheet.control.port import Metastore, Versioned
from broadsheet.control.role import MetastoreConfig
from broadsheet.control.service import CompareAndSetRequest, MetastoreService, VersionReply
from broadsheet.errors import (
    ConfigError,
    Corrupt,
    InsufficientReplicas,
    InvalidArgument,
    NotFound,
    ShuttingDown,
    Throttled,
    TooLarge,
    Unreachable,
)
from broadsheet.observe.logs import Logs
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import SystemTime
from broadsheet.wal.config import MIB
from broadsheet.wire.account import KEPT_BYTES_MIN
from broadsheet.wire.client import dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.server import Server
from tests.control.conformance import ALL
from tests.control.real import CONFIG, file_metastore, free_addresses, majority, one_node
from tests.keyspace.real import crash, ports_of
from tests.wire.harness import until

Story = Callable[[Metastore], Awaitable[None]]


@pytest.mark.parametrize("story", ALL, ids=lambda story: story.__name__)
async def test_file_conforms(story: Story, tmp_path: Path) -> None:
    """One suite for every provider (control.2)."""
    async with file_metastore(tmp_path) as metastore:
        await story(metastore)


@pytest.mark.parametrize("story", ALL, ids=lambda story: story.__name__)
async def test_majority_conforms(story: Story, tmp_path: Path) -> None:
    """One suite for every provider (control.2); asked at a node that did not found."""
    async with majority(tmp_path) as nodes:
        await story(nodes[1])


async def test_a_file_survives_a_restart(tmp_path: Path) -> None:
    """control.4: durable first."""
    async with file_metastore(tmp_path) as metastore:
        written = await metastore.compare_and_set(1, b"kept")
    async with file_metastore(tmp_path) as metastore:
        assert await metastore.read() == written


async def test_no_flipped_bit_of_a_file_is_served(tmp_path: Path) -> None:
    """W4: a damaged document says so."""
    async with file_metastore(tmp_path) as metastore:
        await metastore.compare_and_set(1, b"kept" * 50)
    path = tmp_path / "disk" / "metastore" / "document"
    good, random = path.read_bytes(), Random(3)
    for _ in range(300):
        bit = random.randrange(len(good) * 8)
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with pytest.raises(Corrupt, match=r"checksum is wrong: restore this file.* or move it away"):
            async with file_metastore(tmp_path):
                pass
    path.rename(tmp_path / "aside")
    async with file_metastore(tmp_path) as metastore:
        assert (await metastore.read()).version == 1


async def test_a_majority_goes_on_after_all_were_restarted(tmp_path: Path) -> None:
    """The acceptors' logs hold all that there is."""
    peers = dict(zip((NodeId("n1"), NodeId("n2"), NodeId("n3")), free_addresses(3), strict=True))
    async with (
        one_node(tmp_path, NodeId("n1"), peers) as first,
        one_node(tmp_path, NodeId("n2"), peers),
        one_node(tmp_path, NodeId("n3"), peers),
    ):
        written = await first.compare_and_set(1, b"kept")
    async with one_node(tmp_path, NodeId("n2"), peers) as second, one_node(tmp_path, NodeId("n3"), peers):
        assert await second.read() == written
        assert (await second.compare_and_set(2, b"more")).version == 3


async def test_an_acceptor_whose_log_lost_a_promise_is_none_of_the_cluster_any_more(tmp_path: Path) -> None:
    """control.6: the value before it is whole, but what it promised is not known: it is a new life."""
    names = [NodeId("n1"), NodeId("n2"), NodeId("n3")]
    peers = dict(zip(names, free_addresses(3), strict=True))
    async with (
        one_node(tmp_path, names[0], peers) as first,
        one_node(tmp_path, names[1], peers) as second,
        one_node(tmp_path, names[2], peers),
    ):
        await first.compare_and_set(1, b"kept")
        while "kept" not in str(second.acceptor.memory.accepted):  # noqa: ASYNC110 - behind a socket.
            await asyncio.sleep(0.01)  # A majority without it may have decided.
        before, accepted = second.acceptor.acceptor, second.acceptor.memory.accepted
        assert accepted is not None
        ballot = Ballot(second.acceptor.memory.promised.counter + 1, NodeId("promised"), 7)
        prepare = Prepare(NodeId("n9"), ballot, before, accepted.ballot, accepted.value.sets)
        second.acceptor_host.deliver(prepare)
        assert second.acceptor.memory.promised == ballot
    (path,) = [each for each in (tmp_path / "n2").rglob("segment-*.wal") if b"promised" in each.read_bytes()]
    content = bytearray(path.read_bytes())
    content[content.rindex(b"promised")] ^= 1
    path.write_bytes(content)

    async with one_node(tmp_path, names[1], peers) as again:
        assert again.acceptor.acceptor.node == before.node
        assert again.acceptor.acceptor != before
        assert again.acceptor.memory.accepted is None


async def test_a_cut_off_acceptor_is_replaced_and_comes_back_harmless(tmp_path: Path) -> None:
    """control.6, on real sockets: the old member still has its old set, and cannot decide with it."""
    names = [NodeId(f"n{n}") for n in range(1, 5)]
    addresses = dict(zip(names, free_addresses(4), strict=True))
    peers = {name: addresses[name] for name in names[:3]}
    async with (
        one_node(tmp_path, names[1], peers) as second,
        one_node(tmp_path, names[2], peers) as third,
    ):
        async with one_node(tmp_path, names[0], peers) as first:
            await first.compare_and_set(1, b"before")
            old = first.acceptor.acceptor
        async with one_node(tmp_path, names[3], peers, addresses[names[3]]) as fourth:
            await second.replace(old, fourth.acceptor.acceptor, addresses[names[3]])
            after = await third.compare_and_set(4, b"after")
            async with one_node(tmp_path, names[0], peers) as back:
                assert await back.read() == after
                sets = (await back.read_value()).sets
            assert [member.node for member in sets.old] == ["n2", "n3", "n4"]


async def test_a_wiped_founder_founds_no_second_cluster_with_nodes_that_were_replaced(
    tmp_path: Path,
) -> None:
    """Its `node.peers` still names them, and their new lives are blank: they promised it a founding.

    One wiped member of {n1, n4, n5} is within the budget. Whoever asked n1 then read an empty document.
    """
    names = [NodeId(f"n{n}") for n in range(1, 6)]
    peers = dict(zip(names, free_addresses(5), strict=True))
    founders = {name: peers[name] for name in names[:3]}
    quick = MetastoreConfig(wal=CONFIG.wal, proposer=ProposerConfig(operation_timeout=Duration(SECOND)))

    async with AsyncExitStack() as stack:

        async def start(
            name: NodeId, known: dict[NodeId, str], config: MetastoreConfig = CONFIG
        ) -> MajorityMetastore:
            return await stack.enter_async_context(one_node(tmp_path, name, known, config=config))

        n4, n5 = [await start(name, peers) for name in names[3:]]
        async with one_node(tmp_path, names[0], founders) as n1:
            async with (
                one_node(tmp_path, names[1], founders) as n2,
                one_node(tmp_path, names[2], founders) as n3,
            ):
                version = (await n1.compare_and_set(1, b"kept")).version
                for old, new in ((n2, n4), (n3, n5)):
                    version = await n1.replace(old.acceptor.acceptor, new.acceptor.acceptor, peers[new.node])
            for name in names[1:3]:
                shutil.rmtree(tmp_path / name)
            again = [await start(name, founders) for name in names[1:3]]
            for each in again:
                assert (await each.read()).document == b"kept"
        shutil.rmtree(tmp_path / names[0])
        wiped = await start(names[0], founders, quick)

        with pytest.raises(InsufficientReplicas):
            await wiped.read()
        assert await n4.read() == await n5.read() == Versioned(b"kept", version)


async def test_a_wiped_founder_founds_no_second_cluster_with_a_member_that_was_cut_off(
    tmp_path: Path,
) -> None:
    """That member knew of version 1 only, and granted the founding again, beside a node that was replaced.

    The founder is the one wiped member of {n1, n2, n4}. What n4 holds was acknowledged, and was never read
    again: whoever asked n1 read an empty document.
    """
    n1, n2, n3, n4 = names = [NodeId(f"n{n}") for n in range(1, 5)]
    peers = dict(zip(names, free_addresses(4), strict=True))
    founders = {name: peers[name] for name in names[:3]}
    quick = MetastoreConfig(wal=CONFIG.wal, proposer=ProposerConfig(operation_timeout=Duration(SECOND)))

    async with AsyncExitStack() as stack:

        async def start(
            name: NodeId, known: dict[NodeId, str], config: MetastoreConfig = CONFIG, *, deaf_to: str = ""
        ) -> MajorityMetastore:
            node = one_node(tmp_path, name, known, config=config, deaf_to=deaf_to)
            return await stack.enter_async_context(node)

        spare = await start(n4, peers)
        async with (
            one_node(tmp_path, n1, founders) as founder,
            one_node(tmp_path, n3, founders) as replaced,
        ):
            async with one_node(tmp_path, n2, founders, deaf_to="metastore.accept") as blank:
                blank.proposer_host.close()  # A read of half a founding would have it finished, here as well.
                await founder.read()
            cut_off = await start(n2, founders, deaf_to="metastore.accept")
            async with asyncio.timeout(30):
                while cut_off.proposer.known is None:  # noqa: ASYNC110 - a machine has no event to wait for.
                    await asyncio.sleep(0.01)
            cut_off.proposer_host.close()
            await founder.compare_and_set(1, b"kept")
            version = await founder.replace(replaced.acceptor.acceptor, spare.acceptor.acceptor, peers[n4])
        assert cut_off.proposer.known.value.version == 1
        assert cut_off.acceptor.memory.accepted is None
        for name in (n1, n3):
            shutil.rmtree(tmp_path / name)
        await start(n3, founders)
        wiped = await start(n1, founders, quick)

        with pytest.raises(InsufficientReplicas):
            await wiped.read()
        held = spare.acceptor.memory.accepted
        assert held is not None
        assert (held.value.version, held.value.document) == (version, b"kept")


async def test_a_new_member_votes_for_the_change_that_brings_it(tmp_path: Path) -> None:
    """Its address stands in the value that is proposed: without its vote the first try was always unknown."""
    n1, n2, n3, n4 = names = [NodeId(f"n{n}") for n in range(1, 5)]
    peers = dict(zip(names, free_addresses(4), strict=True))
    founders = {name: peers[name] for name in names[:3]}
    async with (
        one_node(tmp_path, n1, founders) as first,
        one_node(tmp_path, n3, founders) as third,
        one_node(tmp_path, n4, peers) as added,
    ):
        async with one_node(tmp_path, n2, founders):
            await first.compare_and_set(1, b"before")
        version = await first.replace(third.acceptor.acceptor, added.acceptor.acceptor, peers[n4])
        assert version == 4
        assert await added.read() == Versioned(b"before", version)


async def test_a_wiped_founder_founds_again_where_nobody_else_has_accepted_its_founding(
    tmp_path: Path,
) -> None:
    """The other node knew of version 1, and refused the founding, until somebody thought of restarting it.

    It holds nothing, and version 1 names its acceptor: its promise is worth what it was the first time.
    """
    n1, n2 = NodeId("n1"), NodeId("n2")
    first, later, other = free_addresses(3)
    quick, slow = (
        MetastoreConfig(wal=CONFIG.wal, proposer=ProposerConfig(operation_timeout=Duration(seconds * SECOND)))
        for seconds in (1, 60)
    )
    peers = {n1: first, n2: other}

    async with one_node(tmp_path, n2, peers, deaf_to="metastore.accept", config=slow) as second:
        async with one_node(tmp_path, n1, peers, deaf_to="metastore.prepare", config=quick) as founder:
            async with asyncio.timeout(30):
                while second.proposer.known is None:  # noqa: ASYNC110 - a machine has no event to wait for.
                    await asyncio.sleep(0.01)
            lost = founder.acceptor.acceptor
        shutil.rmtree(tmp_path / n1)
        assert second.acceptor.memory.accepted is None
        server = Server(
            ports_of(tmp_path / "door"),
            scope := Scope("door", crash=crash),
            MetastoreService(n2, second).methods(),
            authorizer=Authorizer(None, time=SystemTime()),
            limits=WireLimits(),
            node=n2,
            cluster="test",
        )
        await server.listen(later)
        scope.defer(server.close)
        try:
            async with one_node(tmp_path, n1, {n1: first, n2: later}) as again:
                value = await again.read_value()
                assert value.sets.old == (again.acceptor.acceptor, second.acceptor.acceptor)
                assert lost != again.acceptor.acceptor
                assert (await second.read()).version == 1
        finally:
            await scope.close()


async def test_documents_that_do_not_end_have_a_share_and_leave_others_theirs(tmp_path: Path) -> None:
    """A client that began 200 of them, and ended none, had the node keep 1.6 GB for it, without end."""
    ports, scope = ports_of(tmp_path), Scope("n1", crash=crash)
    limits = WireLimits(reserve_bytes=2 * MIB, node_in_flight_bytes_max=12 * MIB)
    async with file_metastore(tmp_path) as metastore:
        server = Server(
            ports,
            scope,
            MetastoreService(NodeId("n1"), metastore).methods(),
            authorizer=Authorizer(None, time=SystemTime()),
            limits=limits,
        )
        address = await server.listen("127.0.0.1:0")
        scope.defer(server.close)
        try:
            greedy = await dial(ports, address, limits=WireLimits())
            prepare = Prepare(
                NodeId("n2"), NO_BALLOT, Acceptor(NodeId("n1"), Incarnation(1)), NO_BALLOT, NO_SETS
            )
            begun = [await greedy.open("metastore.prepare", prepare) for _ in range(15)]
            begun += [
                await greedy.open("metastore.compare_and_set", CompareAndSetRequest(1)) for _ in range(15)
            ]
            for stream in begun:
                with suppress(Throttled):
                    await send_document(stream, bytes(2 * MIB))

            def left() -> int:
                return [each.replied.done() for each in begun].count(False)

            await until(lambda: server.accounts.kept_bytes == 2 * MIB * left())
            assert server.accounts.kept_bytes <= KEPT_BYTES_MIN // 2
            other = await dial(ports, address, limits=WireLimits())
            change = await other.open("metastore.compare_and_set", CompareAndSetRequest(1))
            await send_document(change, bytes(2 * MIB))
            assert (await change.reply(VersionReply)).version == 2
            for stream in begun:
                stream.cancel()
            await until(lambda: not server.accounts.kept_bytes)
        finally:
            await scope.close()


async def test_what_is_nobodys_acceptor_takes_no_place(tmp_path: Path) -> None:
    """A mistyped one was a member that is down for good: the next failure stopped the cluster."""
    async with majority(tmp_path) as (first, second, third):
        before = await first.read_value()
        mistyped = Acceptor(third.node, Incarnation(third.acceptor.acceptor.incarnation ^ 1))
        own = Acceptor(first.node, Incarnation(1))
        absent = Acceptor(NodeId("n4"), Incarnation(1))
        (nowhere,) = free_addresses(1)
        for removed, added, address, error in (
            (third.acceptor.acceptor, mistyped, "", NotFound),
            (first.acceptor.acceptor, own, "", NotFound),
            (second.acceptor.acceptor, absent, nowhere, Unreachable),
            (second.acceptor.acceptor, absent, "", InvalidArgument),
        ):
            with pytest.raises(error):
                await first.replace(removed, added, address)

        assert await second.read_value() == before


def test_10_000_shards_fit_below_the_warning() -> None:
    """control.1: "10,000 shards fit, measured": three members each, with terms and attempts (node.6)."""
    shards = tuple(
        Shard(
            id=n,
            namespace="default",
            begin=n * 429_496,
            end=(n + 1) * 429_496,
            ensemble=tuple(Member(NodeId(f"node-{m}"), Incarnation(1 << 61)) for m in range(3)),
            term=Term(12),
            attempt=f"node-1.{1 << 61:x}.{n}",
            leader=NodeId("node-1"),
        )
        for n in range(10_000)
    )
    document = Document(cluster=ClusterId(7), shards=shards)
    content = encoded(document)

    assert decoded(content) == document
    assert len(content) < DOCUMENT_BYTES_WARN, f"{len(content)} bytes"


async def test_half_of_the_limit_is_warned_of_once(tmp_path: Path) -> None:
    """control.1: "refused above, warned at half"; again only after it was smaller."""
    page = StringIO()
    logger = Logs(page, wall=lambda: WallTime(0), is_console=False).of("metastore")
    metastore = await FileMetastore.open(ports_of(tmp_path).disk, b"", crash=crash, logger=logger)
    large = bytes(DOCUMENT_BYTES_WARN)
    for version, document in enumerate((b"", large[1:], large, large, b"", large), start=1):
        await metastore.compare_and_set(version, document)

    lines = [json.loads(line) for line in page.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["metastore.document_large"] * 2
    assert (lines[0]["level"], lines[0]["document_bytes"]) == ("warning", DOCUMENT_BYTES_WARN)


async def test_too_many_clients_do_not_end_a_node_that_begins(tmp_path: Path) -> None:
    """Its own first read is throttled like any other; that was taken for a bug, and ended the process."""
    config = structs.replace(
        CONFIG,
        proposer=ProposerConfig(
            operation_timeout=Duration(200 * MILLISECOND),
            queue_max=1,
            resend_after=Duration(50 * MILLISECOND),
            backoff_max=Duration(50 * MILLISECOND),
        ),
    )
    peers = dict(zip((NodeId("n1"), NodeId("n2")), free_addresses(2), strict=True))
    async with one_node(tmp_path, NodeId("n1"), peers, config=config) as first:
        said = dict.fromkeys((InsufficientReplicas, Throttled), 0)
        while min(said.values()) < 4:
            try:
                await first.read()
            except (InsufficientReplicas, Throttled) as error:
                said[type(error)] += 1
                await asyncio.sleep(0.01)
        async with one_node(tmp_path, NodeId("n2"), peers, config=config) as second:
            await second.begin()
            assert (await second.read()).version == 1


async def test_a_missing_token_file_ends_no_node_and_is_looked_for_again(tmp_path: Path) -> None:
    """A secret may be mounted late, or renewed by removing and writing it (wire.9)."""
    token = tmp_path / "token"
    config = structs.replace(CONFIG, token_file=str(token))
    peers = dict(zip((NodeId("n1"), NodeId("n2")), free_addresses(2), strict=True))
    async with (
        one_node(tmp_path, NodeId("n1"), peers, config=config) as first,
        one_node(tmp_path, NodeId("n2"), peers) as second,
    ):
        with pytest.raises(ConfigError, match=r"token cannot be read: .*No such file.*put the token there"):
            await first._pool.connection(peers[NodeId("n2")])
        token.write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match="cannot be read"):
            await first._pool.connection(peers[NodeId("n2")])
        token.write_text("renewed")
        await second.begin()
        assert await first.read() == await second.read()


class LaterTime(SystemTime):
    """Real time, and a wall clock that a test sets forward."""

    def __init__(self) -> None:
        super().__init__()
        self.hours = 0
        now = self.wall
        self.wall = lambda: WallTime(now() + self.hours * 3600 * SECOND)


async def test_peers_go_on_with_the_token_that_the_file_has_now(tmp_path: Path) -> None:
    """Connections kept the token of their dial: an hour later no peer answered any more, until a restart."""
    time, tokens = LaterTime(), Tokens([bytes(32)], audience="test")
    file = tmp_path / "token"

    def write(capability: Capability) -> None:
        file.write_text(tokens.sign(capability, now=time.wall(), lifetime=Duration(3600 * SECOND)))

    proposer = ProposerConfig(operation_timeout=Duration(5 * SECOND))
    config = structs.replace(CONFIG, token_file=str(file), proposer=proposer)
    peers = dict(zip((NodeId("n1"), NodeId("n2")), free_addresses(2), strict=True))
    authorizer = Authorizer(tokens, time=time)
    write(Capability.REPLICATE)
    async with (
        one_node(tmp_path, NodeId("n1"), peers, config=config, authorizer=authorizer) as first,
        one_node(tmp_path, NodeId("n2"), peers, config=config, authorizer=authorizer) as second,
    ):
        await second.begin()
        assert (await first.read()).version == 1

        time.hours = 2
        write(Capability.REPLICATE)
        assert (await first.compare_and_set(1, b"an hour later")).version == 2

        time.hours = 4
        write(Capability.READ)
        with pytest.raises(InsufficientReplicas):
            await first.read()
        write(Capability.REPLICATE)
        assert (await first.read()).version == 2


async def test_a_document_that_was_replaced_is_kept_by_nobody(tmp_path: Path) -> None:
    """Each write of a large document held three of them for 256 steps: sixty of 8 MiB were 1.5 GiB a node."""
    async with majority(tmp_path, 1) as (metastore,):
        version = (await metastore.read()).version
        first = bytes(1 << 20)
        version = (await metastore.compare_and_set(version, first)).version
        for n in range(3):
            version = (await metastore.compare_and_set(version, b"%d" % n)).version

        held = sys.getrefcount(first)
    assert held == 2, "this test's own, and the call's"


async def test_attempts_are_unique_over_boots(tmp_path: Path) -> None:
    """control.5: "a unique attempt id": a restarted node never takes the name of what it did before."""
    peers = {NodeId("n1"): free_addresses(1)[0], NodeId("n2"): free_addresses(1)[0]}
    version = 1
    async with one_node(tmp_path, NodeId("n2"), peers):
        for _ in range(3):
            async with one_node(tmp_path, NodeId("n1"), peers) as first:
                for _ in range(3):
                    version = (await first.compare_and_set(version, b"%d" % version)).version
                attempts = [each.attempt for each in (await first.read_value()).attempts]

    assert len(attempts) == len(dict.fromkeys(attempts)) == 10
    assert len(dict.fromkeys(attempt.rpartition(".")[0] for attempt in attempts[1:])) == 3


async def test_a_closed_metastore_says_that_it_stops(tmp_path: Path) -> None:
    """Who asks a node that stops must not wait for it; nothing was sent, so nothing is in doubt (C2)."""
    async with majority(tmp_path) as nodes:
        version = (await nodes[0].read()).version
        await nodes[0].close()

        with pytest.raises(ShuttingDown, match="is stopping: nothing was sent"):
            await nodes[0].compare_and_set(version, b"x")


async def test_a_ballot_that_somebody_used_before_its_proposer_ends_no_node(tmp_path: Path) -> None:
    """access.7: one message of whoever may speak as a peer ended the process at its next change."""
    async with majority(tmp_path) as (first, second, _):
        await first.compare_and_set(1, b"kept")
        address, own = first.proposer.address(first.node), first.acceptor.acceptor
        held = await second._carry(address, Read(NodeId("x"), (1, 0), NO_BALLOT))
        assert isinstance(held, Held)
        assert held.value is not None
        taken = structs.replace(held.promised, counter=held.promised.counter + 1)
        accept = Accept(NodeId("x"), taken, own, held.value, held.ballot, held.value.sets)
        assert await second._carry(address, accept) == AcceptedBallot(own, taken)

        assert (await first.compare_and_set(2, b"more")).version == 3
        assert (await second.read()).document == b"more"


async def test_calls_to_a_peer_are_counted_back_one_by_one(tmp_path: Path) -> None:
    """The limit of calls per peer holds only while each counts once."""
    async with majority(tmp_path) as nodes:
        for _ in range(5):
            await nodes[0].read()
        async with asyncio.timeout(30):
            while any(nodes[0]._calls.values()):
                assert min(nodes[0]._calls.values()) >= 0
                await asyncio.sleep(0.01)

        assert set(nodes[0]._calls.values()) == {0}


async def test_a_silent_peer_holds_no_more_messages_than_the_limit(tmp_path: Path) -> None:
    """Each holds a document until keepalives find out, which takes 40 s. No test noticed a missing limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # The kernel takes connections, and nobody reads.
        n2 = NodeId("n2")
        peers = {NodeId("n1"): free_addresses(1)[0], n2: f"127.0.0.1:{silent.getsockname()[1]}"}
        async with one_node(tmp_path, NodeId("n1"), peers) as metastore:
            for number in range(2 * CALLS_PER_PEER_MAX):
                metastore._send_request(Send(n2, Read(NodeId("n1"), (1, number), NO_BALLOT)))

            assert metastore._calls[n2] == CALLS_PER_PEER_MAX


async def test_a_change_that_is_half_done_is_finished_without_the_member_that_joins(tmp_path: Path) -> None:
    """It is in already, and may be what is down by now: it was not asked again, and no test held that."""
    async with majority(tmp_path) as (first, _, third):
        member = third.acceptor.acceptor
        assert member in (await first.read_value()).sets.members()
        await third.close()  # It answers nobody.

        await first._must_live(member, free_addresses(1)[0])


def test_a_document_of_the_greatest_size_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte more is refused, before anybody proposes it."""
    document = Document(ClusterId(7))
    size = len(encoded(document))
    monkeypatch.setattr(module, "DOCUMENT_BYTES_MAX", size)

    assert decoded(encoded(document)) == document
    monkeypatch.setattr(module, "DOCUMENT_BYTES_MAX", size - 1)
    with pytest.raises(TooLarge, match=f"has {size} bytes"):
        encoded(document)


async def test_an_answer_to_a_caller_that_was_cancelled_in_the_same_turn_ends_no_node(tmp_path: Path) -> None:
    """control.4: the answer finds a caller that is cancelled and has not run since then."""
    (address,) = free_addresses(1)
    node = NodeId("n1")
    async with one_node(tmp_path, node, {node: address}) as metastore:
        version = (await metastore.read()).version
        writing = asyncio.create_task(metastore.compare_and_set(version, b"x"))
        while metastore.proposer.state is not State.ACCEPTING:  # noqa: ASYNC110 - a disk is waited for.
            await asyncio.sleep(0)
        writing.cancel()
        done = AcceptedBallot(metastore.acceptor.acceptor, metastore.proposer.ballot)
        metastore.proposer_host.deliver(done)

        await asyncio.wait([writing])
        assert writing.cancelled()
        assert await metastore.read() == Versioned(b"x", version + 1)


async def test_a_call_that_was_answered_or_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    """A node that lives for months answers millions of them."""
    async with majority(tmp_path) as nodes:
        version = (await nodes[1].read()).version
        for at in range(3):
            version = (await nodes[at].compare_and_set(version, b"%d" % at)).version
        asked = nodes[0].ask_acceptor(Read(NodeId("n2"), (1, 1), NO_BALLOT))
        giving_up = asyncio.create_task(asked)
        giving_up.cancel()
        await asyncio.wait([giving_up])

        while any(node._asked for node in nodes):  # noqa: ASYNC110 - calls of other nodes are still answered.
            await asyncio.sleep(0.01)
