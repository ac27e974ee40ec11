"""Appends of every kind through kill -9 and power cuts of a real node: J1, J2, J4-J7."""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import broadsheet
from tests.journal.mixed_appends import Mix, Sent, Tally, give_up
from tests.journal.node_process import NodeProcess
from tests.support.powercut import ext4_volume

KILLS = 4
CUTS = 3
CUT_MIB = 32
"""Of the volume for each power cut: what one life appends, here and in the fragment store."""
SOAK_DEATHS = 100
ACKNOWLEDGED_PER_DEATH_MIN = 25
"""A run without losses says nothing where less was at stake."""
ANSWERS_SECONDS = 0.2
"""What a node answered before it died is read within this."""


async def deaths(node: NodeProcess, count: int, seed: int, die: Callable[[], None]) -> Tally:
    """Let `node` die `count` times under mixed appends; check what is new after each death, all at the end.

    To read everything after each death would take longer than the deaths.
    """
    mix, moments = Mix(seed), random.Random(seed)
    assert await node.start(), (node.root / "node.log").read_text()
    for _ in range(count):
        async with broadsheet.connect(node.address) as client:
            await mix.create(client)
            await mix.check(client)
            work = asyncio.create_task(mix.work(client))
            await asyncio.sleep(0.2 + moments.random())
            await asyncio.to_thread(die)
            mix.tally.deaths += 1
            await give_up(work, after=ANSWERS_SECONDS)
        assert await node.start(), (node.root / "node.log").read_text()
    async with broadsheet.connect(node.address) as client:
        await mix.check(client)
        await mix.check(client, is_whole=True)
    print(mix.tally)
    return mix.tally


async def killed(directory: Path, count: int, seed: int) -> Tally:
    """Kill -9: the page cache survives."""
    node = NodeProcess(directory)
    try:
        return await deaths(node, count, seed, node.kill)
    finally:
        node.kill()


async def cut(directory: Path, count: int, seed: int) -> Tally:
    """Power cuts: what was not synced is gone."""
    with ext4_volume(directory, size_mib=512 + CUT_MIB * count) as volume:
        node = NodeProcess(volume.path)
        os.sync()  # Its configuration must survive too: an empty file is a valid one, of another node.
        try:
            return await deaths(node, count, seed, lambda: volume.cut(node.process))
        finally:
            node.kill()


def held(tally: Tally) -> bool:
    """Whether nothing was lost, changed, doubled or revived, and enough was at stake."""
    return not tally.problems and tally.total("acknowledged") >= ACKNOWLEDGED_PER_DEATH_MIN * tally.deaths


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda parts: parts[:-1], "is lost"),
        (lambda parts: [parts[0], parts[1][:-1] + b"?"], "in part"),
        (lambda parts: [*parts, parts[0]], "and again"),
        (lambda parts: parts[::-1], "is lost or changed"),
        (lambda parts: [*parts, Mix(0).content(9)[1][:-1]], "in part"),
        (lambda parts: [b"??", *parts], "no append begins"),
    ],
)
def test_the_checker_sees(damage: Callable[[list[bytes]], list[bytes]], word: str) -> None:
    """Lost, changed, doubled, moved, torn or foreign content is a problem; sound content is none."""
    mix, name, at = Mix(1), "mixed/00", 0
    parts = []
    for _ in range(2):
        serial, content = mix.content(50)
        mix.ledgers[name].acknowledged[serial] = at, Sent.of(content)
        parts.append(content)
        at += len(content)

    mix.compare(name, b"".join(parts))
    assert not mix.tally.problems

    mix.compare(name, b"".join(damage(parts)))
    assert any(word in problem for problem in mix.tally.problems), mix.tally.problems


def test_the_checker_sees_what_was_refused_and_stands_there() -> None:
    """An append that was refused, or broken off by its client, has left nothing."""
    mix, name = Mix(1), "mixed/00"
    serial, content = mix.content(50)
    mix.ledgers[name].absent[serial] = None

    mix.compare(name, content)

    assert mix.tally.problems


async def test_mixed_appends_survive_kill_minus_nine(tmp_path: Path) -> None:
    """One node, kills at random moments: acknowledged stays, refused is absent, unknown at most once."""
    tally = await killed(tmp_path, KILLS, seed=7)

    assert held(tally), str(tally)
    assert tally.total("unknown"), "a kill that met no append in flight shows little"


@pytest.mark.needs_root
@pytest.mark.needs_ext4
async def test_mixed_appends_survive_power_cuts(tmp_path: Path) -> None:
    """The same where the page cache is lost, on ext4."""
    tally = await cut(tmp_path, CUTS, seed=8)

    assert held(tally), str(tally)


def test_the_checker_compares_what_is_new_with_what_it_read_before() -> None:
    """It reads on where it ended: an append that stands there again is seen, and one that was lost there."""
    mix, name = Mix(1), "mixed/00"
    (first, old), (second, new) = mix.content(50), mix.content(50)
    ledger = mix.ledgers[name]
    ledger.acknowledged[first] = 0, Sent.of(old)
    mix.compare(name, old)
    ledger.acknowledged[second] = len(old), Sent.of(new)

    mix.compare(name, new, ledger.read)
    assert not mix.tally.problems
    assert ledger.read == len(old + new)

    mix.compare(name, old, ledger.read)
    assert [problem for problem in mix.tally.problems if "and again" in problem]
    ledger.acknowledged[third := 77] = 0, Sent.of(b"")
    mix.compare(name, b"", ledger.read)
    assert [problem for problem in mix.tally.problems if f"append {third}, acknowledged" in problem]


@pytest.mark.soak
async def test_mixed_appends_survive_a_hundred_kills(tmp_path: Path) -> None:
    """The same, for `make soak`."""
    tally = await killed(tmp_path, SOAK_DEATHS, seed=9)

    assert held(tally), str(tally)


@pytest.mark.soak
@pytest.mark.needs_root
@pytest.mark.needs_ext4
async def test_mixed_appends_survive_a_hundred_power_cuts(tmp_path: Path) -> None:
    """The same, for `make soak`."""
    tally = await cut(tmp_path, SOAK_DEATHS, seed=10)

    assert held(tally), str(tally)
