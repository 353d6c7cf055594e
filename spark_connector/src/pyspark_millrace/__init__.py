"""Lets Spark find `format("millrace")` by itself.

Spark imports every top-level module whose name begins with `pyspark_` and registers its `DefaultSource`. One such
module that cannot be imported breaks all data sources, so nothing here imports gRPC or pyarrow.
"""

from millrace_spark.source import MillraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
