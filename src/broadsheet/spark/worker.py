"""Worker: what the tasks of source and sink share in a Python worker of Spark. Source: pipelines.13."""

import gc
import os
from collections.abc import Mapping

from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.framing import Framing, Kind

_state = {"frozen_pid": 0}


def freeze_once() -> None:
    """Exclude everything that this process has imported from garbage collection, once.

    Spark collects garbage in a reused worker after each task, and would walk all imported modules each time.
    """
    if _state["frozen_pid"] != os.getpid():
        gc.collect()
        gc.freeze()
        _state["frozen_pid"] = os.getpid()


def framing_of(labels: Mapping[str, str]) -> Framing:
    """The framing that a journal's labels name; JSON lines if they name none."""
    return Framing(kind=Kind(labels.get(FRAMING_LABEL, Kind.JSON_LINES.value)))
