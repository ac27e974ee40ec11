"""Every disk that a power cut may leave of a short history is recovered to what was promised (W1, W2).

At least 10,000 different states per mix of operations; the judge is in `histories`.
"""

import asyncio

import pytest

from simulator.crashstates import crash_states
from simulator.disk_state import Tape
from tests.wal.harness import abandon, open_log
from tests.wal.histories import MIXES, TINY, read_image, run_mix, search

ATOMS_MAX = {
    "appends": 11,
    "truncations": 10,
    "branches_in_a_batch": 11,
    "branches_inside_runs": 11,
    "runs": 11,
    "runs_and_copies": 10,
    "recycling": 9,
    "copying": 9,
    "trims_within_a_turn": 10,
    "trims_behind_a_roll": 10,
    "restarts": 10,
    "resets": 11,
    "resets_behind_others": 11,
    "drops": 11,
    "raised_and_trimmed": 10,
    "trimmed_and_reset": 10,
    "trimmed_and_dropped": 10,
    "resting": 11,
}


@pytest.mark.parametrize("mix", MIXES)
def test_no_crash_state_loses_or_revives_anything(mix: str) -> None:
    """Power may fail at any write, and keep any part of what was not synced."""
    count, wrong = search(mix, atoms_max=ATOMS_MAX[mix], states_max=10_100)

    assert wrong == []
    assert count >= 10_000, f"{mix} has {count} states only"


@pytest.mark.parametrize("mix", ["truncations", "copying", "restarts"])
def test_a_crash_within_recovery_is_recovered_too(mix: str) -> None:
    """W3: recovery itself is cut by the power, at every point, and the next one finds the same."""
    history = run_mix(mix)
    states = [state for state in crash_states(history.tape, atoms_max=3) if history.judge(state) is None]
    nested = 0
    for state in states[:: max(1, len(states) // 32)]:
        disk = state.disk()
        first = {s: v.held for s, v in read_image(state.image).items()}
        tape = disk.state.tape = Tape()
        for name in disk.state.files:  # What is there already is the beginning of the recorded history.
            replayed(tape, disk, name)
        tape.mark("there")

        async def recover() -> None:
            bench = await open_log(disk, config=TINY, seed=7)  # noqa: B023
            await abandon(bench)

        asyncio.run(recover())
        for after in crash_states(tape, atoms_max=4):
            if after.marks:
                again = {s: v.held for s, v in read_image(after.image).items()}
                # A stream of which a torn batch alone tells is gone once another torn one stands there.
                assert {s: [h.payload for h in held] for s, held in again.items() if held} == {
                    s: [h.payload for h in held] for s, held in first.items() if held
                }
                nested += 1
    assert nested > 500


def replayed(tape: Tape, disk: object, name: str) -> None:
    """Have `tape` begin with a file that is there already."""
    from simulator.disk import SimDisk
    from simulator.disk_state import Write, parent

    assert isinstance(disk, SimDisk)
    inode = disk.state.files[name]
    tape.steps += [
        ("make_dir", parent(name)),
        ("create", (name, inode.number)),
        ("change", (inode.number, Write(0, bytes(inode.durable)))),
        ("sync", inode.number),
        ("sync_dir", parent(name)),
    ]
