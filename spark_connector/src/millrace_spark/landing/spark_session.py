"""The Spark session of a program: start, log file, end, and Spark's errors as sentences."""

import logging
import os
import re
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

_OWN = re.compile(
    r"millrace_spark\.(?:[a-z_]+\.)*[A-Za-z]+Error: (?P<told>.+?)(?=\n\s*\n|\n\s+at |\n===|\Z)", re.DOTALL
)
_PYTHON = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): (?P<told>.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?P<told>.+)$", re.MULTILINE)
_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+(?P<name>\w+): ")
_STATE = re.compile(r" SQLSTATE: \w{5}$")
_LENGTH_MAX = 600


def format_error(error: BaseException) -> str:
    """What is wrong, without the traces of two languages: the connector's own sentence where there is one.

    Args:
        error: What was raised, here or on the other side of py4j.
    """
    text = str(error)
    if java := getattr(error, "java_exception", None):
        text = f"{text}\n{java.toString()}"
    if own := list(_OWN.finditer(text)):
        return _line(own[-1]["told"])
    for pattern in (_PYTHON, _CAUSE):
        if found := list(pattern.finditer(text)):
            return _line(found[-1]["told"])
    lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return _line(lines[0])


def _line(text: str) -> str:
    told = _STATE.sub("", " ".join(_CLASS.sub("", text.strip()).split()))
    return told if len(told) <= _LENGTH_MAX else f"{told[:_LENGTH_MAX]}…"


_JAVA_STOP_SECONDS_MAX = 10.0


@contextmanager
def logged_spark(log: Path, start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """Runs Spark for as long as the block runs.

    Args:
        log: Where Spark's log is written, behind what is there, so that the terminal is left to the program.
        start: Starts it, or finds the one that is there; a JVM that is another program's is left alone.
    """
    with _client_log_in(log):
        try:
            with _standard_error_in(log):
                session = start()
            yield session
            # Where the JVM has died there is nothing to stop.
            with suppress(Py4JError, OSError):
                session.stop()
        finally:
            _end_java()


def _end_java() -> None:
    """Ends Spark's JVM, where it was started here. Told so, it removes its temporary files."""
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
        with logged_spark(log, builder.config(map=dict(settings)).getOrCreate) as session:
            for setting, value in _SESSION_SETTINGS.items():
                session.conf.set(setting, value)
            register(session)
            yield session
    except Py4JError as error:
        raise MillraceSparkError(f"Spark ended; {log} tells more") from error
