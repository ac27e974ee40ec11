"""The settings that a session is made with."""

from typing import Any

from broadsheet.spark import session
from broadsheet.spark.session import CHECKPOINT_FILES

PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"


def manager(spark: Any) -> str:
    """The class by which Spark writes a checkpoint on this machine."""
    jvm, conf = spark._jvm, spark._jsparkSession.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path("file:/tmp")
    managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    name: str = managers.create(path, conf).getClass().getName()
    return name


def test_a_checkpoint_on_this_machine_is_written_without_processes(spark: Any) -> None:
    """Spark's own choice starts `readlink` 16 times a micro-batch, which took a quarter of its time."""
    assert manager(spark) == f"{PACKAGE}.FileSystemBasedCheckpointFileManager"


def test_a_manager_of_checkpoints_that_is_given_stays(spark: Any) -> None:
    """A setting of the user overrides ours."""
    ours, theirs = spark.conf.get(CHECKPOINT_FILES), f"{PACKAGE}.FileContextBasedCheckpointFileManager"
    try:
        session("windows", master="local[2]", conf={CHECKPOINT_FILES: theirs})
        assert manager(spark) == theirs
    finally:
        spark.conf.set(CHECKPOINT_FILES, ours)
