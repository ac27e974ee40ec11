"""Spark finds `format("broadsheet")` by this module's name: it registers each `pyspark_*`.

Spark imports a module of this name when it meets the format.
"""

from broadsheet.spark.source import BroadsheetDataSource as DefaultSource

__all__ = ["DefaultSource"]
