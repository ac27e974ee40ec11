"""Bugs of the kinds that had escaped simulation, planted again and in variants.

Each is one edit of one line or two. Their faults and checkers did not exist when the kind was first planted
(README): streams that are refused with work on its way, callers that share a budget, a peer that stops
reading on a silent node, calls that are alike under a short share, and an end at an acceptor's birth.
"""

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited

WIRE = "broadsheet.wire"
CONTROL = "broadsheet.control"

PLANTED = [
    (
        "wire_runs_refused_with_their_stream",
        "Runs that are on their way when their stream is refused are refused with it (C2).",
        f"{WIRE}.client:ClientRunStream.on_end",
        (
            'undecided = Unknown(f"the run stream ended before the answer came: {self._error}")',
            "undecided = self._error",
        ),
        "wire",
    ),
    (
        "wire_one_caller_without_room_stops_the_line",
        "A caller without room keeps the callers behind it waiting.",
        f"{WIRE}.account:Accounts._wake",
        ("break", "return"),
        "wire",
    ),
    (
        "wire_promised_room_leaks",
        "A sender that is cancelled just as it gets room keeps it.",
        f"{WIRE}.client:ClientRunStream._wait",
        ("elif not waiter.cancelled():", "elif waiter.cancelled():"),
        "wire",
    ),
    (
        "wire_parked_for_ever",
        "Streams whose peer reads again are put in line, and nobody looks at the line.",
        f"{WIRE}.send_shares:SendShares.resume",
        ("self._arm()", "pass"),
        "wire",
    ),
    (
        "wire_rest_of_a_read_lost",
        "What was read behind a row of calls that has to wait is dropped.",
        f"{WIRE}.server_connection:ServerConnection.on_events",
        ("[left, *events[number:]]", "[left]"),
        "wire",
    ),
    (
        "wire_one_call_of_a_row_skipped",
        "Where the share of a turn ends within a row, one call is passed over.",
        f"{WIRE}.server_connection:_serve_row",
        ("return row.part(done)", "return row.part(done + 1)"),
        "wire",
    ),
    (
        "wire_no_after_unknown",
        "A hint in the end makes a no of a call whose first attempt may have been done (C2).",
        f"{WIRE}.routed:_Attempts._give_up",
        (
            "not isinstance(error, Unknown):",
            "isinstance(error, Refused) and error.retry is not Retry.ELSEWHERE:",
        ),
        "wire",
    ),
    (
        "wire_broken_stream_ends_well",
        "A stream that breaks while messages wait to be taken ends as if all had come.",
        f"{WIRE}.stream:StreamEnd.on_end",
        (
            "self._error = self._error or error",
            "self._error = self._error or (None if self._queue else error)",
        ),
        "wire",
    ),
    (
        "wire_sink_not_told_of_the_end",
        "The sink of a RUN stream whose connection is lost never hears of it.",
        f"{WIRE}.server_connection:ServedRunStreams.drop",
        ("end.sink.on_end()", "pass"),
        "wire",
    ),
    (
        "wire_bytes_of_the_lost_leak",
        "Runs that are answered after their connection is lost keep their bytes.",
        f"{WIRE}.server_connection:ServedRunStreams._on_answered",
        (
            "connection.backpressure.give(run.held_bytes)",
            "connection.is_lost or connection.backpressure.give(run.held_bytes)",
        ),
        "wire",
    ),
    (
        "wire_expired_token_goes_on",
        "Streams that are open when their token expires go on.",
        f"{WIRE}.server_connection:ServerConnection.on_deadline",
        ("self._expel()", "pass"),
        "wire",
    ),
    (
        "wire_held_connection_looks_silent",
        "A connection that is not read is given up, since its peer says nothing.",
        f"{WIRE}.server_connection:Backpressure.keep_alive",
        ("connection.machine.heard_at, connection.machine.misses = now, 0", "pass"),
        "wire",
    ),
    (
        "metastore_answers_before_its_life_is_durable",
        "An acceptor serves before the record of its birth is durable (control.6).",
        f"{CONTROL}.role:_memory",
        ("await made_durable(place)", "place(lambda: None)"),
        "metastore.2",
    ),
    (
        "metastore_file_shows_what_is_not_durable",
        "Provider `file` shows a version before the directory is synced (control.4).",
        f"{CONTROL}.file:FileMetastore._replace",
        (
            "    while True:\n",
            "    self._current = following\n    while True:\n",
        ),
        "metastore-file",
    ),
    (
        "metastore_replacement_shrinks_the_set",
        "An acceptor replaces another although it is one already, so that one fewer is left.",
        f"{CONTROL}.core.operation:_replace",
        ("if added is not None and added in sets.old:", "if False:"),
        "metastore",
    ),
    (
        "metastore_pending_change_forgotten",
        "A change of members starts from the old set although another change is pending.",
        f"{CONTROL}.core.operation:_replace",
        ("if sets.is_joint:", "if sets.is_joint and operation.removed is None:"),
        "metastore",
    ),
]
MUTANTS = [
    Mutant(name, guard, target, edited(*edit), workload=workload.partition(".")[0],
           tier=Tier.SERVICES if workload in ("wire", "metastore.2", "metastore-file") else Tier.MACHINES)
    for name, guard, target, edit, workload in PLANTED
]  # fmt: skip
