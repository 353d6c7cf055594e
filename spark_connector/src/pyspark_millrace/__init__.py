"""The entry point by which Spark finds `format("millrace")`.

Spark imports every top-level module whose name begins with `pyspark_` and registers its `DefaultSource`. If one such
module cannot be imported, all data sources fail, so this module does not import gRPC or pyarrow.
"""

from millrace_spark.source import MillraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
