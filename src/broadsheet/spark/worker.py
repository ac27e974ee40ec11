"""What the tasks of source and sink share in a Python worker process. Source: pipelines.13; measured."""

import gc
import os
from collections.abc import Mapping

from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.framing import Framing, Kind

_state = {"frozen_pid": 0}


def freeze_once() -> None:
    """Take what this worker process has imported out of the garbage collector's sight, once.

    A reused worker collects garbage after each task, and would walk all of it each time.
    """
    if _state["frozen_pid"] != os.getpid():
        gc.collect()
        gc.freeze()
        _state["frozen_pid"] = os.getpid()


def framing_of(labels: Mapping[str, str]) -> Framing:
    """The framing that a journal's labels name; JSON lines where they name none."""
    return Framing(kind=Kind(labels.get(FRAMING_LABEL, Kind.JSON_LINES.value)))
