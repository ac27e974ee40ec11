"""Bugs at the borders of the wire and of the metastore: last wakeups, first frames, least deadlines.

Each is one edit of one line or two. What sees them is `simulator/workloads/wire_borders.py` and
`wire_slow.py`, sockets that take nothing for a while (`simulator/streams.py`), sinks that answer the last run
first, and the ledger.
"""

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

WIRE = "broadsheet.wire"
CORE = "broadsheet.control.core"

PLANTED = [
    (
        "wire_small_behind_large",
        "Below the floor a small request waits behind a large frame of its caller (ADR 0152).",
        f"{WIRE}.account:Accounts._wake",
        ("if line and account.used_bytes < self.floor_bytes:", "if False:"),
    ),
    (
        "wire_one_waiter_woken",
        "Of the connections of one caller that wait, only the first goes on when there is room for all.",
        f"{WIRE}.account:Accounts._wake",
        ("waiter.ease()\n        if line and", "waiter.ease()\n            break\n        if line and"),
    ),
    (
        "wire_streams_not_resumed",
        "Who waits to send a message is not told that the socket takes bytes again.",
        f"{WIRE}.client:ClientConnection.on_writable",
        ("end.on_writable()", "pass"),
    ),
    (
        "wire_runs_not_resumed",
        "Who waits to send a run is not told that the socket takes bytes again.",
        f"{WIRE}.client:ClientConnection.on_writable",
        ("run.on_writable()", "pass"),
    ),
    (
        "wire_early_finish_lost",
        "A FINISH that comes before the handler has accepted a RUN stream is forgotten.",
        f"{WIRE}.server_connection:ServedRunStreams.accept",
        ("self.on_finish(stream)  #", "pass  #"),
    ),
    (
        "wire_unanswered_stays",
        "A stream whose task ended without an answer stays open.",
        f"{WIRE}.server_connection:ServerConnection.on_stopped",
        ("self.refuse(stream, Unknown(", "(lambda *_: None)(stream, Unknown("),
    ),
    (
        "wire_no_time_no_deadline",
        "A call that has less than a millisecond is sent as one without a deadline.",
        f"{WIRE}.client:ClientConnection._begin",
        ("max(1, left // MILLISECOND)", "left // MILLISECOND"),
    ),
    (
        "wire_cancelled_of_row_begun",
        "A call of a row that was cancelled in the same read is begun.",
        f"{WIRE}.listening_machine:ListenerConnection._on_cancel",
        ("self.withdrawn[stream] = None", "pass"),
    ),
    (
        "wire_oldest_takes_answer",
        "The oldest run takes each answer, whichever it is for.",
        f"{WIRE}.client:ClientRunStream.on_answer",
        (
            "entry = self._answers.get(event.sequence)",
            """event = msgspec.structs.replace(event, sequence=next(iter(self._answers), -1))
    entry = self._answers.get(event.sequence)""",
        ),
    ),
    (
        "metastore_told_by_counter",
        "An acceptor takes ballots of one counter for the same, and tells a reader no value.",
        f"{CORE}.acceptor:AcceptorMachine._handlers[Read]",
        ("ballot == event.known", "ballot.counter == event.known.counter"),
    ),
    (
        "metastore_refused_record_remembered",
        "A record that the log has refused is remembered.",
        f"{CORE}.acceptor:AcceptorMachine._handlers[PersistRefused]",
        (
            "self._next_offset, self.memory = pending.offset, pending.before",
            "self._next_offset = pending.offset",
        ),
    ),
    (
        "metastore_older_read_counts",
        "Who holds an older ballot counts for a read of the newest.",
        f"{CORE}.proposer:ProposerMachine._handlers[Held]",
        ("held.ballot == self.known.ballot", "held.ballot <= self.known.ballot"),
    ),
    (
        "wire_slow_frames_stay",
        "A large frame that does not come is waited for although its caller's others need the room.",
        f"{WIRE}.account:Accounts.press",
        ("other.hurry(now)", "pass"),
    ),
    (
        "wire_frame_timeout_never",
        "A frame that has begun may take for ever.",
        f"{WIRE}.server_connection:ServerConnection.on_deadline",
        ("now >= self._torn_since + self.limits.frame_timeout", "False"),
    ),
    (
        "wire_stranger_stays",
        "Who does not greet is not given up.",
        f"{WIRE}.connection_machine:WireConnection.deadline",
        ("return after(self._begun_at, self.greeting_patience())", "return None"),
    ),
    (
        "wire_first_byte_any_time",
        "Who says nothing at all has as long as who has begun to greet.",
        f"{WIRE}.listening_machine:ListenerConnection.greeting_patience",
        (
            "self.limits.greeting_timeout if self.has_heard else self.limits.first_byte_timeout",
            "self.limits.greeting_timeout",
        ),
    ),
    (
        "wire_large_reply_is_a_no",
        "A reply that the caller does not take makes a no of what was done (C2).",
        f"{WIRE}.server_connection:_too_large",
        ("if method is not None and method.capability & ~LOOKS:", "if False:"),
    ),
    (
        "wire_failed_handler_is_a_no",
        "A bug of a handler makes a no of what it has done before (C2).",
        f"{WIRE}.server_connection:ServerConnection.refuse",
        ("status, message, hint = Status.UNKNOWN", "status, message, hint = Status.INVALID_ARGUMENT"),
    ),
    (
        "metastore_flush_not_whole",
        "An acceptor that is asked for a whole record writes its promise only.",
        f"{CORE}.acceptor:AcceptorMachine._handlers[FlushAsked]",
        ("is_whole=True", "is_whole=False"),
    ),
]
MUTANTS = [
    Mutant(name, guard, target, edited(*edit), workload=name.partition("_")[0],
           tier=Tier.SERVICES if name.startswith("wire") else Tier.MACHINES)
    for name, guard, target, edit in PLANTED
]  # fmt: skip
