"""Worker: what source and sink share in a Python worker of Spark. Source: pipelines.13."""

import gc
import sys

_state = {"frozen_modules": 0}


def freeze_imported() -> None:
    """Exclude from garbage collection what this process has imported, whenever it has imported more.

    Spark collects garbage in a reused worker after each task, plan and commit, and would walk all imported
    modules each time: 38 ms of CPU. The first task imports a third of them after it has begun, because
    pyarrow takes in pandas when it is given its first values.
    """
    if _state["frozen_modules"] == len(sys.modules):
        return
    _state["frozen_modules"] = len(sys.modules)
    gc.collect()
    gc.freeze()
