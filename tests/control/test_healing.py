"""A metastore whose log turns out damaged while its node runs, or that is stopped during a round."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broadsheet.base.time import MILLISECOND, Duration, WallTime
from broadsheet.base.types import Incarnation, NodeId, Offset
from broadsheet.control.core.acceptor import remembered
from broadsheet.control.core.messages import Held, Prepare
from broadsheet.control.core.settings import ProposerConfig
from broadsheet.control.core.value import NO_BALLOT, Acceptor, Ballot, acceptor_text
from broadsheet.control.majority import MajorityMetastore
from broadsheet.control.port import Versioned
from broadsheet.control.role import LOG_DIRECTORY, STREAM, MetastoreConfig, open_majority
from broadsheet.errors import ConfigError, Unknown
from broadsheet.node import NodeConfig, Settings
from broadsheet.observe.logs import Level, Logs
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.role import Ports
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import LoopTimers
from broadsheet.wal.config import KIB, MIB, WALConfig
from broadsheet.wal.log import Log
from broadsheet.wal.record import LogFull
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from tests.keyspace.test_healing import Ticking

NODE = NodeId("n1")


@asynccontextmanager
async def started(
    disk: SimDisk,
    crashes: list[BaseException],
    peers: tuple[str, ...] = ("n1",),
    config: MetastoreConfig | None = None,
) -> AsyncIterator[MajorityMetastore]:
    """A node that is its own majority, or one whose peers nobody can call."""
    scope = Scope("metastore", crash=crashes.append)
    ports = ports_of(disk, crashes)
    try:
        addresses = {NodeId(peer): "127.0.0.1:1" for peer in peers}
        config = config or MetastoreConfig()
        yield await open_majority(scope, ports, config, node=NODE, peers=addresses, cluster="c")
    finally:
        await scope.close()


def ports_of(disk: SimDisk, crashes: list[BaseException]) -> Ports:
    return Ports(
        time=Ticking(),
        timers=LoopTimers(asyncio.get_running_loop()),
        disk=disk,
        network=TCPNetwork(),
        objects=lambda _: None,  # type: ignore[arg-type,return-value]
        random=random.Random,
        crash=crashes.append,
    )


@asynccontextmanager
async def opened_log(disk: SimDisk) -> AsyncIterator[Log]:
    """The metastore's log, without its metastore."""
    crashes = list[BaseException]()
    scope, ports = Scope("log", crash=crashes.append), ports_of(disk, crashes)
    try:
        yield await Log.open(
            disk,
            LOG_DIRECTORY,
            config=MetastoreConfig().wal,
            time=ports.time,
            random=ports.random("log"),
            turn=ports.turn,
            scope=scope,
            crash=ports.crash,
        )
    finally:
        await scope.close()


def after_a_power_cut(disk: SimDisk) -> SimDisk:
    return SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))


async def test_an_acceptor_answers_nobody_before_its_life_is_durable() -> None:
    """control.6: an operator may name it at once, and after a power cut nobody would be that acceptor."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with started(disk, crashes) as metastore:
        life = metastore.acceptor.acceptor
        cut = after_a_power_cut(disk)
    async with opened_log(cut) as log:
        memory = remembered([record.payload async for record in log.records(STREAM)])

    assert memory is not None
    assert memory.acceptor == life


async def test_a_log_that_lost_an_old_record_begins_anew_from_memory() -> None:
    """W6: the next promise raised out of a performer and ended the node, which was then no member."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with started(disk, crashes) as metastore:
        found = await metastore.read()
        found = await metastore.compare_and_set(found.version, b"before")
        life = metastore.acceptor.acceptor
        metastore._log.quarantine(STREAM)

        found = await metastore.compare_and_set(found.version, b"after")
        cut = after_a_power_cut(disk)
    async with started(cut, crashes) as again:
        assert await again.read() == Versioned(b"after", found.version)
        assert again.acceptor.acceptor == life
    assert crashes == []


async def test_a_damaged_log_is_begun_anew_before_anybody_asks() -> None:
    """A crash before the next request would leave a node that is no member, with all in its memory."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with started(disk, crashes) as metastore:
        found = await metastore.read()
        found = await metastore.compare_and_set(found.version, b"kept")
        life = metastore.acceptor.acceptor
        metastore._log.quarantine(STREAM)
        for _ in range(10_000):
            await asyncio.sleep(0.001)
            if not metastore._log.is_quarantined(STREAM) and not metastore.acceptor._pending:
                break
        cut = after_a_power_cut(disk)
    async with started(cut, crashes) as again:
        assert again.acceptor.acceptor == life
        assert await again.read() == found
    assert crashes == []


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_start_that_lost_its_acceptor_logs_a_remedy_that_exists(
    is_gone: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """`replace n1 n1` needs the directory of `up`; and of a segment file that was gone nothing was logged."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with started(disk, crashes) as metastore:
        await metastore.read()
        if not is_gone:
            metastore._log._on_quarantine.clear()
            metastore._log.quarantine(STREAM)
    image = disk.state.image()
    if is_gone:
        first = min(name for name in image if name.startswith(LOG_DIRECTORY) and len(image[name]) > MIB)
        image = {name: content for name, content in image.items() if name != first}
    logs = Logs(wall=lambda: WallTime(0), level=Level.INFO, is_console=False, node="n1")
    scope = Scope("metastore", crash=crashes.append)
    ports = ports_of(SimDisk(DiskState.of(image, tuple(disk.state.directories))), crashes)
    metastore = await open_majority(
        scope, ports, MetastoreConfig(), node=NODE, peers={NODE: ""}, cluster="c", logger=logs.of("metastore")
    )
    new = metastore.acceptor
    await scope.close()

    assert new.memory.accepted is None, "a new life"
    assert f"broadsheet metastore replace n1 {acceptor_text(new.acceptor)}" in "".join(capsys.readouterr())
    assert crashes == []


async def test_a_document_that_the_log_does_not_take_ends_no_node() -> None:
    """One client's document ended every acceptor of a cluster whose log had smaller records."""
    disk, crashes = SimDisk(), list[BaseException]()
    config = MetastoreConfig(
        wal=WALConfig(initial_fill_bytes=64 * KIB, record_bytes_max=64 * KIB),
        proposer=ProposerConfig(operation_timeout=Duration(800 * MILLISECOND)),
    )
    async with started(disk, crashes, config=config) as metastore:
        found = await metastore.read()
        with pytest.raises(Unknown):
            await metastore.compare_and_set(found.version, bytes(128 * KIB))
        assert (await metastore.compare_and_set(found.version, b"small")).version == found.version + 1
    assert crashes == []


@pytest.mark.parametrize("small", [{"record_bytes_max": 4 * MIB}, {"segment_bytes": 8 * MIB}])
def test_a_log_that_takes_no_largest_document_is_refused_at_the_start(small: dict[str, int]) -> None:
    """A limit of 8 MiB that the log does not hold is no limit."""
    node = NodeConfig(id="n1", peers={"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"})
    config = MetastoreConfig(wal=WALConfig(**small))  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=f"metastore.wal.{next(iter(small))} is"):
        Settings(node=node, metastore=config)


async def test_a_log_that_has_no_room_to_begin_anew_takes_no_promise_without_its_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that begins with a promise cannot be read by the next start."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with started(disk, crashes) as metastore:
        version = (await metastore.read()).version
        log, append = metastore._log, metastore._log.append
        refused: list[int] = []

        def refusing(stream: object, parts: list[bytes], **options: object) -> Offset:
            if len(refused) < 3:
                refused.append(len(parts[0]))
                raise LogFull("planned")
            return append(stream, parts, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(log, "append", refusing)
        log.quarantine(STREAM)
        version = (await metastore.compare_and_set(version, b"after")).version
        cut = after_a_power_cut(disk)
    assert len(refused) == 3
    async with started(cut, crashes) as again:
        assert await again.read() == Versioned(b"after", version)
    assert crashes == []


async def test_a_record_behind_one_that_the_log_refused_is_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would get the offset of the one before, and the acceptor would deny what the disk holds."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with started(disk, crashes) as metastore:
        version = (await metastore.read()).version
        log, append, own = metastore._log, metastore._log.append, metastore.acceptor
        taken: list[bytes] = []

        def refusing(stream: object, parts: list[bytes], **options: object) -> Offset:
            taken.append(parts[0])
            if len(taken) == 1:
                metastore.acceptor_host.deliver(second)  # It waits in the inbox before the refusal.
                raise LogFull("planned")
            return append(stream, parts, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(log, "append", refusing)
        before = own.memory
        assert before.accepted is not None
        sets, basis = before.accepted.value.sets, before.accepted.ballot
        ballots = [Ballot(before.promised.counter + more, NodeId("z"), 1) for more in (1, 2)]
        first, second = (Prepare(NodeId("z"), each, own.acceptor, basis, sets) for each in ballots)
        metastore.acceptor_host.deliver(first)

        assert len(taken) == 1
        assert own.memory == before
        monkeypatch.undo()
        version = (await metastore.compare_and_set(version, b"after")).version
        assert await metastore.read() == Versioned(b"after", version)
    assert crashes == []


async def test_a_metastore_that_is_stopped_in_the_middle_of_a_round_stops_in_good_order() -> None:
    """Between the end of its tasks and its own close a timer, or a sync, may send: it ended the node."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with started(disk, crashes, peers=("n1", "n2", "n3")) as metastore:
        scope, is_closing = metastore._scope, asyncio.Event()

        async def ends_slowly() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                is_closing.set()
                for (
                    peer
                ) in metastore._peers:  # The last answer that founds the cluster: promises are asked for.
                    blank = Acceptor(peer, Incarnation(1))
                    held = Held(blank, metastore.proposer._round, NO_BALLOT, NO_BALLOT, None)
                    metastore.proposer_host.deliver(held)

        scope.spawn(ends_slowly(), name="slow")
        await asyncio.sleep(0)
        await scope.close()
        assert is_closing.is_set()
    assert crashes == []
