"""A Spark that a program starts: its own talk goes to a file, and its JVM ends with it."""

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

_JAVA_STOP_SECONDS_MAX = 10.0


@contextmanager
def quiet_spark(log: Path, start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
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
