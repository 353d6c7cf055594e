"""A local Spark whose own talk goes to a file."""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
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


_JAVA_STOP_SECONDS_MAX = 10.0


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
    with _client_log_in(log):
        try:
            with _standard_error_in(log):
                builder = SparkSession.builder.master("local[*]").appName("millrace").config(map=settings)
                session = builder.getOrCreate()
            yield session
            # Where the JVM has died there is nothing to stop.
            with contextlib.suppress(Py4JError, OSError):
                session.stop()
        finally:
            _end_java()


def _end_java() -> None:
    """Ends Spark's JVM, where it was started. Told so, it removes its temporary files."""
    # Spark has no other name for it.
    java: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - see above
    if java is None:
        return
    java.terminate()
    try:
        java.wait(_JAVA_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


@contextmanager
def _client_log_in(log: Path) -> Iterator[None]:
    """Lets what Spark's client logs, such as errors of a JVM that ended, go to a file, and not to the terminal."""
    handler = logging.FileHandler(log, delay=True)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


@contextmanager
def _standard_error_in(log: Path) -> Iterator[None]:
    """Lets programs that are started in the block, and so the JVM, write their standard error to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
