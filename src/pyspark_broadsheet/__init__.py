"""Spark finds `format("broadsheet")` by this module's name: it registers each `pyspark_*`.

Source: reference/spark.md 6.
"""

from broadsheet.spark.source import BroadsheetDataSource as DefaultSource

__all__ = ["DefaultSource"]
