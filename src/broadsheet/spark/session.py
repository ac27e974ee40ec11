"""Session: makes a Spark session whose settings let a micro-batch cost milliseconds and not seconds.

Unix-domain sockets between JVM and Python save 40 ms a task. The workers run the interpreter of the driver.
A checkpoint on this machine is written without `FileContext` of Hadoop, which has no native library here and
starts `readlink` eight times for each file that it renames: 16 processes a micro-batch. The other manager of
checkpoints asks Hadoop's `FileSystem`, and starts none of these; which of two drivers with one checkpoint may
commit is decided by the COMMIT, whatever renames. Source: pipelines.11, pipelines.13.
"""

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broadsheet.spark.connection import PATIENCE_S
from broadsheet.spark.jvm import java_home
from broadsheet.spark.launchers import python_launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broadsheet.spark.progress import Progress

UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_WITHOUT_PROCESSES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def session(
    name: str = "broadsheet", *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """The running Spark session, or a new one with these settings. `format("broadsheet")` is registered.

    Args:
        name: the application's name.
        master: Spark's master address.
        conf: further settings, which override those made here.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    # Executors on other machines have the interpreter at the same path, but not the launcher script.
    python = python_launcher(sys.executable, os.environ) if master.startswith("local") else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    settings = {
        UNIX_SOCKETS: "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (settings | dict(conf or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if master.startswith("local") and spark.conf.get(CHECKPOINT_FILES, None) is None and _has_manager(spark):
        spark.conf.set(CHECKPOINT_FILES, _WITHOUT_PROCESSES)
    register(spark)
    return spark


def _has_manager(spark: "SparkSession") -> bool:
    """Whether this version of Spark has that manager of checkpoints where it is looked for."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm  # noqa: SLF001 - there is no other way to ask.
    try:
        jvm.java.lang.Class.forName(_WITHOUT_PROCESSES)
    except Py4JJavaError:
        return False
    return True


def register(spark: "SparkSession") -> None:
    """Register the format in a session that was made elsewhere, and warn if its batches will be slow."""
    from broadsheet.spark.source import BroadsheetDataSource

    spark.dataSource.register(BroadsheetDataSource)
    if spark.conf.get(UNIX_SOCKETS, "false") != "true":
        warnings.warn(
            f"{UNIX_SOCKETS} is off, which costs each Python task 40 ms: set it to true when you build the "
            "session",
            stacklevel=2,
        )


def watch(
    spark: "SparkSession", *, address: str = "", token: str = "", patience_s: float = PATIENCE_S
) -> "Progress":
    """The progress of all queries of a session that begin from now on: lag and bytes of each journal, rows.

    Args:
        address: `host:port` of a node, for `Progress.pending`.
        token: by default `BROADSHEET_TOKEN` of the environment.
        patience_s: how long `Progress.pending` waits for the node.
    """
    from broadsheet.spark.progress import Progress

    return Progress(spark, address=address, token=token, patience_s=patience_s)
