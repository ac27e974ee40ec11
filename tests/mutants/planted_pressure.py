"""Bugs of the kinds that readers had found missing in simulation: windows, order, slots, lives.

Each is one edit of one line. What sees them is the wiretap (`simulator/checkers/wiretap.py`), the kinds of
`simulator/workloads/wire_pressure.py`, a node that leaves for good, few places, and the ledger's rules of
control.6.
"""

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

WIRE = "broadsheet.wire"
CORE = "broadsheet.control.core"

PLANTED = [
    (
        "wire_queued_bytes_granted_again",
        "Bytes that wait to be taken are granted again (wire.6).",
        f"{WIRE}.stream:StreamEnd.grant",
        (
            "credit = window_bytes - state.untaken_bytes - state.granted",
            "credit = window_bytes - state.granted",
        ),
    ),
    (
        "wire_message_cost_not_queued",
        "What a message costs besides its bytes is not counted while it waits.",
        f"{WIRE}.connection_machine:WireConnection._on_message",
        ("state.untaken_bytes += cost", "state.untaken_bytes += cost - f.MESSAGE_COST"),
    ),
    (
        "wire_message_cost_not_charged",
        "What a message costs besides its bytes is not charged to its window.",
        f"{WIRE}.connection_machine:WireConnection._on_message",
        ("len(payload) + f.MESSAGE_COST", "len(payload)"),
    ),
    (
        "wire_final_no_after_unknown",
        "A final refusal makes a no of a call whose first attempt may have been done (C2).",
        f"{WIRE}.routed:_Attempts.after",
        (
            "elif error.retry is Retry.NEVER:\n        self._give_up(error)",
            "elif error.retry is Retry.NEVER:\n        raise error",
        ),
    ),
    (
        "wire_small_run_overtakes",
        "A run that fits is sent before larger ones that wait for room.",
        f"{WIRE}.client:ClientRunStream.submit",
        ("if self._waiting or not self._has_room(size):", "if not self._has_room(size):"),
    ),
    (
        "wire_joined_frames_at_one_place",
        "Each frame of a joined run is told where the run begins (ADR 0196).",
        f"{WIRE}.run:Run.answer",
        ("begin += size", "pass"),
    ),
    (
        "wire_joined_frames_answered_once",
        "Only the first frame of a joined run is answered (ADR 0196).",
        f"{WIRE}.run:Run.answer",
        ("for count, size in self.frames:", "for count, size in self.frames[:1]:"),
    ),
    (
        "wire_read_while_it_waits",
        "A connection is read while it waits for its turn.",
        f"{WIRE}.server_connection:ServerConnection.update_reading",
        ("not (self.is_waiting or self.backpressure.is_held)", "not self.backpressure.is_held"),
    ),
    (
        "wire_expiry_of_runs_unarmed",
        "No timer is set for the token of a caller that has RUN streams only (access.5).",
        f"{WIRE}.server_connection:ServerConnection.next_deadline",
        ("not (self.streams or self.runs)", "not self.streams"),
    ),
    (
        "wire_late_task_frees_its_slot",
        "A call whose time is up frees its slot while its handler still runs (wire.9).",
        f"{WIRE}.server_connection:RequestTasks._late",
        ("self._connection.machine.lingers(stream)", "pass"),
    ),
    (
        "wire_node_that_left_is_asked_again",
        "A caller never asks the next node.",
        f"{WIRE}.routed:Routed.turn_away_from",
        ("self._next += 1", "pass"),
    ),
    (
        "wire_displaced_stays",
        "A connection that has lost its place is not closed.",
        f"{WIRE}.server:Server._displace",
        ("connection.dismiss(message)", "pass"),
    ),
    (
        "wire_cancel_not_sent",
        "A caller that gives up does not say so.",
        f"{WIRE}.dialling_machine:DiallerConnection.cancel",
        ("self.out.append(f.frame(f.CANCEL, stream))", "pass"),
    ),
    (
        "wire_cancelled_stream_stays_open",
        "A STREAM that is cancelled stays open on the wire.",
        f"{WIRE}.client:ClientStream.cancel",
        ("self._connection.withdraw(self.stream)", "pass"),
    ),
    (
        "metastore_blank_one_votes",
        "An acceptor that holds nothing and has promised nothing votes (control.6).",
        f"{CORE}.acceptor:AcceptorMachine._refusal",
        ("return Why.BLANK", "pass"),
    ),
    (
        "metastore_votes_for_another_life",
        "An acceptor answers what the life before it was asked (control.6).",
        f"{CORE}.acceptor:AcceptorMachine._refusal",
        ("if event.acceptor != self.acceptor:", "if event.acceptor.node != self.acceptor.node:"),
    ),
    (
        "metastore_older_acceptors_asked",
        "A round goes on with the acceptors that were in force before a value that it has learnt.",
        f"{CORE}.proposer:ProposerMachine._has_moved",
        ("self.known.value.sets != self._sets or ", ""),
    ),
    (
        "metastore_forgotten_attempt_is_a_no",
        "Whoever was proposed, and is remembered no longer, is refused (control.5).",
        f"{CORE}.operation:_change",
        ("if was_proposed and not value.remembers(operation.expected + 1):", "if False:"),
    ),
]
MUTANTS = [
    Mutant(name, guard, target, edited(*edit), workload=name.partition("_")[0],
           tier=Tier.SERVICES if name.startswith("wire") else Tier.MACHINES)
    for name, guard, target, edit in PLANTED
]  # fmt: skip
