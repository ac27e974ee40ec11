"""Worker: what source and sink share in a Python worker of Spark. Source: pipelines.13."""

import gc
import os

_state = {"frozen_pid": 0}


def freeze_once() -> None:
    """Exclude everything that this process has imported from garbage collection, once.

    Spark collects garbage in a reused worker after each task, plan and commit, and would walk all imported
    modules each time: 38 ms of CPU.
    """
    if _state["frozen_pid"] != os.getpid():
        gc.collect()
        gc.freeze()
        _state["frozen_pid"] = os.getpid()
