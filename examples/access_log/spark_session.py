"""A local Spark whose own talk goes to a file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from millrace_spark import ensure_java
from millrace_spark.landing.spark_session import logged_spark

_SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": 2,
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
}

# The second compiler and several collector threads cost a short run more than they bring: half of its CPU time.
_SHORT_RUN = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@contextmanager
def local_spark(log: Path, *, is_short_run: bool) -> Iterator[SparkSession]:
    """Runs Spark in this machine's cores for as long as the block runs; brings a Java where there is none.

    Once in a process, since Spark's client goes on only with the Java that it began with.

    Args:
        log: Where Spark's log is written.
        is_short_run: Whether what is to be done takes not much longer than Spark's own start.

    Raises:
        MillraceSparkError: There is no Java, and none could be brought.
    """
    ensure_java()
    # Workers take whatever `python3` is on the path unless told otherwise, and another Spark's home would be started.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):
        os.environ.pop(name, None)
    settings = _SETTINGS | (_SHORT_RUN if is_short_run else {})
    log.write_bytes(b"")
    builder = SparkSession.builder.master("local[*]").appName("millrace").config(map=settings)
    with logged_spark(log, builder.getOrCreate) as session:
        yield session
