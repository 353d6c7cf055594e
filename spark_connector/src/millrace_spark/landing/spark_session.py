"""The Spark session of a program: start, log file and end."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from millrace_spark.errors import MillraceSparkError
from millrace_spark.java import ensure_java
from millrace_spark.landing.config import SparkConfig
from millrace_spark.landing.paths import WorkFolder, is_local
from millrace_spark.source import register

_JAVA_STOP_SECONDS_MAX = 10.0


@contextmanager
def logged_spark(log: Path, start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """Runs Spark while the block runs, with its log in a file.

    Args:
        log: The file that Spark's log is appended to, instead of the terminal.
        start: Starts the session, or returns the current one. A JVM that another program started keeps running.
    """
    with _client_log_in(log):
        try:
            with _standard_error_in(log):
                session = start()
            yield session
            # If the JVM has died, there is nothing to stop.
            with suppress(Py4JError, OSError):
                session.stop()
        finally:
            _end_java()


def _end_java() -> None:
    """Terminates Spark's JVM if this process started it, so that it removes its temporary files."""
    # PySpark has no public name for it.
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
    """Writes the log of Spark's client, such as errors of a terminated JVM, to a file instead of the terminal."""
    handler = logging.FileHandler(log, delay=True)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


@contextmanager
def _standard_error_in(log: Path) -> Iterator[None]:
    """Redirects the standard error of programs that start in the block, such as the JVM, to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


_OWN_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A regular expression in Java may recurse once per character of a line.
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Defaults for a local Spark; the user's settings override them."""

_SESSION_SETTINGS = {
    # The result must not depend on the machine's time zone.
    "spark.sql.session.timeZone": "UTC",
    # All readers support it; Spark's default is a type that Parquet has deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

_DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def spark_log(work: WorkFolder) -> Path:
    """Returns the path of Spark's log: in the work folder if that is local, else in the working directory."""
    return Path(work.spark_log) if is_local(work.path) else Path(f"{work.path.rpartition('/')[2]}.spark.log").absolute()


@contextmanager
def spark_session(name: str, config: SparkConfig, log: Path, *, with_delta: bool = False) -> Iterator[SparkSession]:
    """Runs Spark while the block runs; under spark-submit, uses the existing session.

    Raises:
        MillraceSparkError: There is no Java, or Spark does not start.
    """
    settings = {**(_DELTA_SETTINGS if with_delta else {}), **config.conf}
    builder = SparkSession.builder.appName(name)
    # spark-submit sets this variable for the programs that it starts.
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        ensure_java()
        # By default, workers run the `python3` on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        builder = builder.master(config.master)
        settings = {**(_OWN_SETTINGS if config.master.startswith("local") else {}), **settings}
    try:
        with logged_spark(log, builder.config(map=dict(settings)).getOrCreate) as session:
            for setting, value in _SESSION_SETTINGS.items():
                session.conf.set(setting, value)
            register(session)
            yield session
    except Py4JError as error:
        raise MillraceSparkError(f"Spark ended; see {log}") from error
