"""pyspark_broadsheet: the module by which Spark finds `format("broadsheet")`.

Spark imports every module named `pyspark_*` and registers its `DefaultSource`.
"""

from broadsheet.spark.source import BroadsheetDataSource as DefaultSource

__all__ = ["DefaultSource"]
