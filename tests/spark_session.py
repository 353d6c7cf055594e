"""One small Spark for all tests."""

import os
import sys

from pyspark.sql import SparkSession

from millrace_spark import ensure_java


def small_spark() -> SparkSession:
    """A session on two cores, with little memory and no web pages, which tries each task twice, as a cluster does."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,2]").appName("millrace-tests")
    for name, value in (
        ("spark.driver.bindAddress", "127.0.0.1"),
        ("spark.driver.host", "127.0.0.1"),
        ("spark.driver.memory", "512m"),
        # Short runs gain nothing from the second compiler.
        ("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.ui.enabled", "false"),
        ("spark.ui.showConsoleProgress", "false"),
    ):
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark
