"""A local Spark whose own talk goes to a file."""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from millrace_spark import ensure_java

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
    with _standard_error_in(log):
        session = SparkSession.builder.master("local[*]").appName("millrace").config(map=settings).getOrCreate()
    try:
        yield session
    finally:
        # Where the JVM has died there is nothing to stop.
        with contextlib.suppress(Py4JError, OSError):
            session.stop()


@contextmanager
def _standard_error_in(log: Path) -> Iterator[None]:
    """Lets programs that are started in the block, and so the JVM, write their standard error to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
