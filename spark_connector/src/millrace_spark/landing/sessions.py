"""The Spark that a program runs in."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from millrace_spark.errors import MillraceSparkError
from millrace_spark.java import ensure_java
from millrace_spark.landing.config import SparkConfig
from millrace_spark.landing.places import WorkFolder, is_local
from millrace_spark.quiet_spark import quiet_spark
from millrace_spark.source import register

_OWN_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A regular expression of Java's may recurse once for each character of a line.
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Of a Spark in this machine's cores; a user's own count instead."""

_SESSION_SETTINGS = {
    # So that what is landed is the same wherever it is landed.
    "spark.sql.session.timeZone": "UTC",
    # What every reader takes; Spark's own default is a type that Parquet has given up.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

_DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def is_submitted() -> bool:
    """Tells whether spark-submit started this program, and Spark with it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def spark_log(work: WorkFolder) -> Path:
    """Where Spark's log goes: to the work folder, or where that is not of this machine, to the working directory."""
    return Path(work.spark_log) if is_local(work.path) else Path(f"{work.path.rpartition('/')[2]}.spark.log").absolute()


@contextmanager
def spark_session(name: str, config: SparkConfig, log: Path, *, with_delta: bool = False) -> Iterator[SparkSession]:
    """Runs Spark for as long as the block runs; under spark-submit it is the one that is there.

    Args:
        name: The application's name.
        config: Where it runs, and Spark's settings.
        log: Where the log of a Spark of this machine is written, so that the screen is left to the program.
        with_delta: Whether Delta tables are written.

    Raises:
        MillraceSparkError: There is no Java, or Spark does not start.
    """
    settings = {**(_DELTA_SETTINGS if with_delta else {}), **config.conf}
    builder = SparkSession.builder.appName(name)
    if not is_submitted():
        ensure_java()
        # Workers take whatever `python3` is on the path unless told otherwise.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        builder = builder.master(config.master)
        settings = {**(_OWN_SETTINGS if config.master.startswith("local") else {}), **settings}
    try:
        with quiet_spark(log, builder.config(map=dict(settings)).getOrCreate) as session:
            for setting, value in _SESSION_SETTINGS.items():
                session.conf.set(setting, value)
            register(session)
            yield session
    except Py4JError as error:
        raise MillraceSparkError(f"Spark ended; {log} tells more") from error
